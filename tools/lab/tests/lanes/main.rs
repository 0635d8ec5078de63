//! Taupe with several lanes. The tests check its memory, and the order of each flow: between two
//! Taupes, with peers that have no lanes, and while the port and the link change.
//!
//! The machine may have fewer processors than the device has lanes. A thread then loses its
//! processor in the middle of everything that a lane does.

mod ends;
mod flows;

use crate::ends::{Ends, FAR, NEAR, PORTS};
use crate::flows::{Flows, Tally};
use std::thread::sleep;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{Suite, SystemTest, figure, step};
use taupe_lab::traffic::first_answer;
use taupe_lab::{Error, Result, ensure, uapi};

/// Numbers of lanes of the two ends.
const PAIRS: [[usize; 2]; 5] = [[1, 1], [2, 2], [4, 4], [8, 8], [8, 2]];

/// Datagrams that a test sends. The variable `DATAGRAMS` changes the number.
const DATAGRAMS: u64 = 100_000;

/// Received bytes after which the initiator renews its first session with a peer. It receives the
/// first session on one lane, and the second one on all its lanes.
const RENEWAL: u64 = 16 << 20;

fn main() {
    let minutes = |count: u64| Duration::from_secs(count * 60);
    let mut tests = Vec::new();
    for [near, far] in PAIRS {
        let test = move || order([near, far]);
        tests.push(SystemTest::new(format!("order_{near}_to_{far}"), test).limit(minutes(5)));
    }
    for peer in Implementation::PEERS {
        let test = move || without_lanes(peer);
        tests.push(SystemTest::new(format!("order_with_{}", peer.name()), test));
    }
    tests.push(SystemTest::new("changes_under_load", changes_under_load));
    tests.push(SystemTest::new("memory", memory));
    let suite = Suite::new(tests)
        .parallel(3)
        .prepare(|| Implementation::Taupe.install().map(drop));
    let peers = Implementation::PEERS.into_iter();
    let suite = peers.fold(suite, |suite, peer| {
        suite.prepare(move || peer.install().map(drop))
    });
    suite.main()
}

fn datagrams() -> Result<u64> {
    let Ok(text) = std::env::var("DATAGRAMS") else {
        return Ok(DATAGRAMS);
    };
    let number = text.parse();
    number.map_err(|_| Error::unmet(format!("DATAGRAMS={text} is not a number")))
}

/// Sends 64 flows in both directions. No datagram is lost or reordered.
fn order(lanes: [usize; 2]) -> Result<()> {
    let ends = Ends::taupes(lanes)?;
    for (host, port, lanes) in [
        (&ends.near, PORTS[0], lanes[0]),
        (&ends.far, PORTS[1], lanes[1]),
    ] {
        ensure_lanes(host, port, lanes)?;
    }
    if lanes.iter().all(|&count| count > 1) {
        receive_on_all_lanes(&ends)?;
    }
    step("64 flows");
    let flows = Flows::new((&ends.near, NEAR), (&ends.far, FAR), 64)?;
    let tally = flows.exchange(datagrams()?)?;
    ensure_in_order("64 flows", &tally)?;
    ensure!(tally.lost() == 0, "{tally:?}");
    Ok(())
}

/// Sends data to the near end until it has begun the session in which it receives on all lanes.
fn receive_on_all_lanes(ends: &Ends) -> Result<()> {
    step("session over all lanes");
    let first = ends.latest_handshake()?;
    let flows = Flows::new((&ends.near, NEAR), (&ends.far, FAR), 4)?;
    while ends.received()? < RENEWAL * 5 / 4 {
        flows.exchange(2_000)?;
    }
    wait_until("a new session", Duration::from_secs(20), || {
        flows.exchange(200)?;
        Ok(ends.latest_handshake()? != first)
    })
}

fn ensure_in_order(what: &str, tally: &Tally) -> Result<()> {
    figure(what, tally);
    ensure!(tally.reordered == 0, "{what}: {tally:?}");
    Ok(())
}

