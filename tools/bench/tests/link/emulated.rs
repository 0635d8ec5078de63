//! The emulator: the arriving packets agree with its counters.

use crate::stream;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use taupe_bench::emulator::{Counters, Emulator, Profile};
use taupe_bench::pair::{Link, Pair};
use taupe_bench::side::{PORT, Side};
use taupe_lab::host::Host;
use taupe_lab::sandbox::figure;
use taupe_lab::{Result, ensure, traffic};

const COUNT: u32 = 2000;

/// Bytes of the IP and UDP headers.
const HEADERS: u64 = 28;

fn pair(profile: &Profile) -> Result<Pair> {
    Pair::new("a", &Link::Emulated(profile.clone()))
}

fn emulator(pair: &Pair) -> Result<&Emulator> {
    let missing = || taupe_lab::Error::unmet("the pair has no emulator");
    pair.emulator.as_ref().ok_or_else(missing)
}

fn counters(pair: &Pair, from: Side) -> Result<Counters> {
    Ok(emulator(pair)?.counters(from))
}

pub(crate) fn counters_are_exact() -> Result<()> {
    let pair = pair(&Profile {
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(1),
        loss: 50_000,
        reorder: 20_000,
        duplicate: 30_000,
        seed: 4,
        ..Profile::PERFECT
    })?;
    let arrived = stream::send(&pair, COUNT)?;
    let found = counters(&pair, Side::Client)?;
    figure("counters", found);
    ensure!(found.offered == u64::from(COUNT), "offered: {found:?}");
    let bytes = stream::LENGTH as u64 + HEADERS;
    ensure!(
        (found.offered_bytes, found.delivered_bytes)
            == (found.offered * bytes, found.delivered * bytes),
        "bytes: {found:?}"
    );
    let mut distinct = arrived.clone();
    distinct.sort_unstable();
    distinct.dedup();
    ensure!(
        arrived.len() as u64 == found.delivered,
        "{} arrived: {found:?}",
        arrived.len()
    );
    ensure!(
        distinct.len() as u64 == found.offered - found.lost,
        "{} different ones arrived: {found:?}",
        distinct.len()
    );
    let later = |at: usize| arrived.iter().skip(at).any(|number| *number < arrived[at]);
    let mut overtakers: Vec<_> = (0..arrived.len()).filter(|&at| later(at)).collect();
    overtakers.dedup_by_key(|at| arrived[*at]);
    ensure!(
        overtakers.len() as u64 == found.reordered,
        "{} overtook others: {found:?}",
        overtakers.len()
    );
    ensure!(
        found.lost > 0 && found.duplicated > 0 && found.reordered > 0 && found.under_way == 0,
        "nothing happened: {found:?}"
    );
    ensure!(
        counters(&pair, Side::Server)? == Counters::default(),
        "nothing was sent the other way"
    );
    Ok(())
}

pub(crate) fn delays() -> Result<()> {
    const ANSWERS: usize = 20;
    let pair = pair(&Profile {
        delay: Duration::from_millis(20),
        jitter: Duration::from_millis(5),
        ..Profile::PERFECT
    })?;
    let least = Duration::from_millis(2 * (20 - 5));
    let count = ANSWERS.to_string();
    let target = pair.outer().to_string();
    #[rustfmt::skip]
    let output = pair.client.run(&["ping", "-n", "-i", "0.05", "-c", &count, "-W", "5", &target])?;
    let times: Vec<f64> = output
        .stdout
        .lines()
        .filter_map(|line| line.split_once("time=")?.1.split(' ').next()?.parse().ok())
        .collect();
    ensure!(times.len() == ANSWERS, "answers: {}", output.stdout);
    figure("round trips in ms", &times);
    ensure!(
        times.iter().all(|time| *time >= least.as_secs_f64() * 1e3),
        "a round trip took less than {least:?}: {times:?}"
    );
    Ok(())
}

pub(crate) fn corruption_is_noticed() -> Result<()> {
    let pair = pair(&Profile {
        corrupt: 300_000,
        ..Profile::PERFECT
    })?;
    // `send` fails if a datagram arrives that differs from the one sent.
    let arrived = stream::send(&pair, COUNT)?.len() as u64;
    let found = counters(&pair, Side::Client)?;
    // Datagrams rejected for corrupted headers.
    let refused = pair.server.snmp()?.get("Udp", "InErrors")?;
    figure("corrupted and refused", (found.corrupted, refused));
    ensure!(found.corrupted > 0, "nothing was corrupted");
    ensure!(
        arrived + refused == found.delivered,
        "{arrived} arrived, {refused} were refused: {found:?}"
    );
    // A datagram whose checksum field became zero passes unchecked, with its content intact.
    ensure!(
        (found.corrupted.saturating_sub(2)..=found.corrupted).contains(&refused),
        "{refused} were refused: {found:?}"
    );
    Ok(())
}

