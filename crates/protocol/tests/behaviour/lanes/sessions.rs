//! Sessions of devices with lanes: the peer's number of lanes, and renewal.

use std::collections::BTreeSet;

use taupe_protocol::Lanes;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::limits::SPREAD_AFTER_BYTES;
use taupe_protocol::message::Kind;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::DeviceUpdate;

use super::{combinations, connected, is_striped, packet_from, receiving, renew, renewed};
use super::{send_on_all, status};
use crate::common::node::node;
use crate::common::packets::sized;
use crate::common::raw::word;
use crate::common::{Net, Outcome, millis, private_key, secs};

/// Sends on all lanes of both devices and checks that everything arrives.
fn assert_exchange(net: &mut Net) {
    for node in [0, 1] {
        let before = net.nodes[1 - node].delivered.len();
        send_on_all(net, node, 70, 7);
        let sent = 70 * net.nodes[node].path.steering().lanes().count();
        assert_eq!(net.nodes[1 - node].delivered.len() - before, sent);
    }
}

#[test]
fn the_initiator_learns_the_lanes_from_the_response() {
    for lanes in combinations() {
        let net = connected(default_provider(), lanes);
        let expected = lanes[0].min(lanes[1]);
        assert_eq!(receiving(&net, 0), Lanes::One, "{lanes:?}");
        assert_eq!(receiving(&net, 1), expected, "{lanes:?}");
        for node in [0, 1] {
            let remote = status(&net, node).map(|lanes| lanes.remote);
            // A device with one lane neither states nor reads a number of lanes.
            let known = if is_striped(lanes) {
                lanes[1 - node]
            } else {
                Lanes::One
            };
            let expected = (lanes[node] > Lanes::One).then_some(known);
            assert_eq!(remote, expected, "{lanes:?}");
        }
    }
}

#[test]
fn a_first_session_with_much_data_is_renewed() {
    let mut net = connected(default_provider(), [Lanes::Four, Lanes::Two]);
    let packet = sized(net.nodes[1].inner, net.nodes[0].inner, 1400, 1);
    let received = |net: &Net| net.nodes[0].device.status().peers[0].rx_bytes;
    let before = received(&net);
    net.advance(secs(6));
    let mark = net.mark();
    while received(&net) - before < SPREAD_AFTER_BYTES - 100_000 {
        assert_eq!(net.send_batch(1, &packet, 64), Outcome::Sent);
    }
    assert_eq!(net.times(mark, 0, Kind::Initiation), []);
    assert_eq!(receiving(&net, 0), Lanes::One);
    assert_eq!(net.send_batch(1, &packet, 128), Outcome::Sent);
    assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1);
    assert_eq!(receiving(&net, 0), Lanes::Two);
    // The second session has the right number of lanes.
    let mark = net.mark();
    while received(&net) - before < 3 * SPREAD_AFTER_BYTES {
        assert_eq!(net.send_batch(1, &packet, 64), Outcome::Sent);
    }
    net.advance(secs(6));
    assert_eq!(net.times(mark, 0, Kind::Initiation), []);
    assert_exchange(&mut net);
}

#[test]
fn a_renewal_waits_for_rekey_timeout() {
    let mut net = connected(default_provider(), [Lanes::Two; 2]);
    let packet = sized(net.nodes[1].inner, net.nodes[0].inner, 1400, 1);
    for _ in 0..SPREAD_AFTER_BYTES / 64 / 1400 + 1 {
        assert_eq!(net.send_batch(1, &packet, 64), Outcome::Sent);
    }
    assert_eq!(receiving(&net, 0), Lanes::One);
    net.advance(millis(4_999));
    assert_eq!(receiving(&net, 0), Lanes::One);
    net.advance(millis(400));
    assert_eq!(receiving(&net, 0), Lanes::Two);
}

#[test]
fn later_sessions_have_the_lanes_of_the_first() {
    for initiator in [0, 1] {
        let mut net = renewed(default_provider(), [Lanes::Eight, Lanes::Four]);
        for _ in 0..3 {
            renew(&mut net, initiator);
            assert_eq!([0, 1].map(|node| receiving(&net, node)), [Lanes::Four; 2]);
            assert_exchange(&mut net);
        }
    }
}

#[test]
fn an_old_session_is_renewed_while_lanes_send() {
    let mut net = renewed(default_provider(), [Lanes::Four; 2]);
    let mark = net.mark();
    for _ in 0..30 {
        net.advance(secs(10));
        assert_exchange(&mut net);
    }
    let initiations = net.times(mark, 0, Kind::Initiation);
    assert!((2..=3).contains(&initiations.len()), "{initiations:?}");
    assert_eq!([0, 1].map(|node| receiving(&net, node)), [Lanes::Four; 2]);
}

