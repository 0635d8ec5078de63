//! Messages that arrive on a wrong lane.

use taupe_protocol::Lanes;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::message::Kind;
use taupe_protocol::update::LaneStatus;

use super::{connected, packet_from, receiving, renew, send_on_all, status};
use crate::common::{Net, Outcome, millis, secs};

const ONE_LANE: LaneStatus = LaneStatus {
    receiving: Lanes::One,
    remote: Lanes::Four,
    interleaved: true,
};

/// Returns two devices of which node 1 receives over four lanes.
fn spread() -> Net {
    let net = connected(default_provider(), [Lanes::Four; 2]);
    assert_eq!(receiving(&net, 1), Lanes::Four);
    net
}

/// Sends packets to node 1. It receives `right` of them on their own lane, and `wrong` on a wrong
/// lane.
fn send(net: &mut Net, right: usize, wrong: usize) {
    let packet = packet_from(net, 0);
    for (misplaces, count) in [(false, right), (true, wrong)] {
        net.misplaces = misplaces;
        for _ in 0..count {
            assert_eq!(net.send(0, &packet), Outcome::Sent);
        }
    }
    net.misplaces = false;
}

fn is_interleaved(net: &Net) -> bool {
    status(net, 1).expect("a session").interleaved
}

#[test]
fn more_than_one_percent_of_a_thousand_messages() {
    for (right, wrong, is_evidence) in [
        (990, 10, false),
        (989, 11, true),
        (0, 999, false),
        (0, 1_000, true),
        (1_980, 20, false),
        (1_979, 21, true),
    ] {
        let mut net = spread();
        // The interval in which the handshake's messages were counted ends.
        net.advance(millis(100));
        send(&mut net, right, wrong);
        assert_eq!(is_interleaved(&net), is_evidence, "{right} and {wrong}");
        assert_eq!(net.nodes[1].delivered.len(), 1 + right + wrong);
    }
}

#[test]
fn intervals_of_a_tenth_of_a_second() {
    let mut net = spread();
    for _ in 0..5 {
        net.advance(millis(100));
        send(&mut net, 0, 999);
    }
    assert!(!is_interleaved(&net));
    net.advance(millis(50));
    send(&mut net, 0, 1);
    assert!(is_interleaved(&net));
}

#[test]
fn the_next_sessions_have_one_lane() {
    let mut net = spread();
    net.advance(secs(6));
    let mark = net.mark();
    send(&mut net, 0, 1_000);
    // Node 1 has started a handshake at once.
    assert_eq!(net.times(mark, 1, Kind::Initiation).len(), 1);
    assert_eq!(status(&net, 1), Some(ONE_LANE));
    for node in [0, 1] {
        renew(&mut net, node);
        assert_eq!(status(&net, 1), Some(ONE_LANE));
        // The other direction does not change.
        assert_eq!(receiving(&net, 0), Lanes::Four);
        send_on_all(&mut net, 0, 70, 7);
        send_on_all(&mut net, 1, 70, 7);
    }
    assert_eq!(net.nodes[0].delivered.len(), 2 * 280);
    // Further messages start no handshake.
    let mark = net.mark();
    net.advance(secs(6));
    send(&mut net, 0, 2_000);
    net.advance(secs(6));
    assert_eq!(net.times(mark, 1, Kind::Initiation), []);
    // The fallback ends as soon as the device goes down.
    net.set_down(1);
    net.set_up(1);
    net.advance(secs(6));
    renew(&mut net, 0);
    assert_eq!(receiving(&net, 1), Lanes::Four);
}

#[test]
fn replays_and_forgeries_are_no_evidence() {
    let mut net = spread();
    net.advance(millis(100));
    let mark = net.mark();
    send(&mut net, 1_100, 0);
    let sent = net.since(mark, 0);
    net.misplaces = true;
    for datagram in &sent {
        net.deliver(datagram);
        let mut forged = datagram.clone();
        forged.bytes[20] ^= 1;
        // The forged counter has not been received yet.
        forged.bytes[10] ^= 1;
        net.deliver(&forged);
    }
    assert!(!is_interleaved(&net));
    assert_eq!(net.nodes[1].delivered.len(), 1 + 1_100);
}

#[test]
fn a_session_with_one_lane_is_no_evidence() {
    let mut net = spread();
    assert_eq!(receiving(&net, 0), Lanes::One);
    net.advance(millis(100));
    net.misplaces = true;
    send_on_all(&mut net, 1, 1_000, 1);
    assert_eq!(status(&net, 0).map(|lanes| lanes.interleaved), Some(false));
}
