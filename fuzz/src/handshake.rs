//! Genuine and changed handshake messages for a device that has a session with one peer and waits
//! for the response of another.

use taupe_protocol::crypto::default_provider;
use taupe_protocol::message::Kind;

use crate::common::raw::Raw;
use crate::common::snapshot::Snapshot;
use crate::common::world::World;
use crate::common::{label, millis, private_key, stranger};
use crate::input::Input;

/// Steps in one run: enough for a replay, a cookie and a handshake.
const MAX_STEPS: usize = 12;

/// Reads `data` as a list of steps. Each step selects a message, changes it, and may recompute mac1
/// or put the device under load.
///
/// A message changes the device's state only if its authenticated fields are exactly those of a
/// message that a peer has just made. The device never has more than three sessions with a peer.
pub fn handshake(data: &[u8]) {
    let mut world = World::new(default_provider());
    let mut input = Input(data);
    let mut taken: Option<Vec<u8>> = None;
    let mut labels = 1000;
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let control = input.byte();
        if control & 0x08 != 0 {
            world.net.advance(millis(50) * u32::from(input.byte()));
        }
        world.net.nodes[0].backlog = if control & 0x10 != 0 { 512 } else { 0 };
        labels += 1;
        // The message, and the range that its sender's keys authenticate.
        let (original, vouched) = match control & 7 {
            0 => (
                world.peer.begin(labels, label(labels)).message,
                Some(8..116),
            ),
            1 => (response(&world), Some(8..60)),
            2 => (cookie_reply(&world, Kind::Initiation), Some(0..64)),
            3 => (cookie_reply(&world, Kind::Response), Some(0..64)),
            4 => (input.take(148).to_vec(), None),
            5 => {
                let at = usize::from(input.byte()) % world.net.log.len();
                (world.net.log[at].bytes.clone(), None)
            }
            6 => {
                let node = world.peer.remote;
                let other = Raw::new(default_provider(), private_key(66), node, stranger());
                (other.begin(labels, label(labels)).message, None)
            }
            _ => (taken.clone().unwrap_or_default(), None),
        };
        let mut message = original.clone();
        input.mutate(&mut message);
        if control & 0x20 != 0 && message.len() >= 32 {
            world.peer.stamp(&mut message);
        }
        let genuine = vouched.is_some_and(|range| {
            message.len() == original.len()
                && message[..4] == original[..4]
                && message[range.clone()] == original[range]
        });
        let before = Snapshot::of(&mut world.net.nodes[0]);
        let source = if control & 0x40 != 0 {
            stranger()
        } else {
            world.peer.address
        };
        world.net.inject(0, source, &message);
        let after = Snapshot::of(&mut world.net.nodes[0]);
        if !genuine {
            assert!(
                before == after,
                "changed by {message:02x?}\n{before:#?}\n{after:#?}"
            );
        } else if before != after {
            taken = Some(message);
        }
        let sessions = world.net.nodes[0].device.sessions().len();
        assert!(sessions <= 6, "{sessions} sessions with two peers");
    }
}

/// Returns the response of the other peer to the last initiation.
fn response(world: &World) -> Vec<u8> {
    let sent = last(world, Kind::Initiation);
    let answer = world.other.answer(&sent, 21);
    answer.map(|(response, _)| response).unwrap_or_default()
}

fn cookie_reply(world: &World, kind: Kind) -> Vec<u8> {
    let peer = match kind {
        Kind::Initiation => &world.other,
        _ => &world.peer,
    };
    peer.cookie_reply(&last(world, kind), &[0x5a; 16])
}

fn last(world: &World, kind: Kind) -> Vec<u8> {
    world.net.last(0, kind).bytes
}
