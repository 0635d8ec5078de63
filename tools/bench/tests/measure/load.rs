//! Load of transfers: order of packets on links that do and do not reorder, and gateways.

use crate::{direct, find, start};
use std::thread;
use std::time::Duration;
use taupe_bench::emulator::Profile;
use taupe_bench::measure::gateway::Gateway;
use taupe_bench::measure::iperf::{Direction, Flow};
use taupe_bench::measure::latency;
use taupe_bench::measure::load::{self, Load};
use taupe_bench::measure::servers::Servers;
use taupe_bench::pair::Link;
use taupe_bench::session::GatewaySession;
use taupe_bench::tcp::{Congestion, TcpSettings};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, figure};
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("losses_are_no_reorderings", reordering),
        SystemTest::new("congestion_control_and_ecn_can_be_chosen", tcp),
        SystemTest::new("a_gateway_serves_all_clients", gateway),
        SystemTest::new("round_trips_beside_four_streams", beside),
    ]
}

fn flow(streams: u32) -> Flow {
    Flow {
        direction: Direction::Up,
        streams,
        seconds: 1,
    }
}

/// Largest number of transfers of a test.
const TRANSFERS: u32 = 20;

/// Reordering without loss counts as reordering, and loss without reordering does not.
fn reordering() -> Result<()> {
    let slow = Profile {
        up: Some(20_000_000),
        down: Some(20_000_000),
        queue: Some(4 << 20),
        delay: Duration::from_millis(5),
        ..Profile::PERFECT
    };
    let overtaking = Profile {
        reorder: 20_000,
        ..slow.clone()
    };
    let lossy = Profile {
        loss: 5_000,
        ..slow
    };
    find_transfer(overtaking, |found| found.order.reorderings > 0)?;
    // A busy machine may move a sender to another processor. Its packets then overtake those that
    // still wait on the first one. One transfer without reorderings shows that losses do not count.
    find_transfer(lossy, |found| {
        found.retransmits > Some(0) && found.order.reorderings == 0
    })
}

/// Repeats a transfer until its load has early segments and is as expected.
fn find_transfer(profile: Profile, is_expected: impl Fn(&Load) -> bool) -> Result<()> {
    let session = direct(&Link::Emulated(profile))?;
    let mut servers = Servers::new(&session);
    let mut loads = Vec::new();
    for _ in 0..TRANSFERS {
        let (_, load) = load::transfer(&session, &mut servers, flow(1))?;
        figure("order", load.order);
        if load.order.early > 0 && is_expected(&load) {
            return Ok(());
        }
        loads.push(load);
    }
    Err(Error::unmet(format!("no load is as expected: {loads:#?}")))
}

fn tcp() -> Result<()> {
    let mut session = direct(&Link::Cable)?;
    let mut servers = Servers::new(&session);
    let (client, server) = (session.pair.client.clone(), session.pair.server.clone());
    let marked = || server.snmp()?.get("IpExt", "InECT0Pkts");
    for (congestion, ecn) in [(Congestion::Cubic, false), (Congestion::Reno, true)] {
        session.pair.set_tcp(TcpSettings { congestion, ecn })?;
        let before = marked()?;
        thread::scope(|scope| {
            let transfer = scope.spawn(|| load::transfer(&session, &mut servers, flow(1)));
            // The kernel shows the name after those of TCP's options.
            let name = format!(" {} ", congestion.name());
            let used = wait_until(
                &format!("a connection with{name}"),
                Duration::from_secs(5),
                || {
                    let connections = client.run(&["ss", "--tcp", "--info", "--no-header"])?;
                    Ok(connections.stdout.contains(&name))
                },
            );
            let joined = transfer.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            used
        })?;
        let marked = marked()? - before;
        ensure!(
            (marked > 0) == ecn,
            "{marked} packets with ECT(0), ECN: {ecn}"
        );
    }
    Ok(())
}

fn gateway() -> Result<()> {
    let session = GatewaySession::start(&*find("taupe")?, "gateway", 2, TcpSettings::default());
    let session = session.ok_or_else(|| Error::unmet("it is no gateway"))??;
    let mut gateway = Gateway::new(session)?;
    for direction in [Direction::Up, Direction::Down] {
        let found = gateway.transfer(direction, 1)?;
        figure("gateway", found);
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        ensure!(
            found.rate > 0.0 && found.usage.programs.is_some(),
            "{found:?}"
        );
        // The kernel counts processor time in ticks, which are not exact.
        let busy = found.usage.busy_cores();
        ensure!(
            busy.is_some_and(|busy| busy > 0.0 && busy < cores * 1.1),
            "{busy:?} of {cores} cores: {found:?}"
        );
    }
    Ok(())
}

fn beside() -> Result<()> {
    let session = start("direct", &Link::Limited { rate: 100_000_000 })?;
    let mut servers = Servers::new(&session);
    let found = latency::loaded(&session, &mut servers, 4, 1)?;
    let load = found.load.rate();
    // The token bucket of the link is full at the beginning, so the rate may exceed the limit.
    ensure!(load < 2e8, "{load} bit/s on 100 Mbit/s");
    let all = found.round_trips.answered.len() as u64 + found.round_trips.lost;
    ensure!(all > 500, "{all} round trips in a second");
    Ok(())
}
