use core::net::{Ipv4Addr, SocketAddr};

use ipnet::IpNet;
use taupe_crypto::{PORTABLE, Secret};

use super::*;
use crate::handshake::noise::TransportKeys;
use crate::key::PublicKey;
use crate::lanes::{Run, SessionLanes};
use crate::lock;
use crate::peer::PeerId;
use crate::peer::{Agreed, Role, Session};

const NOW: Instant = Instant(1_000_000_000_000);
const INNER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A data path with one peer that is up and owns [`INNER`], and both ends of the session with it.
struct Fixture {
    path: DataPath,
    peer: Arc<Peer>,
    local: Arc<Session>,
    remote: Session,
    next_counter: u64,
}

impl Fixture {
    fn new() -> Self {
        let peer = Arc::new(Peer::new(PeerId(0), PublicKey([9; 32])));
        let session = |send: u8, receive: u8| {
            let keys = TransportKeys {
                send: Secret::new([send; 32]),
                receive: Secret::new([receive; 32]),
            };
            let agreed = Agreed {
                role: Role::Initiator,
                local_index: 7,
                remote_index: 7,
                suite: None,
                lanes: SessionLanes::default(),
            };
            Session::new(&PORTABLE, &keys, agreed, NOW)
        };
        let steering = Steering::new(Lanes::One, &mut |_: &mut [u8]| ());
        let path = DataPath::new(Arc::new(|| ()), steering);
        let local = Arc::new(session(1, 2));
        path.sessions.insert(Arc::clone(&local), Arc::clone(&peer));
        let mut routes = Routes::default();
        let prefix = IpNet::from(IpAddr::from(INNER));
        routes.allowed_ips.insert(prefix, Arc::clone(&peer));
        path.routes.store(Arc::new(routes));
        let mut state = lock(&peer.state);
        state.up = true;
        state.sessions.install_initiated(Arc::clone(&local));
        drop(state);
        Self {
            path,
            peer,
            local,
            remote: session(2, 1),
            next_counter: 0,
        }
    }

    /// Returns messages from the peer, each with one packet of 32 bytes, and their stride.
    fn messages(&mut self, count: usize) -> (Vec<u8>, usize) {
        let stride = DATA_OVERHEAD + 32;
        let mut batch = vec![0; count * stride];
        for message in batch.chunks_mut(stride) {
            message[DATA_HEADER_LEN..][..4].copy_from_slice(&[0x45, 0, 0, 32]);
            message[DATA_HEADER_LEN + 12..][..4].copy_from_slice(&INNER.octets());
        }
        let counters = &mut Run::consecutive(self.next_counter);
        self.remote.seal(counters, &mut batch, stride);
        self.next_counter += count as u64;
        (batch, stride)
    }

    /// Returns the number of packets delivered from a batch.
    fn receive_batch(&mut self, from: SocketAddr) -> usize {
        let (mut batch, stride) = self.messages(3);
        let mut sorted = ReceivedBatch::default();
        let path = &self.path;
        path.receive(NOW, from.into(), &mut batch, stride, &mut sorted);
        sorted.inner.len()
    }

    /// Returns the length of the packet delivered from a single message.
    fn receive_one(&mut self, from: SocketAddr) -> Option<usize> {
        let (mut message, _) = self.messages(1);
        let (header, data) = message.split_at_mut(DATA_HEADER_LEN);
        let header = data_header(header).expect("a header");
        let opened = self.path.receive_one(NOW, from.into(), header, data);
        opened.expect("authentic, and from the peer's address")
    }
}

/// A thread may have looked up the session before the control loop removed it from the table.
#[test]
fn nothing_is_delivered_once_the_peer_is_down_or_removed() {
    let [before, after] = [1, 2].map(|host| SocketAddr::from(([192, 0, 2, host], 51820)));
    let mut fixture = Fixture::new();
    assert_eq!(fixture.receive_batch(before), 3);
    assert_eq!(fixture.receive_one(before), Some(32));
    let received = lock(&fixture.peer.state).statistics.rx_bytes;

    lock(&fixture.peer.state).up = false;
    assert!(fixture.path.sessions.contains(fixture.local.local_index()));
    assert_eq!(fixture.receive_batch(after), 0);
    assert_eq!(fixture.receive_one(after), None);
    let state = lock(&fixture.peer.state);
    assert_eq!(state.endpoint, Some(before.into()));
    assert_eq!(state.statistics.rx_bytes, received);
}

#[test]
fn every_cause_has_its_own_number() {
    for (i, cause) in DropReason::ALL.into_iter().enumerate() {
        assert_eq!(cause as usize, i);
    }
}

#[test]
fn padding_is_to_sixteen_and_never_beyond_the_mtu() {
    for (length, mtu, padded) in [
        (0, 1420, 0),
        (1, 1420, 16),
        (16, 1420, 16),
        (17, 1420, 32),
        (1408, 1420, 1408),
        (1409, 1420, 1420),
        (1419, 1420, 1420),
        (1420, 1420, 1420),
        (1421, 1420, 1436),
        (2840, 1420, 2840),
        (100, 0, 112),
        (5, 8, 8),
    ] {
        assert_eq!(padded_len(length, mtu), padded, "{length} on {mtu}");
    }
}
