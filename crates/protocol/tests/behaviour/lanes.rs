//! Devices with several lanes (docs/design/lanes.md).

mod interleaving;
mod plain_peers;
mod sessions;

use taupe_protocol::crypto::{Provider, default_provider};
use taupe_protocol::limits::{REJECT_AFTER_MESSAGES, REKEY_AFTER_MESSAGES};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, data_header};
use taupe_protocol::update::LaneStatus;
use taupe_protocol::{LaneId, Lanes, Outbound};

use crate::common::packets::ipv4;
use crate::common::{Net, Outcome, START, secs};
use crate::each_backend;

/// Numbers of lanes for tests with every combination of two devices.
const LANES: [Lanes; 4] = [Lanes::One, Lanes::Two, Lanes::Four, Lanes::Eight];

/// Returns every combination of the lanes of two devices.
fn combinations() -> impl Iterator<Item = [Lanes; 2]> {
    LANES.into_iter().flat_map(|a| LANES.map(|b| [a, b]))
}

fn is_striped(lanes: [Lanes; 2]) -> bool {
    lanes.iter().all(|lanes| *lanes > Lanes::One)
}

/// Returns two devices with these lanes after a handshake that node 0 began.
fn connected(crypto: &'static Provider, lanes: [Lanes; 2]) -> Net {
    let mut net = Net::with_lanes(crypto, &lanes);
    net.join(0, 1);
    assert_eq!(net.ping(0, 1), Outcome::Staged);
    assert_eq!(net.nodes[1].delivered.len(), 1, "the first packet arrives");
    net
}

/// Returns two devices after a second handshake that node 0 began, when it knew node 1's lanes.
fn renewed(crypto: &'static Provider, lanes: [Lanes; 2]) -> Net {
    let mut net = connected(crypto, lanes);
    renew(&mut net, 0);
    net
}

/// Performs a handshake that `node` begins.
fn renew(net: &mut Net, node: usize) {
    net.advance(secs(1));
    let (now, peer) = (net.now_at(node), net.nodes[1 - node].public);
    net.nodes[node].device.initiate(now, &peer);
    net.run();
}

/// Returns the lanes of the session with which `node` sends to the other node.
fn status(net: &Net, node: usize) -> Option<LaneStatus> {
    net.nodes[node].device.status().peers[0].lanes
}

/// Returns the number of lanes over which `node` receives.
fn receiving(net: &Net, node: usize) -> Lanes {
    status(net, node).map_or(Lanes::One, |lanes| lanes.receiving)
}

/// Sends `count` packets from `node` on each of its lanes in turn, in batches of `batch`.
fn send_on_all(net: &mut Net, node: usize, count: usize, batch: usize) {
    let packet = packet_from(net, node);
    for lane in net.nodes[node].path.steering().lanes().ids() {
        net.lane = lane;
        for _ in 0..count / batch {
            assert_eq!(net.send_batch(node, &packet, batch), Outcome::Sent);
        }
    }
}

fn packet_from(net: &Net, node: usize) -> Vec<u8> {
    ipv4(
        net.nodes[node].inner,
        net.nodes[1 - node].inner,
        b"ping....",
    )
}

/// Returns a batch that `lane` has sealed and not sent, and the length of each message.
fn sealed(net: &mut Net, node: usize, lane: LaneId, count: usize) -> (Vec<u8>, usize) {
    let mut packet = packet_from(net, node);
    packet.resize(packet.len().next_multiple_of(16), 0);
    let stride = packet.len() + DATA_OVERHEAD;
    let mut batch = vec![0; stride * count];
    for message in batch.chunks_mut(stride) {
        message[DATA_HEADER_LEN..][..packet.len()].copy_from_slice(&packet);
    }
    let peer = net.nodes[1 - node].public;
    let (now, peer) = (net.now, net.nodes[node].peer(&peer));
    let path = &net.nodes[node].path;
    let bytes = batch.len() as u64;
    let Outbound::Send(mut reservation) = path.reserve_on(lane, now, &peer, count as u64, bytes)
    else {
        panic!("there is no session");
    };
    assert_eq!(reservation.seal(&mut batch, stride), batch.len());
    (batch, stride)
}

