//! Genuine and changed parts of hybrid handshakes, for both devices of a pair.

use taupe_protocol::crypto::default_provider;
use taupe_protocol::hybrid::{Half, Part, Side, Suite};
use taupe_protocol::message::Kind;
use taupe_protocol::testing::PeerSnapshot;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::PeerUpdate;

use crate::common::hybrid::Thief;
use crate::common::raw::stamp_for;
use crate::common::snapshot::Snapshot;
use crate::common::{Datagram, Net, WALL, millis, secs, stranger};
use crate::input::Input;

/// Steps in one run: enough for a cookie, and a handshake with repeated parts.
const MAX_STEPS: usize = 16;
/// Bytes of mac1 and mac2.
const MACS: usize = 32;

/// Reads `data` as a suite and a list of steps. Each step sends a part to a device, changes it, and
/// may recompute mac1 or put the device under load.
///
/// A part that no peer has made changes no state of a device, and gets no answer but a cookie. A
/// part of an impersonator with the peer's X25519 key may be answered, but changes no established state.
/// Afterwards the two devices can still shake hands.
pub fn parts(data: &[u8]) {
    let crypto = default_provider();
    let mut input = Input(data);
    let suite = Suite::ALL[usize::from(input.byte()) % Suite::ALL.len()];
    let mut net = Net::hybrid_pair(crypto, suite);
    net.cut();
    net.ping(0, 1);
    let mut impersonator = Thief::new(&net, 0, 1, suite);
    for step in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let control = input.byte();
        if control & 0x08 != 0 {
            net.advance(millis(50) * u32::from(input.byte()));
        }
        let Some(mut made) = make(&net, suite, &mut impersonator, step, control, &mut input) else {
            continue;
        };
        let original = made.bytes.clone();
        input.mutate(&mut made.bytes);
        let length = made.bytes.len();
        let unchanged =
            length == original.len() && made.bytes[..length - MACS] == original[..length - MACS];
        if control & 0x20 != 0 && length >= MACS {
            stamp_for(crypto, &net.nodes[made.to].public, &mut made.bytes);
            // A misbehaving peer could do this.
            let device = &mut net.nodes[made.to].device;
            if made.bytes.first() == Some(&(Side::Response as u8)) {
                device.write_response_macs(&mut made.bytes);
            }
        }
        net.nodes[made.to].backlog = if control & 0x10 != 0 { 512 } else { 0 };
        let source = if control & 0x40 != 0 {
            stranger()
        } else {
            net.nodes[1 - made.to].address
        };
        match made.author {
            Author::Peer if unchanged => net.inject(made.to, source, &made.bytes),
            Author::Impersonator if unchanged && suite.has_static_keys() => {
                changes_no_endpoint_or_session(&mut net, &made, source);
            }
            Author::Impersonator if unchanged => {}
            _ => changes_no_state(&mut net, &made, source),
        }
        let remaining = net
            .nodes
            .iter()
            .map(|node| node.device.provisional_handshakes());
        assert!(remaining.max() <= Some(4));
    }
    net.mend();
    for at in [0, 1] {
        net.nodes[at].backlog = 0;
        // Relaying an authentic message moves the endpoint (roaming). Set it back.
        let mut update = PeerUpdate::new(net.nodes[1 - at].public);
        update.endpoint = Some(net.nodes[1 - at].address);
        net.update(at, update);
    }
    net.advance(secs(12));
    let delivered = net.nodes[1].delivered.len();
    net.ping(0, 1);
    assert_eq!(net.nodes[1].delivered.len(), delivered + 1);
    assert_eq!(net.suite(0, 1), Some(Some(suite)));
    assert_eq!(net.suite(1, 0), Some(Some(suite)));
}

/// Author of a part.
enum Author {
    Peer,
    Impersonator,
    Nobody,
}

struct HostilePart {
    bytes: Vec<u8>,
    /// The device that receives it.
    to: usize,
    author: Author,
}

/// Returns the part of a step: one that was sent, one of the impersonator, or arbitrary bytes with the
/// header and the indices of a part.
fn make(
    net: &Net,
    suite: Suite,
    impersonator: &mut Thief,
    step: usize,
    control: u8,
    input: &mut Input<'_>,
) -> Option<HostilePart> {
    let sent: Vec<&Datagram> = net.log.iter().filter(|sent| is_part(sent)).collect();
    let at = usize::from(input.byte());
    let sent = *sent.get(at % sent.len().max(1))?;
    let to = usize::from(sent.from == Some(0));
    let mut bytes = sent.bytes.clone();
    match control & 7 {
        0..4 => Some(HostilePart {
            bytes,
            to,
            author: Author::Peer,
        }),
        // The part returns to its sender.
        4 => Some(HostilePart {
            bytes,
            to: 1 - to,
            author: Author::Nobody,
        }),
        5 => {
            let label = Tai64N::from_wall(WALL + secs(1000 + step as u64));
            let mut begun = impersonator.begin(u32::from_le_bytes([1, 2, 3, step as u8]), label);
            let bytes = begun.parts.swap_remove(at % begun.parts.len());
            Some(HostilePart {
                bytes,
                to: 1,
                author: Author::Impersonator,
            })
        }
        _ => {
            let part = Part {
                suite,
                side: [Side::Initiation, Side::Response][1 - to],
                half: [Half::A, Half::B][at % 2],
            };
            let part = Part::of(part.header())?;
            bytes.resize(part.len(), 0);
            bytes[..4].copy_from_slice(&part.header());
            // Change bytes after the indices, as many as the input has.
            for (byte, other) in bytes[12..].iter_mut().zip(input.take(200)) {
                *byte ^= other | 1;
            }
            bytes[20] ^= 1;
            Some(HostilePart {
                bytes,
                to,
                author: Author::Nobody,
            })
        }
    }
}

