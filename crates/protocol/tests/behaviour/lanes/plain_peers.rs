//! A device with lanes and a peer without.

use std::sync::mpsc;
use std::thread;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::message::Kind;
use taupe_protocol::update::PeerUpdate;
use taupe_protocol::{LaneId, Lanes, Outbound};

use super::{connected, headers, packet_from, receiving};
use crate::common::packets::ipv4;
use crate::common::raw::{RawSession, shake, with_stranger_to};
use crate::common::{Net, Outcome, RAW_INNER, label, secs};

/// Returns a device with eight lanes and a peer that the test plays, after a handshake with `index`.
fn with_raw(index: u32) -> (Net, RawSession) {
    let (mut net, raw) = with_stranger_to(default_provider(), Lanes::Eight);
    let session = shake(&mut net, &raw, index, label(0));
    net.inject(0, raw.address, &session.seal(0, &[]));
    (net, session)
}

fn lane(number: usize) -> LaneId {
    LaneId::new(number).expect("below 16")
}

/// Sends packets on all lanes, and returns their counters.
fn counters(net: &mut Net, session: &RawSession, rounds: usize) -> Vec<u64> {
    let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"out");
    let mark = net.mark();
    for round in 0..rounds {
        for number in 0..8 {
            net.lane = lane(number);
            let sent = net.send_batch(0, &packet, 1 + (round + number) % 9);
            assert_eq!(sent, Outcome::Sent);
        }
    }
    let sent = net.since(mark, 0);
    let data = sent.iter().filter(|datagram| datagram.kind() == Kind::Data);
    data.map(|datagram| session.open(&datagram.bytes).expect("authentic").0)
        .collect()
}

#[test]
fn a_peer_without_lanes_gets_consecutive_counters() {
    let (mut net, session) = with_raw(7);
    let counters = counters(&mut net, &session, 20);
    assert!(counters.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let status = net.nodes[0].device.status().peers[0].lanes;
    let status = status.expect("a session");
    assert_eq!([status.receiving, status.remote], [Lanes::One; 2]);
}

#[test]
fn a_peer_without_lanes_is_received_on_one_lane() {
    let (net, session) = with_raw(7);
    let steering = net.nodes[0].path.steering();
    let mut at: Vec<LaneId> = (0..10_000)
        .map(|counter| steering.lane_of(session.remote_index, counter))
        .collect();
    at.dedup();
    assert_eq!(at.len(), 1);
}

/// The random index of a peer without lanes may pass for a tag.
#[test]
fn a_tag_by_chance_does_no_harm() {
    let (mut net, raw) = with_stranger_to(default_provider(), Lanes::Eight);
    let index = raw.index(1, Lanes::Four, [3, 4], label(0));
    let session = shake(&mut net, &raw, index, label(0));
    net.inject(0, raw.address, &session.seal(0, &[]));
    let status = net.nodes[0].device.status().peers[0].lanes;
    assert_eq!(status.map(|lanes| lanes.remote), Some(Lanes::Four));
    // The peer's counters are consecutive, and may arrive in another order.
    let packet = ipv4(RAW_INNER, net.nodes[0].inner, b"in");
    for block in 0..40_u64 {
        for counter in (1..=256).rev().map(|place| block * 256 + place) {
            net.inject(0, raw.address, &session.seal(counter, &packet));
            net.inject(0, raw.address, &session.seal(counter, &packet));
        }
    }
    assert_eq!(net.nodes[0].delivered.len(), 40 * 256);
    // The device's counters are unique, and fit the smallest window.
    let mut sent = counters(&mut net, &session, 100);
    let mut newest = 0;
    for counter in &sent {
        newest = newest.max(*counter);
        assert!(newest - counter < 1_024 + 64);
    }
    let count = sent.len();
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), count);
}