/// Returns the receiver index and the counter of each data message that `node` has sent since
/// `mark`.
fn headers(net: &Net, mark: usize, node: usize) -> Vec<(u32, u64)> {
    let sent = net.since(mark, node);
    let data = sent.iter().filter(|datagram| datagram.kind() == Kind::Data);
    data.map(|datagram| data_header(&datagram.bytes).expect("data has a header"))
        .collect()
}

each_backend! {
    fn devices_with_any_lanes_exchange_packets(crypto) {
        for lanes in combinations() {
            let mut net = connected(crypto, lanes);
            for node in [0, 1] {
                let mark = net.mark();
                let before = net.nodes[1 - node].delivered.len();
                send_on_all(&mut net, node, 80, 20);
                send_on_all(&mut net, node, 70, 7);
                send_on_all(&mut net, node, 5, 1);
                let sent = 155 * lanes[node].count();
                assert_eq!(net.nodes[1 - node].delivered.len() - before, sent, "{lanes:?}");
                let headers = headers(&net, mark, node);
                let mut counters: Vec<u64> = headers.iter().map(|(_, counter)| *counter).collect();
                let has_gaps = counters.windows(2).any(|pair| pair[0] + 1 != pair[1]);
                assert_eq!(has_gaps, is_striped(lanes), "{lanes:?}");
                counters.sort_unstable();
                counters.dedup();
                assert_eq!(counters.len(), sent, "{lanes:?}");
            }
        }
    }
}

#[test]
fn each_lane_of_the_sender_has_one_lane_of_the_receiver() {
    for lanes in combinations() {
        let mut net = renewed(default_provider(), lanes);
        let expected = lanes[0].min(lanes[1]);
        for node in [0, 1] {
            assert_eq!(receiving(&net, 1 - node), expected, "{lanes:?}");
            let steering = *net.nodes[1 - node].path.steering();
            let packet = packet_from(&net, node);
            let mut used = Vec::new();
            for lane in lanes[node].ids() {
                net.lane = lane;
                let mark = net.mark();
                for _ in 0..20 {
                    assert_eq!(net.send_batch(node, &packet, 50), Outcome::Sent);
                }
                let mut at: Vec<LaneId> = headers(&net, mark, node)
                    .into_iter()
                    .map(|(index, counter)| steering.lane_of(index, counter))
                    .collect();
                at.dedup();
                assert!(
                    !is_striped(lanes) || at.len() == 1,
                    "{lanes:?}: {lane:?} on {at:?}"
                );
                used.extend(at);
            }
            used.sort_unstable();
            used.dedup();
            assert_eq!(used.len(), expected.count(), "{lanes:?}: {used:?}");
        }
    }
}

#[test]
fn a_lane_that_is_far_behind_loses_nothing() {
    for lanes in combinations().filter(|lanes| is_striped(*lanes)) {
        let mut net = connected(default_provider(), lanes);
        for node in [0, 1] {
            for stalled in lanes[node].ids() {
                let (batch, stride) = sealed(&mut net, node, stalled, 130);
                // The other lanes send 10^5 messages meanwhile.
                let last = data_header(&batch[batch.len() - stride..])
                    .expect("a header")
                    .1;
                let peer = net.nodes[1 - node].public;
                let ahead = last + 100_000;
                net.nodes[node].device.set_counter_for_test(&peer, ahead);
                let packet = packet_from(&net, node);
                for lane in lanes[node].ids().filter(|lane| *lane != stalled) {
                    net.lane = lane;
                    assert_eq!(net.send_batch(node, &packet, 70), Outcome::Sent);
                }
                let before = net.nodes[1 - node].delivered.len();
                let source = net.nodes[node].address;
                net.inject_batch(1 - node, source, &batch, stride);
                let delivered = net.nodes[1 - node].delivered.len() - before;
                assert_eq!(delivered, 130, "{lanes:?}: {stalled:?}");
                // A repeated batch is dropped.
                net.inject_batch(1 - node, source, &batch, stride);
                assert_eq!(net.nodes[1 - node].delivered.len() - before, 130);
            }
        }
    }
}

