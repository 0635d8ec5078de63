//! All state that an unauthenticated packet must not change.

use std::net::SocketAddr;
use std::time::Duration;

use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, Endpoint, Role, Timer};

use super::{Net, Node};

/// The visible state of a node.
#[derive(PartialEq, Debug)]
pub struct Snapshot {
    peers: Vec<PeerState>,
    sessions: Vec<(u32, u32, Role, Instant)>,
    deadline: Option<(Instant, Timer)>,
    delivered: usize,
}

#[derive(PartialEq, Debug)]
struct PeerState {
    key: PublicKey,
    endpoint: Option<SocketAddr>,
    /// Includes the local address, which the status does not show.
    full_endpoint: Option<Endpoint>,
    latest_handshake: Option<Duration>,
    tx_bytes: u64,
    rx_bytes: u64,
    keepalive: u16,
    allowed_ips: Vec<IpNet>,
    current: Option<u32>,
}

impl Snapshot {
    pub fn of(node: &mut Node) -> Self {
        let status = node.device.status();
        let peers = status
            .peers
            .into_iter()
            .map(|peer| PeerState {
                key: peer.public_key,
                endpoint: peer.endpoint,
                full_endpoint: node.peer(&peer.public_key).endpoint(),
                latest_handshake: peer.latest_handshake,
                tx_bytes: peer.tx_bytes,
                rx_bytes: peer.rx_bytes,
                keepalive: peer.persistent_keepalive,
                allowed_ips: peer.allowed_ips,
                current: node.current(&peer.public_key).map(|s| s.local_index()),
            })
            .collect();
        let sessions = node
            .device
            .sessions()
            .iter()
            .map(|s| (s.local_index(), s.remote_index(), s.role(), s.born()))
            .collect();
        Self {
            peers,
            sessions,
            deadline: node.device.next_deadline(),
            delivered: node.delivered.len(),
        }
    }
}

/// Returns all drop counters, in order.
pub fn counts(node: &Node) -> Vec<u64> {
    DropReason::ALL
        .iter()
        .map(|cause| node.count(*cause))
        .collect()
}

/// Returns the reasons counted since `before`, once per count.
pub fn raised(node: &Node, before: &[u64]) -> Vec<DropReason> {
    DropReason::ALL
        .into_iter()
        .zip(before)
        .flat_map(|(cause, before)| {
            std::iter::repeat_n(cause, (node.count(cause) - before) as usize)
        })
        .collect()
}

/// Passes `bytes` to a node from a stranger's address. Asserts that it is dropped for `cause`,
/// counted once, and causes no change and no answer.
#[track_caller]
pub fn assert_refused(net: &mut Net, to: usize, bytes: &[u8], cause: DropReason) {
    assert_refused_from(net, to, super::stranger(), bytes, cause);
}

#[track_caller]
pub fn assert_refused_from(
    net: &mut Net,
    to: usize,
    source: SocketAddr,
    bytes: &[u8],
    cause: DropReason,
) {
    let before = Snapshot::of(&mut net.nodes[to]);
    let counted = counts(&net.nodes[to]);
    let mark = net.mark();
    net.inject(to, source, bytes);
    assert_eq!(raised(&net.nodes[to], &counted), [cause]);
    assert_eq!(Snapshot::of(&mut net.nodes[to]), before);
    assert_eq!(net.mark(), mark, "no answer");
}