/// The tag that the device computes is the documented one.
#[test]
fn a_response_can_state_lanes_too() {
    let (mut net, raw) = with_stranger_to(default_provider(), Lanes::Eight);
    let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"out");
    assert_eq!(net.send(0, &packet), Outcome::Staged);
    let initiation = net.last(0, Kind::Initiation).bytes;
    let timestamp = raw.label(&initiation).expect("authentic");
    let index = raw.index(2, Lanes::Two, [0, 0], timestamp);
    let (response, session) = raw.answer(&initiation, index).expect("authentic");
    net.inject(0, raw.address, &response);
    let status = net.nodes[0].device.status().peers[0].lanes;
    assert_eq!(status.map(|lanes| lanes.remote), Some(Lanes::Two));
    let counters = counters(&mut net, &session, 10);
    assert!(counters.windows(2).any(|pair| pair[1] != pair[0] + 1));
}

#[test]
fn a_device_with_one_lane_is_a_peer_without() {
    let mut net = connected(default_provider(), [Lanes::Eight, Lanes::One]);
    let packet = packet_from(&net, 0);
    let mark = net.mark();
    for number in 0..8 {
        net.lane = lane(number);
        assert_eq!(net.send_batch(0, &packet, 3), Outcome::Sent);
    }
    let counters: Vec<u64> = headers(&net, mark, 0).iter().map(|(_, it)| *it).collect();
    assert!(counters.windows(2).all(|pair| pair[1] == pair[0] + 1));
    assert_eq!(receiving(&net, 0), Lanes::One);
}

#[test]
fn lanes_send_one_after_the_other() {
    let (mut net, session) = with_raw(7);
    let key = net.nodes[0].device.status().peers[0].public_key;
    let peer = net.nodes[0].peer(&key);
    let local = peer.session().expect("a session");
    let (path, now) = (net.nodes[0].path.clone(), net.now);
    let reserve = |number| match path.reserve_on(lane(number), now, &peer, 2, 96) {
        Outbound::Send(reservation) => reservation,
        _ => panic!("there is no session"),
    };
    let mut first = reserve(0);
    let (sent, order) = mpsc::channel();
    thread::scope(|scope| {
        for number in 1..4 {
            let (sent, reserve) = (sent.clone(), &reserve);
            scope.spawn(move || {
                let mut reservation = reserve(number);
                let mut batch = vec![0; 96];
                assert_eq!(reservation.seal(&mut batch, 48), 96);
                sent.send(batch).expect("the receiver is alive");
            });
        }
        while local.waiting_lanes() < 3 {
            thread::yield_now();
        }
        assert!(order.try_recv().is_err(), "a lane did not wait");
        let mut batch = vec![0; 96];
        assert_eq!(first.seal(&mut batch, 48), 96);
        sent.send(batch).expect("the receiver is alive");
        drop(first);
    });
    let batches: Vec<Vec<u8>> = order.try_iter().collect();
    let counters: Vec<u64> = batches
        .iter()
        .flat_map(|batch| batch.chunks(48))
        .map(|message| session.open(message).expect("authentic").0)
        .collect();
    assert_eq!(counters.len(), 8);
    assert!(
        counters.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{counters:?}"
    );
    assert_eq!(local.waiting_lanes(), 0);
}

/// The control loop never waits for a lane, and lanes of other peers do not.
#[test]
fn a_reservation_delays_only_lanes_of_its_session() {
    let (mut net, _) = with_raw(7);
    let key = net.nodes[0].device.status().peers[0].public_key;
    let peer = net.nodes[0].peer(&key);
    let path = net.nodes[0].path.clone();
    let Outbound::Send(reservation) = path.reserve_on(lane(2), net.now, &peer, 1, 48) else {
        panic!("there is no session");
    };
    // Keepalives and a handshake.
    let mut update = PeerUpdate::new(key);
    update.persistent_keepalive = Some(1);
    net.update(0, update);
    let mark = net.mark();
    net.advance(secs(130));
    assert!(net.keepalives(mark, 0).len() > 100);
    drop(reservation);
}