#[test]
fn a_lane_keeps_its_window_while_another_sends_a_hundred_thousand() {
    let mut net = connected(default_provider(), [Lanes::Two; 2]);
    let [first, second] = [0, 1].map(|lane| LaneId::new(lane).expect("below 16"));
    let (stalled, stride) = sealed(&mut net, 0, first, 64);
    let source = net.nodes[0].address;
    for _ in 0..100 {
        let (batch, stride) = sealed(&mut net, 0, second, 1_000);
        net.receive(1, source, &batch, stride);
    }
    assert_eq!(net.nodes[1].delivered.len(), 1 + 100_000);
    net.receive(1, source, &stalled, stride);
    assert_eq!(net.nodes[1].delivered.len(), 1 + 100_064);
}

#[test]
fn a_lane_that_was_idle_continues_near_the_others() {
    let mut net = connected(default_provider(), [Lanes::Eight; 2]);
    let packet = packet_from(&net, 0);
    net.lane = LaneId::new(3).expect("below 16");
    for _ in 0..50 {
        net.send_batch(0, &packet, 100);
    }
    let newest = headers(&net, 0, 0).last().expect("sent").1 / 64;
    net.lane = LaneId::new(5).expect("below 16");
    let mark = net.mark();
    net.send_batch(0, &packet, 1);
    let block = headers(&net, mark, 0)[0].1 / 64;
    assert!(block.abs_diff(newest) <= 8, "{block} beside {newest}");
    assert_eq!(block % 8, 5);
}

#[test]
fn limits_count_counters_and_not_messages() {
    for lane in Lanes::Four.ids() {
        // Each of the four lanes has a block in every 256 counters.
        for (counter, rekeys) in [
            (REKEY_AFTER_MESSAGES - 1_024, false),
            (REKEY_AFTER_MESSAGES + 256, true),
        ] {
            let mut net = connected(default_provider(), [Lanes::Four; 2]);
            net.advance_to(START + secs(30));
            let peer = net.nodes[1].public;
            net.nodes[0].device.set_counter_for_test(&peer, counter);
            let mark = net.mark();
            net.lane = lane;
            assert_eq!(net.ping(0, 1), Outcome::Sent);
            let initiations = net.times(mark, 0, Kind::Initiation).len();
            assert_eq!(initiations, usize::from(rekeys), "{lane:?}, {counter}");
        }
        let mut net = connected(default_provider(), [Lanes::Four; 2]);
        net.advance_to(START + secs(30));
        let peer = net.nodes[1].public;
        let counter = REJECT_AFTER_MESSAGES + 64;
        net.nodes[0].device.set_counter_for_test(&peer, counter);
        net.lane = lane;
        // The packet is staged. The device starts a handshake and sends it in the new session.
        let before = net.nodes[1].delivered.len();
        assert_eq!(net.ping(0, 1), Outcome::Staged, "{lane:?}");
        assert_eq!(net.nodes[1].delivered.len() - before, 1, "{lane:?}");
        let sent = headers(&net, 0, 0);
        assert!(
            sent.iter()
                .all(|(_, counter)| *counter < REJECT_AFTER_MESSAGES)
        );
    }
}

#[test]
fn a_staged_packet_uses_the_counters_of_its_lane() {
    let mut net = connected(default_provider(), [Lanes::Eight; 2]);
    net.advance_to(START + secs(200));
    net.lane = LaneId::new(6).expect("below 16");
    let mark = net.mark();
    assert_eq!(net.ping(0, 1), Outcome::Staged);
    let blocks: Vec<u64> = headers(&net, mark, 0)
        .into_iter()
        .map(|(_, counter)| counter / 64 % 8)
        .collect();
    assert_eq!(blocks, [6]);
}

#[test]
fn windows_take_memory_only_for_lanes_that_receive() {
    let mut net = connected(default_provider(), [Lanes::Sixteen; 2]);
    assert_eq!(net.nodes[1].device.sessions()[0].replay_bytes(), 1024);
    send_on_all(&mut net, 0, 1, 1);
    assert_eq!(net.nodes[1].device.sessions()[0].replay_bytes(), 16 * 1024);
}
