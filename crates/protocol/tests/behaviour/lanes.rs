//! Devices with several lanes (docs/design/lanes.md).

use taupe_protocol::Lanes;
use taupe_protocol::message::{Kind, data_header};

use crate::common::packets::ipv4;
use crate::common::{Net, Outcome};
use crate::each_backend;

/// Lane numbers for tests with every combination of two devices.
const LANES: [Lanes; 4] = [Lanes::One, Lanes::Two, Lanes::Four, Lanes::Eight];

/// Returns two devices with these lanes after a handshake that node 0 began.
fn connected(crypto: &'static taupe_protocol::crypto::Provider, lanes: [Lanes; 2]) -> Net {
    let mut net = Net::with_lanes(crypto, &lanes);
    net.join(0, 1);
    assert_eq!(net.ping(0, 1), Outcome::Staged);
    assert_eq!(net.nodes[1].delivered.len(), 1, "the first packet arrives");
    net
}

/// Sends `count` packets from `node` on each of its lanes in turn, in batches of `batch`.
fn send_on_all(net: &mut Net, node: usize, count: usize, batch: usize) {
    let packet = ipv4(
        net.nodes[node].inner,
        net.nodes[1 - node].inner,
        b"ping....",
    );
    for lane in net.nodes[node].path.steering().lanes().ids() {
        net.lane = lane;
        for _ in 0..count / batch {
            assert_eq!(net.send_batch(node, &packet, batch), Outcome::Sent);
        }
    }
}

/// Returns receiver index and counter of the messages that `node` has sent since `mark`.
fn headers(net: &Net, mark: usize, node: usize) -> Vec<(u32, u64)> {
    let data = net.since(mark, node);
    let data = data.iter().filter(|datagram| datagram.kind() == Kind::Data);
    data.map(|datagram| data_header(&datagram.bytes).expect("data has a header"))
        .collect()
}

each_backend! {
    fn devices_with_any_lanes_exchange_packets(crypto) {
        for lanes in LANES.map(|a| LANES.map(|b| [a, b])).into_iter().flatten() {
            let mut net = connected(crypto, lanes);
            for node in [0, 1] {
                let mark = net.mark();
                let before = net.nodes[1 - node].delivered.len();
                send_on_all(&mut net, node, 300, 20);
                send_on_all(&mut net, node, 70, 1);
                let sent = 370 * lanes[node].count();
                assert_eq!(net.nodes[1 - node].delivered.len() - before, sent, "{lanes:?}");
                let mut counters: Vec<u64> =
                    headers(&net, mark, node).iter().map(|(_, counter)| *counter).collect();
                let is_striped = lanes.iter().all(|lanes| *lanes > Lanes::One);
                let ascending = counters.is_sorted();
                assert_eq!(ascending, !is_striped, "{lanes:?}");
                counters.sort_unstable();
                counters.dedup();
                assert_eq!(counters.len(), sent, "{lanes:?}");
                assert_eq!(counters[sent - 1] - counters[0] == sent as u64 - 1, !is_striped);
            }
        }
    }
}