#[test]
fn hybrid_handshakes_say_the_lanes_too() {
    for suite in Suite::ALL {
        for lanes in combinations() {
            let mut net = Net::with_lanes(default_provider(), &lanes);
            net.join(0, 1);
            net.make_hybrid(0, 1, suite);
            assert_eq!(net.ping(0, 1), Outcome::Staged);
            assert_eq!(net.suite(0, 1), Some(Some(suite)));
            let expected = lanes[0].min(lanes[1]);
            assert_eq!(receiving(&net, 1), expected, "{suite:?} {lanes:?}");
            renew(&mut net, 0);
            assert_eq!(receiving(&net, 0), expected, "{suite:?} {lanes:?}");
            assert_exchange(&mut net);
        }
    }
}

#[test]
fn a_peer_that_restarts_with_other_lanes_gets_them() {
    let crypto = default_provider();
    for (before, after) in [
        (Lanes::Four, Lanes::Two),
        (Lanes::Two, Lanes::Eight),
        (Lanes::Four, Lanes::One),
        (Lanes::One, Lanes::Four),
    ] {
        let mut net = renewed(crypto, [Lanes::Four, before]);
        net.nodes[1] = node(crypto, 1, after, net.now);
        let peer = net.peer_update(0);
        net.update(1, peer);
        // Node 0 notices that its packets are not answered, and begins a handshake.
        assert_eq!(net.ping(0, 1), Outcome::Sent);
        net.advance(secs(20));
        let expected = after.min(Lanes::Four);
        assert_eq!(receiving(&net, 1), expected);
        if after > before {
            // It learns the greater number only from the response.
            assert_eq!(receiving(&net, 0), before);
            renew(&mut net, 0);
        } else {
            // Messages of one lane would arrive on several.
            assert_eq!(net.ping(1, 0), Outcome::Sent);
            net.advance(secs(6));
        }
        assert_eq!(receiving(&net, 0), expected);
        assert_exchange(&mut net);
    }
}

#[test]
fn a_new_private_key_keeps_the_lanes() {
    let mut net = renewed(default_provider(), [Lanes::Two, Lanes::Four]);
    let (old, key) = (net.nodes[0].public, private_key(77));
    net.set_private_key(0, Some(key), Tai64N::ZERO);
    let mut removal = net.peer_update(0);
    removal.public_key = old;
    removal.remove = true;
    let peers = vec![removal, net.peer_update(0)];
    net.apply(
        1,
        DeviceUpdate {
            peers,
            ..DeviceUpdate::default()
        },
    );
    net.advance(secs(1));
    assert_eq!(net.ping(0, 1), Outcome::Staged);
    assert_eq!([0, 1].map(|node| receiving(&net, node)), [Lanes::Two; 2]);
    assert_exchange(&mut net);
}

#[test]
fn a_device_that_was_down_keeps_the_lanes() {
    let mut net = renewed(default_provider(), [Lanes::Four; 2]);
    net.set_down(0);
    assert_eq!(status(&net, 0), None);
    net.advance(secs(6));
    net.set_up(0);
    assert_eq!(net.ping(0, 1), Outcome::Staged);
    assert_eq!(receiving(&net, 0), Lanes::Four);
    assert_exchange(&mut net);
}

/// An observer sees the indices of handshakes. The indices of one peer have few classes, but differ.
#[test]
fn indices_do_not_come_up_again() {
    let mut net = renewed(default_provider(), [Lanes::Eight; 2]);
    let mark = net.mark();
    for _ in 0..400 {
        renew(&mut net, 0);
    }
    let packet = packet_from(&net, 0);
    assert_eq!(net.send(0, &packet), Outcome::Sent);
    for (node, kind) in [(0, Kind::Initiation), (1, Kind::Response)] {
        let sent = net.since(mark, node);
        let sent = sent.iter().filter(|datagram| datagram.kind() == kind);
        let indices: Vec<u32> = sent.map(|datagram| word(&datagram.bytes, 4)).collect();
        assert_eq!(indices.len(), 400);
        let different: BTreeSet<&u32> = indices.iter().collect();
        assert_eq!(different.len(), indices.len());
        let tags: BTreeSet<u32> = indices.iter().map(|index| index & 0xffff).collect();
        assert!(tags.len() > 380, "{} of 400", tags.len());
        for bit in 0..32 {
            let ones = indices.iter().filter(|index| *index >> bit & 1 == 1);
            let ones = ones.count();
            assert!(
                (100..300).contains(&ones),
                "bit {bit} is set in {ones} of 400"
            );
        }
    }
}

#[test]
fn peers_are_spread_over_the_lanes() {
    let lanes = [Lanes::Four; 9];
    let mut net = Net::with_lanes(default_provider(), &lanes);
    let mut bases = Vec::new();
    for peer in 1..9 {
        net.join(0, peer);
        assert_eq!(net.ping(peer, 0), Outcome::Staged);
        let key = net.nodes[peer].public;
        let session = net.nodes[0].current(&key).expect("a session");
        let steering = net.nodes[0].path.steering();
        bases.push(steering.lane_of(session.local_index(), 0).number());
    }
    bases.sort_unstable();
    assert_eq!(bases, [0, 0, 1, 1, 2, 2, 3, 3]);
}
