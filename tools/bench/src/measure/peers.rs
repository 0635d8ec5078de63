//! Cost of many peers on a server.

use super::iperf::{self, Direction, Flow, Transfer};
use super::latency::{self, RoundTrips};
use super::memory::{self, Resident};
use super::servers::Servers;
use crate::contestant::Contestant;
use crate::session::Session;
use std::time::{Duration, Instant};
use taupe_lab::error::Result;

/// Round trips measured with all peers configured.
const ROUND_TRIPS: usize = 1000;

const FLOW: Flow = Flow {
    direction: Direction::Up,
    streams: 1,
    seconds: 1,
};

/// Results for a server with many peers.
#[derive(Debug, Clone, PartialEq)]
pub struct Peers {
    /// Mean time to add one peer, when all are configured at once; `None` if none were added.
    pub setup: Option<Duration>,
    /// Memory of the server's programs with these peers; `None` without any programs.
    pub resident: Option<Resident>,
    /// One second of TCP up, from the only peer that exists as a machine.
    pub transfer: Transfer,
    /// Round trips of that peer.
    pub round_trips: RoundTrips,
}

/// Adds `count` peers to those of the server, and measures the server. `None` if the contestant has
/// no peers.
pub fn add(
    contestant: &dyn Contestant,
    session: &Session,
    servers: &mut Servers,
    count: usize,
) -> Option<Result<Peers>> {
    let begin = Instant::now();
    let added = contestant.add_peers(&session.pair, &session.server, count)?;
    let setup = u32::try_from(count).ok();
    let setup = setup.and_then(|count| begin.elapsed().checked_div(count));
    Some(added.and_then(|()| with_peers(session, servers, setup)))
}

/// Measures one second of TCP up with the additional peers and without them: they are removed and
/// added again. `None` if the contestant has no peers.
pub fn in_turn(
    contestant: &dyn Contestant,
    session: &Session,
    servers: &mut Servers,
    count: usize,
) -> Option<Result<[Transfer; 2]>> {
    let (pair, server) = (&session.pair, &session.server);
    let with = iperf::transfer(session, servers, FLOW);
    let removed = contestant.remove_peers(pair, server)?;
    let without = removed.and_then(|()| iperf::transfer(session, servers, FLOW));
    let added = contestant.add_peers(pair, server, count)?;
    Some(added.and_then(|()| Ok([with?, without?])))
}

fn with_peers(session: &Session, servers: &mut Servers, setup: Option<Duration>) -> Result<Peers> {
    let end = &session.server;
    Ok(Peers {
        setup,
        resident: match end.processes[..] {
            [] => None,
            [_, ..] => Some(memory::of(end)?),
        },
        transfer: iperf::transfer(session, servers, FLOW)?,
        round_trips: latency::idle(session, ROUND_TRIPS)?,
    })
}