pub(crate) fn tcp_gets_over_everything() -> Result<()> {
    const LENGTH: usize = 1_000_000;
    let pair = pair(&Profile {
        up: Some(20_000_000),
        down: Some(20_000_000),
        delay: Duration::from_millis(5),
        jitter: Duration::from_millis(2),
        loss: 5_000,
        reorder: 5_000,
        duplicate: 5_000,
        corrupt: 5_000,
        ..Profile::PERFECT
    })?;
    let server = SocketAddr::new(pair.outer(), 4000);
    traffic::serve_echo(&pair.server, server)?;
    // Checks every byte.
    traffic::tcp_echo(&pair.client, server, LENGTH)?;
    for side in Side::BOTH {
        let found = counters(&pair, side)?;
        figure(side.name(), found);
        ensure!(
            found.lost > 0 && found.reordered > 0 && found.duplicated > 0 && found.corrupted > 0,
            "nothing happened: {found:?}"
        );
    }
    Ok(())
}

pub(crate) fn rates() -> Result<()> {
    const LENGTH: usize = 1_000_000;
    const UP: u64 = 4_000_000;
    let pair = pair(&Profile {
        up: Some(UP),
        down: Some(40_000_000),
        delay: Duration::from_millis(5),
        ..Profile::PERFECT
    })?;
    let server = SocketAddr::new(pair.outer(), 4000);
    traffic::serve_echo(&pair.server, server)?;
    let begin = Instant::now();
    traffic::tcp_echo(&pair.client, server, LENGTH)?;
    let found = counters(&pair, Side::Client)?;
    let took = begin.elapsed();
    // The rates of the payload and of all packets.
    for bytes in [LENGTH as u64, found.delivered_bytes] {
        let rate = bytes as f64 * 8.0 / took.as_secs_f64();
        figure("bit/s", rate);
        ensure!(rate <= UP as f64, "{bytes} bytes in {took:?}");
    }
    Ok(())
}

pub(crate) fn changes_while_it_runs() -> Result<()> {
    let pair = pair(&Profile::PERFECT)?;
    let link = emulator(&pair)?;
    traffic::ping(&pair.client, pair.outer(), 5)?;
    link.change(&Profile {
        loss: 1_000_000,
        ..Profile::PERFECT
    })?;
    let lost = traffic::ping(&pair.client, pair.outer(), 1);
    ensure!(lost.is_err(), "a link that loses all let a ping pass");
    let nonsense = Profile {
        loss: 1_000_001,
        ..Profile::PERFECT
    };
    ensure!(
        link.change(&nonsense).is_err(),
        "more than all cannot be lost"
    );
    link.change(&Profile::PERFECT)?;
    traffic::ping(&pair.client, pair.outer(), 5)?;
    let found = link.counters(Side::Client);
    ensure!(
        (found.offered, found.lost, found.delivered) == (3, 1, 2),
        "{found:?}"
    );
    Ok(())
}

pub(crate) fn leaves_nothing() -> Result<()> {
    let [client, server] = ["client", "server"].map(Host::new);
    let (client, server) = (client?, server?);
    let ports = || {
        [&client, &server].map(|host| {
            let shown = host.attempt(&["ip", "link", "show", "dev", PORT]);
            shown.map(|shown| shown.status == Some(0))
        })
    };
    let target = IpAddr::V4(Side::Server.outer());
    // The second link finds no remains of the first.
    for _ in 0..2 {
        let link = Emulator::start(&client, &server, &Profile::LTE)?;
        traffic::first_answer(&client, target, Duration::from_secs(10))?;
        ensure!(threads()? == 2, "one thread for each direction");
        // The interface names are taken; the existing link keeps running.
        let second = Emulator::start(&client, &server, &Profile::LTE);
        ensure!(second.is_err(), "two links with one port");
        traffic::first_answer(&client, target, Duration::from_secs(10))?;
        drop(link);
        ensure!(threads()? == 0, "a thread is left");
        for port in ports() {
            ensure!(!port?, "an interface is left");
        }
    }
    Ok(())
}

pub(crate) fn outlives_its_machines() -> Result<()> {
    let [client, server] = ["client", "server"].map(Host::new);
    let (client, server) = (client?, server?);
    let link = Emulator::start(&client, &server, &Profile::PERFECT)?;
    client.ip(&["link", "delete", PORT])?;
    let waiting = "end of the thread that reads there";
    taupe_lab::process::wait_until(waiting, Duration::from_secs(10), || Ok(threads()? < 2))?;
    client.delete()?;
    server.delete()?;
    drop(link);
    ensure!(threads()? == 0, "a thread is left");
    Ok(())
}

/// Returns the number of this process's threads that move packets.
fn threads() -> Result<usize> {
    let tasks = "/proc/self/task";
    let entries = fs::read_dir(tasks).map_err(taupe_lab::Error::io(tasks))?;
    let names = entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    Ok(names.filter(|name| name == "link\n").count())
}
