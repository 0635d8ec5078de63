//! iperf3 and qperf, checked with the interface's own counters.

use crate::direct;
use taupe_bench::measure::iperf::{self, Direction, Flow};
use taupe_bench::measure::qperf::{self, Test};
use taupe_bench::measure::servers::Servers;
use taupe_bench::pair::Link;
use taupe_bench::session::Session;
use taupe_bench::side::{PORT, Side};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("iperf_agrees_with_the_interface", iperf_agrees),
        SystemTest::new("iperf_has_a_server_again", iperf_has_a_server_again),
        SystemTest::new("qperf_tests_pass", qperf_tests),
    ]
}

/// Returns the bytes that a machine's interface has received.
fn received(session: &Session, side: Side) -> Result<u64> {
    let path = format!("/sys/class/net/{PORT}/statistics/rx_bytes");
    let text = session.pair.host(side).run(&["cat", &path])?;
    let number = text.text().parse();
    number.map_err(|_| Error::unmet(format!("rx_bytes: {}", text.text())))
}

fn iperf_agrees() -> Result<()> {
    let session = direct(&Link::Cable)?;
    let mut servers = Servers::new(&session);
    for (direction, streams) in [
        (Direction::Up, 1),
        (Direction::Down, 4),
        (Direction::Both, 1),
    ] {
        step(&format!("{direction:?} with {streams} streams"));
        let flow = Flow {
            direction,
            streams,
            seconds: 1,
        };
        let before = Side::BOTH.map(|side| received(&session, side));
        let found = iperf::transfer(&session, &mut servers, flow)?;
        let after = Side::BOTH.map(|side| received(&session, side));
        for ((way, before), after) in [found.up, found.down].iter().zip(before).zip(after) {
            let arrived = after? - before?;
            let Some(way) = way else {
                continue;
            };
            // Headers of 66 bytes per up to 64 KiB. Data under way at the end counts for the
            // interface only.
            let excess = arrived.saturating_sub(way.bytes) as f64 / arrived as f64;
            ensure!(
                arrived >= way.bytes && excess < 0.25,
                "iperf3 received {} bytes, the interface {arrived}",
                way.bytes
            );
            ensure!(way.retransmits.is_some(), "no retransmits: {way:?}");
            ensure!((0.9..2.0).contains(&way.seconds), "it took {way:?}");
        }
        let ways = (found.up.is_some(), found.down.is_some());
        let expected = match direction {
            Direction::Up => (true, false),
            Direction::Down => (false, true),
            Direction::Both => (true, true),
        };
        ensure!(ways == expected, "{direction:?}: {found:?}");
    }
    Ok(())
}

/// After a client was killed, the server claims for a long time to be busy.
fn iperf_has_a_server_again() -> Result<()> {
    let session = direct(&Link::Cable)?;
    let mut servers = Servers::new(&session);
    let flow = Flow {
        direction: Direction::Up,
        streams: 1,
        seconds: 1,
    };
    iperf::transfer(&session, &mut servers, flow)?;
    let target = session.target().to_string();
    step("another client in the way");
    let other =
        session
            .pair
            .client
            .spawn(&["iperf3", "--forceflush", "-c", &target, "-t", "60"])?;
    taupe_lab::process::wait_until(
        "the other client",
        std::time::Duration::from_secs(5),
        || Ok(other.output().contains("connected to")),
    )?;
    iperf::transfer(&session, &mut servers, flow)?;
    drop(other);
    step("no machine there");
    session.pair.server.ip(&["link", "set", PORT, "down"])?;
    let failed = iperf::transfer(&session, &mut servers, flow);
    let reason = failed.map_or_else(|error| error.to_string(), |found| format!("{found:?}"));
    ensure!(
        reason.contains("unable to connect to server"),
        "the failure is reported as: {reason}"
    );
    session.pair.server.ip(&["link", "set", PORT, "up"])?;
    step("there again");
    iperf::transfer(&session, &mut servers, flow).map(drop)
}

fn qperf_tests() -> Result<()> {
    let session = direct(&Link::Limited { rate: 100_000_000 })?;
    let mut servers = Servers::new(&session);
    let rate = qperf::measure(&session, &mut servers, Test::TcpBandwidth, 1)?;
    // qperf counts what the receiver read within the second, which may begin with a burst of 128
    // kB.
    ensure!(rate > 1e6 && rate < 115e6, "{rate} bit/s on 100 Mbit/s");
    for test in [Test::TcpLatency, Test::UdpLatency] {
        let latency = qperf::measure(&session, &mut servers, test, 1)?;
        ensure!(
            latency > 1e-6 && latency < 0.1,
            "{}: {latency} s on a cable",
            test.name()
        );
    }
    Ok(())
}
