//! A device of the simulated network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use taupe_protocol::crypto::Provider;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{DeviceUpdate, EndpointName, PrivateKeyUpdate};
use taupe_protocol::{DataPath, Device, DropReason, HandshakeResult, Lanes, Notice, Peer, Session};

use super::WALL;
use super::random::{SharedNumbers, TestRandom};

/// A device with its addresses and outputs.
pub struct Node {
    pub device: Device,
    pub path: Arc<DataPath>,
    pub private: PrivateKey,
    pub public: PublicKey,
    /// UDP address of the node.
    pub address: SocketAddr,
    /// Address of the node in the tunnel.
    pub inner: IpAddr,
    /// Inner packets that were delivered, in order.
    pub delivered: Vec<Vec<u8>>,
    /// Timestamp reservations, each with the number of datagrams sent before.
    pub reserved: Vec<(Tai64N, usize)>,
    /// Look-ups that the device has requested.
    pub asked: Vec<(Instant, PublicKey, EndpointName)>,
    /// Outputs [`Output::PinPostQuantum`] of the device.
    pub pins: Vec<(PublicKey, bool)>,
    /// Notices of the device.
    pub notices: Vec<(Instant, Notice)>,
    /// Number of handshake messages in the queue, as an engine would report it.
    pub backlog: usize,
    /// The node's wall clock at the start of the test.
    pub wall: Duration,
    /// Source of jitter and indices.
    pub numbers: SharedNumbers,
    pub(super) sent: usize,
}

impl Node {
    pub fn count(&self, cause: DropReason) -> u64 {
        self.path.counters().count(cause)
    }

    /// Returns the numbers of handshakes, by results.
    pub fn handshakes(&self) -> [u64; 3] {
        HandshakeResult::ALL.map(|result| self.path.counters().handshakes(result))
    }

    pub fn peer(&mut self, key: &PublicKey) -> Arc<Peer> {
        self.device.peer(key).expect("the peer is configured")
    }

    pub fn current(&mut self, key: &PublicKey) -> Option<Arc<Session>> {
        self.device.current_session(key)
    }
}

/// Returns node `i`: up since `start`, with a key, without peers.
pub fn node(crypto: &'static Provider, i: usize, lanes: Lanes, start: Instant) -> Node {
    let seed = 0x7a75_7065 + i as u64;
    let numbers = SharedNumbers::default();
    let random = TestRandom::new(seed, numbers.clone());
    let private = private_key(seed);
    let public = PublicKey(crypto.dh.public(private.expose()));
    let mut device = Device::with_lanes(crypto, Box::new(random), Arc::new(|| {}), lanes);
    let now = Now {
        boot: start,
        wall: WALL,
    };
    let private_key = Some(PrivateKeyUpdate {
        key: Some(private.clone()),
        timestamp_floor: Tai64N::ZERO,
    });
    device
        .update(
            now,
            DeviceUpdate {
                private_key,
                ..DeviceUpdate::default()
            },
        )
        .expect("a key can be set");
    device.set_up(now);
    let path = Arc::clone(device.data_path());
    Node {
        device,
        path,
        private,
        public,
        address: address(i),
        inner: IpAddr::V4(Ipv4Addr::new(10, 0, 0, i as u8 + 1)),
        delivered: Vec::new(),
        reserved: Vec::new(),
        asked: Vec::new(),
        pins: Vec::new(),
        notices: Vec::new(),
        backlog: 0,
        wall: WALL,
        numbers,
        sent: 0,
    }
}

/// Returns a private key that differs for each seed.
pub fn private_key(seed: u64) -> PrivateKey {
    let mut random = TestRandom::new(seed ^ 0x5eed, SharedNumbers::default());
    let mut bytes = [0; 32];
    taupe_protocol::Random::fill(&mut random, &mut bytes);
    PrivateKey::new(bytes).expect("not zero")
}

/// Returns the outer address of node `i`.
pub fn address(i: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, i as u8 + 1], 51820 + i as u16))
}

/// Returns an address that no node has.
pub fn stranger() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 99], 9999))
}
