//! Small worlds for the tests of the checkers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use taupe_protocol::Session;

use crate::plan::{Edge, Episode, HOUR, MILLISECOND, Nanos, SECOND};
use crate::sessions::Sessions;
use crate::world::World;
use crate::world::traffic::Packets;

/// Returns an episode with two peers and no events.
pub(crate) fn episode(keepalive: u16) -> Episode {
    static SEED: AtomicU64 = AtomicU64::new(0);
    Episode {
        seed: SEED.fetch_add(1, Ordering::Relaxed),
        hosts: 2,
        duration: HOUR,
        edges: vec![Edge {
            a: 0,
            b: 1,
            preshared: true,
            endpoint: [true, true],
            keepalive: [keepalive, 0],
            hybrid: None,
            narrow: false,
        }],
        events: Vec::new(),
    }
}

/// Returns its world, started.
pub(crate) fn world(episode: &Episode) -> World<'_> {
    let mut world = World::new(episode, &taupe_crypto::AWS_LC, false);
    world.start().unwrap();
    world
}

/// Returns the responder's end of a session that host 0 has initiated, observed as one with `peer`,
/// before anything has been received with it.
pub(crate) fn responded(peer: usize) -> (Sessions, Vec<Arc<Session>>, Nanos) {
    let episode = episode(0);
    let mut world = world(&episode);
    world.send(0, 1, &Packets::one(60, false)).unwrap();
    world.run_until(30 * MILLISECOND).unwrap();
    let alive = world.hosts[1].node.as_ref().unwrap().device.sessions();
    assert_eq!(alive.len(), 1);
    let mut sessions = Sessions::default();
    assert_eq!(sessions.observe(peer, &alive).unwrap(), 1);
    let born = alive[0].born().0;
    (sessions, alive, born)
}

/// Returns a session that host 0 has initiated, observed as one with `peer`, and its creation time.
pub(crate) fn sessions(peer: usize) -> (Sessions, Vec<Arc<Session>>, Nanos) {
    let alive = session_of(&episode(0));
    let mut sessions = Sessions::default();
    assert_eq!(sessions.observe(peer, &alive).unwrap(), 1);
    let born = alive[0].born().0;
    (sessions, alive, born)
}

/// Returns the session that host 0 initiates in the world of an episode.
pub(crate) fn session_of(episode: &Episode) -> Vec<Arc<Session>> {
    let mut world = world(episode);
    world.send(0, 1, &Packets::one(60, false)).unwrap();
    world.run_until(SECOND).unwrap();
    let alive = world.hosts[0].node.as_ref().unwrap().device.sessions();
    assert_eq!(alive.len(), 1);
    alive
}