/// Checks that a device has the sockets of this number of lanes.
fn ensure_lanes(host: &Host, port: u16, lanes: usize) -> Result<()> {
    let port = port.to_string();
    let shown = host.run(&["ss", "-H", "-u", "-a", "-n", "sport", "=", &port])?;
    let count = shown.stdout.lines().count();
    // For IPv4 and IPv6: a data socket of each lane, and one for handshakes.
    ensure!(
        count == 2 * (lanes + 1),
        "{count} sockets: {}",
        shown.stdout
    );
    Ok(())
}

/// A peer without lanes receives the datagrams in order. Its replay window may be short (BoringTun:
/// 1,024 counters).
fn without_lanes(peer: Implementation) -> Result<()> {
    let ends = Ends::connect(8, peer, &[])?;
    // The datagrams in transit have to fit into a peer's default receive buffer, 208 KiB.
    let flows = Flows::new((&ends.near, NEAR), (&ends.far, FAR), 16)?.with_burst(4);
    let tally = flows.exchange(datagrams()? / 2)?;
    ensure_in_order("16 flows", &tally)?;
    ensure!(tally.lost() <= tally.sent / 100_000, "{tally:?}");
    Ok(())
}

/// Changes of the port and of the link reorder no flow, and flows continue after them.
fn changes_under_load() -> Result<()> {
    let ends = Ends::taupes([8, 8])?;
    receive_on_all_lanes(&ends)?;
    let flows = Flows::new((&ends.near, NEAR), (&ends.far, FAR), 16)?;
    step("changes of the port");
    let mut ports = 20_000..20_020;
    let tally = flows.exchange_while(|| {
        let Some(port) = ports.next() else {
            return Ok(false);
        };
        uapi::set("wgnear", &format!("listen_port={port}\n"))?;
        sleep(Duration::from_millis(100));
        Ok(true)
    })?;
    ensure_in_order("changes of the port", &tally)?;
    step("changes of the link");
    let mut rounds = 0..5;
    let tally = flows.exchange_while(|| {
        if rounds.next().is_none() {
            return Ok(false);
        }
        for state in ["down", "up"] {
            ends.near.ip(&["link", "set", "wgnear", state])?;
        }
        sleep(Duration::from_millis(300));
        Ok(true)
    })?;
    ensure_in_order("changes of the link", &tally)?;
    first_answer(&ends.near, FAR, Duration::from_secs(15))?;
    let tally = flows.exchange(10_000)?;
    ensure!(tally.lost() == 0, "after the changes: {tally:?}");
    Ok(())
}

/// Returns the memory of a process in KiB, with its share of what it shares with others (PSS).
fn proportional(process: u32) -> Result<usize> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = std::fs::read_to_string(&path).map_err(Error::io(path))?;
    let pss = text.lines().find_map(|line| {
        let value = line.strip_prefix("Pss:")?;
        value.trim().strip_suffix(" kB")?.trim().parse().ok()
    });
    pss.ok_or_else(|| Error::unmet(format!("no Pss in {text}")))
}

/// After much traffic on all lanes, a device uses at most 12 MB, and 3 MB more for each lane.
fn memory() -> Result<()> {
    const LANES: usize = 8;
    let mut ends = Ends::taupes([LANES, LANES])?;
    receive_on_all_lanes(&ends)?;
    let flows = Flows::new((&ends.near, NEAR), (&ends.far, FAR), 16)?;
    flows.exchange(datagrams()?)?;
    let process = ends.near_tunnel.process();
    let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
    let pss: Result<Vec<usize>> = process.all_ids().into_iter().map(proportional).collect();
    let pss: usize = pss?.iter().sum();
    figure("KiB", pss);
    ensure!(pss * 1024 <= (12 + 3 * LANES) * 1_000_000, "{pss} KiB");
    Ok(())
}