fn is_part(sent: &Datagram) -> bool {
    matches!(sent.kind(), Kind::HybridInitiation | Kind::HybridResponse)
}

/// Injects a datagram whose author has no key, and checks that the device's state stays the same.
fn changes_no_state(net: &mut Net, made: &HostilePart, source: std::net::SocketAddr) {
    let before = Snapshot::of(&mut net.nodes[made.to]);
    let mark = net.mark();
    net.inject(made.to, source, &made.bytes);
    let after = Snapshot::of(&mut net.nodes[made.to]);
    let changed = &made.bytes;
    assert!(
        before == after,
        "changed by {changed:02x?}\n{before:#?}\n{after:#?}"
    );
    let answers = net.kinds(mark, made.to);
    assert!(answers.iter().all(|kind| *kind == Kind::CookieReply));
}

/// Injects a part whose author has the peer's X25519 key but not its ML-KEM key, and checks that
/// only provisional state changes.
fn changes_no_endpoint_or_session(net: &mut Net, made: &HostilePart, source: std::net::SocketAddr) {
    let peer = net.nodes[1 - made.to].public;
    let state = |net: &mut Net| {
        let snapshot = net.nodes[made.to].device.snapshot(&peer);
        snapshot.map(PeerSnapshot::without_provisional_effects)
    };
    let before = state(net);
    net.inject(made.to, source, &made.bytes);
    let after = state(net);
    assert!(before == after, "moved: {before:#?}\n{after:#?}");
}

/// Returns seeds for each suite.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    /// Control byte of a mutation that changes nothing.
    const AS_IT_IS: u8 = 0;
    const LATER: u8 = 0x08;
    const LOAD: u8 = 0x10;
    const STAMP: u8 = 0x20;
    const STRANGER: u8 = 0x40;
    let mut seeds = Vec::new();
    for (number, suite) in (0..).zip(Suite::ALL) {
        let each = if suite.has_static_keys() { 2 } else { 1 };
        let seed = |steps: &[&[u8]]| [&[number][..], &steps.concat()].concat();
        let full: Vec<[u8; 3]> = (0..2 * each).map(|at| [0, at, AS_IT_IS]).collect();
        let full: Vec<&[u8]> = full.iter().map(|step| &step[..]).collect();
        seeds.push(seed(&full));
        let twice: Vec<&[u8]> = full.iter().flat_map(|step| [*step, *step]).collect();
        seeds.push(seed(&twice));
        let backwards: Vec<&[u8]> = full.iter().rev().chain(&full).copied().collect();
        seeds.push(seed(&backwards));
        // Repeated after 0.25 s, and answered again; under load, and with the cookie.
        let again = [LATER, 5, 2 * each, AS_IT_IS];
        seeds.push(seed(&[full[0], &again, &again]));
        let under_load = [LOAD, 0, AS_IT_IS];
        seeds.push(seed(&[&under_load, &again, full[0]]));
        for at in 0..2 * each {
            // A changed bit in each field, with mac1 recomputed, and then the genuine part.
            for place in [0_u16, 2, 5, 9, 20, 60, 200, 800] {
                let [low, high] = place.to_le_bytes();
                let flipped = [STAMP, at, 1, low, high, 1];
                let steps: Vec<&[u8]> = full[..usize::from(at)]
                    .iter()
                    .copied()
                    .chain([&flipped[..]])
                    .chain(full[usize::from(at)..].iter().copied())
                    .collect();
                seeds.push(seed(&steps));
            }
            // To the wrong device; made up; from a stranger's address.
            seeds.push(seed(&[&[4 | STAMP, at, AS_IT_IS]]));
            seeds.push(seed(&[&[6 | STAMP, at], &[7; 200], &[AS_IT_IS], full[0]]));
            seeds.push(seed(&[&[STRANGER, at, AS_IT_IS], full[0]]));
        }
        for half in 0..each {
            seeds.push(seed(&[&[5, half, AS_IT_IS], full[0], &[5, half, AS_IT_IS]]));
            seeds.push(seed(&[&[5 | STRANGER | STAMP, half, 1, 99, 0, 1], full[0]]));
        }
    }
    seeds
}
