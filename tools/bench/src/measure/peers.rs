//! What many peers cost a server.

use super::iperf::{self, Direction, Flow, Transfer};
use super::latency::{self, RoundTrips};
use super::memory::{self, Resident};
use super::servers::Servers;
use crate::contestant::Contestant;
use crate::session::Session;
use std::time::{Duration, Instant};
use taupe_lab::error::Result;

/// Round trips that are measured with the peers there.
const ROUND_TRIPS: usize = 1000;

const FLOW: Flow = Flow {
    direction: Direction::Up,
    streams: 1,
    seconds: 1,
};

/// A server with many peers.
#[derive(Debug, Clone, PartialEq)]
pub struct Peers {
    /// How long it took to add one, on average, with what configures them all at once;
    /// `None` when none were added.
    pub setup: Option<Duration>,
    /// What the server's programs hold with them; `None` where there are none.
    pub resident: Option<Resident>,
    /// One second of TCP upwards, of the one peer that there is.
    pub transfer: Transfer,
    /// Round trips of that peer.
    pub round_trips: RoundTrips,
}

/// Adds so many peers to those that the server has, and measures how it fares. `None` for
/// what has no peers.
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

/// One second of TCP upwards with so many peers more, which are there, and without them:
/// they are taken away and added again. `None` for what has no peers.
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
