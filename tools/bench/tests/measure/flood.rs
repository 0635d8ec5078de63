//! A flood of handshakes at a tunnel in use.

use crate::{direct, find, start};
use std::time::Duration;
use taupe_bench::measure::flood::{self, Attacker, FloodKind, RATE};
use taupe_bench::measure::iperf::{Direction, Flow};
use taupe_bench::measure::metrics;
use taupe_bench::measure::servers::Servers;
use taupe_bench::pair::Link;
use taupe_lab::host::Host;
use taupe_lab::sandbox::{SystemTest, figure};
use taupe_lab::traffic::first_answer;
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("a_flood_reaches_a_tunnel", reaches),
        SystemTest::new("a_new_peer_gets_in_during_a_flood", new_peer_gets_in),
        SystemTest::new(
            "contestants_without_handshakes_are_not_flooded",
            no_handshakes,
        ),
    ]
}

const FLOW: Flow = Flow {
    direction: Direction::Up,
    streams: 1,
    seconds: 1,
};

/// Counts the packets that reach the server from the flood's addresses, and the cookies that it
/// sends there.
const COUNTERS: &str = "table inet flood {
    counter unread { }
    counter tunnel { }
    counter cookies { }
    chain in {
        type filter hook input priority 0
        ip saddr 198.18.0.0/15 udp dport 9 udp length 156 counter name unread
        ip saddr 198.18.0.0/15 udp dport 51820 udp length 156 counter name tunnel
    }
    chain out {
        type filter hook output priority 0
        ip daddr 198.18.0.0/15 udp sport 51820 udp length 72 counter name cookies
    }
}";

fn reaches() -> Result<()> {
    let session = start("taupe", &Link::Cable)?;
    let server = &session.pair.server;
    server.run_with_input(&["nft", "-f", "-"], COUNTERS)?;
    let mut servers = Servers::new(&session);
    let found = flood::measure(&*find("taupe")?, &session, &mut servers, FLOW)
        .ok_or_else(|| Error::unmet("Taupe takes handshakes"))??;
    figure("flooded", &found);

    let kinds: Vec<FloodKind> = found.iter().map(|one| one.kind).collect();
    ensure!(kinds == FloodKind::ALL, "{kinds:?}");
    for one in &found {
        let most = f64::from(RATE) * 1.05;
        ensure!(one.rate > 0.0 && one.rate < most, "{one:?}");
        ensure!(one.transfer.bytes() > 0, "{one:?}");
    }
    // One second each; two of the floods reach the tunnel.
    let sent = |kind| {
        found
            .iter()
            .filter(move |one| (one.kind == FloodKind::Unread) == kind)
    };
    for (name, unread) in [("unread", true), ("tunnel", false)] {
        let least: f64 = sent(unread).map(|one| one.rate).sum();
        let count = count(server, name)?;
        ensure!(count as f64 > least, "{count} {name}: {found:?}");
    }
    // The kernel's filter drops most of what reaches the tunnel. What comes before the device
    // asks for the filter is not dropped: on a busy machine, a fifth of a flood of one second.
    let (shed, came) = (server.snmp()?.filtered()?, count(server, "tunnel")?);
    figure("shed", (shed, came));
    ensure!(shed > came / 2, "{shed} of {came} were shed");

    let keys: Vec<String> = metrics::flood(FLOW.direction, &found)
        .into_iter()
        .map(|(metric, _)| metric.key)
        .collect();
    ensure!(
        keys.contains(&"flood/informed/up/kept".to_owned())
            && !keys.contains(&"flood/unread/up/kept".to_owned()),
        "{keys:?}"
    );
    Ok(())
}

/// Returns the packets of a named counter.
fn count(host: &Host, name: &str) -> Result<u64> {
    let shown = host.run(&["nft", "list", "counter", "inet", "flood", name])?;
    let mut words = shown.stdout.split_whitespace();
    let count = words.find(|word| *word == "packets").and(words.next());
    let count = count.and_then(|count| count.parse().ok());
    count.ok_or_else(|| Error::unmet(shown.stdout.clone()))
}

/// A client without a session and without a cookie gets both within three tries (whitepaper §6.1:
/// one per 5 s) during any flood. On a busy machine, where the system may drop datagrams before the
/// tunnel's process reads them, it may need a few more. After the flood it gets a session at once.
fn new_peer_gets_in() -> Result<()> {
    let taupe = find("taupe")?;
    for kind in [FloodKind::WrongMac1, FloodKind::ValidMac1] {
        // A new session each time, because a client keeps its cookie.
        let session = start("taupe", &Link::Cable)?;
        let client = &session.pair.client;
        let handshakes = taupe.handshakes(&session.pair, &session.server);
        let handshakes = handshakes.ok_or_else(|| Error::unmet("Taupe takes handshakes"))??;
        let attacker = Attacker::new(&session, handshakes)?;
        let server = &session.pair.server;
        server.run_with_input(&["nft", "-f", "-"], COUNTERS)?;
        let interface = session.client.interface.clone().unwrap_or_default();
        let anew = || {
            // Taking the interface down removes the session.
            for state in ["down", "up"] {
                client.ip(&["link", "set", &interface, state])?;
            }
            first_answer(client, session.target(), Duration::from_secs(60))
        };
        let (rate, took) = attacker.during(kind, anew)?;
        figure(kind.name(), (rate, took));
        ensure!(took < Duration::from_secs(36), "{kind:?}: {took:?}");
        // The device answers an informed flood with cookies until the kernel filter drops the flood.
        let cookies = count(server, "cookies")?;
        figure("cookies", cookies);
        let informed = kind == FloodKind::ValidMac1;
        ensure!((cookies > 0) == informed, "{cookies} cookies for {kind:?}");
        // Time for the device to notice, and for datagrams under way to arrive.
        std::thread::sleep(Duration::from_millis(300));
        let took = anew()?;
        figure("afterwards", took);
        // Sooner than a retry.
        ensure!(took < Duration::from_secs(4), "after the flood {took:?}");
    }
    Ok(())
}

fn no_handshakes() -> Result<()> {
    let session = direct(&Link::Cable)?;
    let mut servers = Servers::new(&session);
    let found = flood::measure(&*find("direct")?, &session, &mut servers, FLOW);
    ensure!(found.is_none(), "a bare link takes no handshakes");
    Ok(())
}
