//! All measurements once on a real tunnel, Taupe's.

use crate::{find, start};
use std::time::Duration;
use taupe_bench::measure::cost::{Meter, SystemCalls};
use taupe_bench::measure::iperf::{self, Direction, Flow};
use taupe_bench::measure::packets::{self, SendMode};
use taupe_bench::measure::servers::Servers;
use taupe_bench::measure::{memory, peers, stages};
use taupe_bench::pair::Link;
use taupe_lab::sandbox::{SystemTest, figure};
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("cost_of_a_tunnel", costs),
        SystemTest::new("largest_unfragmented_packets", largest_packets),
        SystemTest::new("stages_of_a_packets_path", stages_of_a_tunnel),
        SystemTest::new("a_server_with_many_peers", many_peers),
        SystemTest::new("memory_growth_under_load", growth),
    ]
}

const FLOW: Flow = Flow {
    direction: Direction::Up,
    streams: 1,
    seconds: 1,
};

/// Bit/s below which one thread may process both directions of a stream.
const BOTH_WAYS: f64 = 8e8;

fn costs() -> Result<()> {
    let session = start("taupe", &Link::Cable)?;
    let mut servers = Servers::new(&session);
    for system_calls in [SystemCalls::Ignore, SystemCalls::Count] {
        let meter = Meter::start(&session, system_calls)?;
        let found = iperf::transfer(&session, &mut servers, FLOW)?;
        let usage = meter.stop()?;
        figure("usage", usage);
        let Some(programs) = usage.programs else {
            return Err(Error::unmet("the tunnel has programs"));
        };
        let (part, full) = (programs.user + programs.system, usage.user + usage.system);
        // On a busy machine either may be zero: less than a tick of 10 ms.
        ensure!(part > 0.0 && programs.switches > 0, "{usage:?}");
        // The whole machine's time is counted differently, tick by tick.
        ensure!(part < full * 1.2 + 0.1, "{usage:?}");
        ensure!(programs.switches <= usage.switches, "{usage:?}");
        match usage.system_calls {
            None => ensure!(system_calls == SystemCalls::Ignore, "{usage:?}"),
            Some(calls) => {
                // Each system call moves at most a super-packet of 64 KiB, and each byte is read
                // twice and written twice.
                let least = found.bytes() / 65536 * 4;
                ensure!(
                    calls.programs.is_some_and(|count| count > least),
                    "{calls:?} for {} bytes",
                    found.bytes()
                );
                ensure!(Some(calls.machine) > calls.programs, "{calls:?}");
            }
        }
    }
    Ok(())
}

/// Packets of 1,420 bytes are the largest that pass unfragmented.
fn largest_packets() -> Result<()> {
    let session = start("taupe", &Link::Cable)?;
    let fragments = || session.pair.client.snmp()?.get("Ip", "FragCreates");
    let found = packets::measure(&session, 1420, SendMode::Each)?;
    figure("1,420 bytes", found.best);
    ensure!(fragments()? == 0, "there were fragments");
    let received: u64 = found.trials.iter().map(|trial| trial.received).sum();
    ensure!(received > 0, "{found:?}");
    packets::measure(&session, 1421, SendMode::Each)?;
    ensure!(fragments()? > 0, "there were no fragments");
    Ok(())
}

/// The observed threads carry the stream, and the kernel's part that is timed separately is a part
/// of their total.
fn stages_of_a_tunnel() -> Result<()> {
    let session = start("taupe", &Link::Cable)?;
    let mut servers = Servers::new(&session);
    let found = stages::measure(&session, &mut servers, 1)?;
    figure("stages", found);
    let found = found.ok_or_else(|| Error::unmet("its threads are not known"))?;
    for (thread, part) in [(found.out, found.send), (found.into, found.receive)] {
        ensure!(part > 0.0, "{found:?}");
        // On a busy machine the stream may be so slow that another thread processes both
        // directions.
        if found.rate >= BOTH_WAYS || thread.user + thread.system > 0.0 {
            // Ticks are 10 ms, and caches differ. The factor of two still detects a wrong unit,
            // such as the seconds of a batch for those of a packet.
            ensure!(part < 2.0 * thread.system && thread.user > 0.0, "{found:?}");
        }
    }
    // The time of splitting and encrypting depends on this test's build profile.
    let difference = [found.split, found.seal, found.open, found.merge];
    ensure!(
        difference.iter().all(|part| (1e-9..1e-4).contains(part)),
        "{found:?}"
    );
    drop((servers, session));
    let direct = start("direct", &Link::Cable)?;
    let mut servers = Servers::new(&direct);
    let found = stages::measure(&direct, &mut servers, 1)?;
    ensure!(found.is_none(), "a cable has no threads: {found:?}");
    Ok(())
}

fn growth() -> Result<()> {
    let session = start("taupe", &Link::Cable)?;
    let mut servers = Servers::new(&session);
    let warm_up = Duration::from_secs(1);
    let found = memory::growth(&session, &mut servers, warm_up, 4)?;
    figure("looks", &found);
    for looks in &found.ends {
        ensure!(looks.len() >= 2, "{found:?}");
        let in_time = looks.iter().all(|(at, bytes)| *at >= 1.0 && *bytes > 0.0);
        ensure!(in_time, "{found:?}");
    }
    ensure!(found.slope().is_some(), "{found:?}");
    Ok(())
}

fn many_peers() -> Result<()> {
    let session = start("taupe", &Link::Cable)?;
    let mut servers = Servers::new(&session);
    let before = memory::of(&session.server)?;
    let found = peers::add(&*find("taupe")?, &session, &mut servers, 2000);
    let found = found.ok_or_else(|| Error::unmet("it has no peers"))??;
    figure("2,000 peers", (found.setup, found.resident, before));
    let Some(resident) = found.resident else {
        return Err(Error::unmet("it has programs"));
    };
    // A peer has at least two keys of 32 bytes.
    ensure!(
        resident.now > before.now + 2000 * 64,
        "{resident:?} with 2,000 peers, {before:?} with one"
    );
    ensure!(
        found.transfer.up.is_some() && !found.round_trips.answered.is_empty(),
        "{found:?}"
    );
    let in_turn = peers::in_turn(&*find("taupe")?, &session, &mut servers, 1000);
    let in_turn = in_turn.ok_or_else(|| Error::unmet("it has no peers"))??;
    ensure!(
        in_turn.iter().all(|found| found.rate() > 0.0),
        "{in_turn:?}"
    );
    let interface = session.server.interface.as_deref().unwrap_or_default();
    let peers_now = session
        .pair
        .server
        .run(&["wg", "show", interface, "peers"])?;
    let now = peers_now.stdout.lines().count();
    ensure!(
        now == 1001,
        "{now} peers after 2,000 were taken away and 1,000 added"
    );
    drop((servers, session));
    let without = start("direct", &Link::Cable)?;
    let mut servers = Servers::new(&without);
    let found = peers::add(&*find("direct")?, &without, &mut servers, 1);
    ensure!(found.is_none(), "a cable has no peers: {found:?}");
    Ok(())
}
