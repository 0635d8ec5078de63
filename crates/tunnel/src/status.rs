//! State of a tunnel.

use std::net::SocketAddr;
use std::time::SystemTime;

use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{DeviceStatus, PeerStatus, SessionStatus};

/// State of a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TunnelState {
    /// The peers, in the order of the configuration.
    pub peers: Vec<PeerState>,
    /// TCP connections, with those that are still closing.
    pub connections: usize,
}

/// State of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PeerState {
    /// The peer's public key.
    pub public_key: PublicKey,
    /// The address to which datagrams are sent.
    pub endpoint: Option<SocketAddr>,
    /// Time of the latest completed handshake.
    pub latest_handshake: Option<SystemTime>,
    /// Key agreement of the current session: `ordinary`, or the name of a hybrid suite.
    pub handshake: Option<&'static str>,
    /// Bytes of WireGuard messages sent to the peer.
    pub sent_bytes: u64,
    /// Bytes of authenticated WireGuard messages received from the peer.
    pub received_bytes: u64,
}

impl TunnelState {
    pub(crate) fn new(device: DeviceStatus, connections: usize) -> Self {
        Self {
            peers: device.peers.into_iter().map(PeerState::new).collect(),
            connections,
        }
    }
}

impl PeerState {
    fn new(peer: PeerStatus) -> Self {
        let handshake = peer.latest_handshake;
        Self {
            public_key: peer.public_key,
            endpoint: peer.endpoint,
            latest_handshake: handshake.and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)),
            handshake: peer.session.as_ref().map(SessionStatus::name),
            sent_bytes: peer.tx_bytes,
            received_bytes: peer.rx_bytes,
        }
    }
}
