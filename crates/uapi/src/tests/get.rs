//! Answers to `get`, read by a parser of the tests that accepts what `wg` accepts.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use taupe_protocol::Lanes;
use taupe_protocol::crypto::Secret;
use taupe_protocol::key::{PqPrivateKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::time::Instant;
use taupe_protocol::update::{
    DeviceStatus, EndpointName, LaneStatus, PeerStatus, PostQuantum, SessionStatus, Suite,
    Unanswered,
};

use super::super::{Counter, answer_get, answer_get_with, push_peer, write_get};
use super::{hex, pq_key};
use crate::key::Encoding;
use crate::prefix;

/// The extensions of this device.
const FEATURES: &str = "features=endpoint_name keepalive_now post_quantum\n";

#[test]
fn an_empty_device() {
    let status = DeviceStatus {
        private_key: None,
        pq_private_key: None,
        peers: Vec::new(),
    };
    let answer = answer_get(&status, 0, 0);
    assert_eq!(answer.as_str(), format!("{FEATURES}errno=0\n\n"));
}

#[test]
fn everything_in_its_order() {
    let prefix = |text| crate::prefix::parse(text).unwrap();
    let mut second = Vec::new();
    push_peer(&mut second, PublicKey([2; 32]));
    let status = DeviceStatus {
        private_key: PrivateKey::new([0x48; 32]),
        pq_private_key: PqPrivateKey::new(Secret::new([0xef; 64])),
        peers: vec![
            PeerStatus {
                public_key: PublicKey([0xab; 32]),
                preshared_key: PresharedKey::new([0xcd; 32]),
                pq_public_key: Some(pq_key()),
                post_quantum: Some(PostQuantum::Prefer),
                pq_pinned: true,
                session: Some(SessionStatus {
                    suite: Some(Suite::Hybrid768),
                    born: Instant(16_000_000_002),
                }),
                lanes: Some(LaneStatus {
                    receiving: Lanes::One,
                    remote: Lanes::Eight,
                    interleaved: true,
                }),
                endpoint: Some("[fe80::1%3]:51820".parse().unwrap()),
                endpoint_name: EndpointName::new("vpn.example.org", 65535),
                latest_handshake: Some(Duration::new(1_700_000_000, 5)),
                unanswered: Some(Unanswered {
                    initiations: 3,
                    since: Instant(15_000_000_001),
                }),
                tx_bytes: u64::MAX,
                rx_bytes: 1,
                persistent_keepalive: 25,
                allowed_ips: vec![
                    prefix("10.0.0.0/24"),
                    prefix("fd00::/64"),
                    prefix("0.0.0.0/0"),
                ],
            },
            second.remove(0),
        ],
    };
    let expected = format!(
        "{FEATURES}private_key={}\npq_private_key={}\nlisten_port=51820\nfwmark=4294967295\n\
         public_key={}\npreshared_key={}\nprotocol_version=1\nendpoint=[fe80::1%3]:51820\n\
         endpoint_name=vpn.example.org:65535\n\
         pq_public_key={}\npost_quantum=prefer\npq_latched=true\nsession=hybrid-768 16000000002\n\
         lanes=1 8\ninterleaved=true\n\
         last_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\n\
         unanswered=3 15000000001\ntx_bytes=18446744073709551615\nrx_bytes=1\npersistent_keepalive_interval=25\n\
         allowed_ip=10.0.0.0/24\nallowed_ip=fd00::/64\nallowed_ip=0.0.0.0/0\n\
         public_key={}\npreshared_key={}\nprotocol_version=1\n\
         last_handshake_time_sec=0\nlast_handshake_time_nsec=0\n\
         tx_bytes=0\nrx_bytes=0\npersistent_keepalive_interval=0\nerrno=0\n\n",
        hex(0x48),
        hex(0xef).repeat(2),
        hex(0xab),
        hex(0xcd),
        Encoding::Hex.encode_pq_public_key(&pq_key()),
        hex(2),
        hex(0),
    );
    let answer = answer_get(&status, 51820, u32::MAX);
    assert_eq!(answer.as_str(), expected);
    assert_eq!(
        answer.capacity(),
        answer.len(),
        "the buffer was not sized at once"
    );
    let mut written = String::new();
    write_get(&mut written, &status, 51820, u32::MAX).unwrap();
    assert_eq!(written, expected);
}

#[test]
fn counters_that_are_not_0_are_in_the_answer() {
    let status = DeviceStatus {
        private_key: None,
        pq_private_key: None,
        peers: Vec::new(),
    };
    let counter = |name: &'static str, count| Counter {
        group: "drop".into(),
        name: name.into(),
        count,
    };
    let counters = [counter("mac1", 0), counter("unknown-session", u64::MAX)];
    let answer = answer_get_with(&status, 0, 7, &counters);
    let expected = format!(
        "{FEATURES}fwmark=7\ncounter=drop unknown-session {}\nerrno=0\n\n",
        u64::MAX
    );
    assert_eq!(answer.as_str(), expected);
}

#[test]
#[cfg(unix)]
fn sign_of_error_numbers() {
    use super::super::{Errno, Operation, Status};

    for (errno, number) in [
        (Errno::Io, libc::EIO),
        (Errno::Protocol, libc::EPROTO),
        (Errno::Invalid, libc::EINVAL),
        (Errno::AddressInUse, libc::EADDRINUSE),
    ] {
        assert_eq!(
            Operation::Set.failed(errno).to_string(),
            format!("errno=-{number}\n\n")
        );
        assert_eq!(
            Operation::Get.failed(errno).to_string(),
            format!("errno={number}\n\n")
        );
    }
    assert_eq!(Status::SUCCESS.to_string(), "errno=0\n\n");
}

/// The fields of an answer that `wg` reads (`userspace_get_device`).
#[derive(Default, PartialEq, Debug)]
struct Seen {
    private_key: Option<[u8; 32]>,
    listen_port: u64,
    fwmark: u64,
    peers: Vec<SeenPeer>,
}

#[derive(Default, PartialEq, Debug)]
struct SeenPeer {
    public_key: [u8; 32],
    preshared_key: [u8; 32],
    endpoint: Option<SocketAddr>,
    seconds: u64,
    nanoseconds: u64,
    tx_bytes: u64,
    rx_bytes: u64,
    persistent_keepalive: u64,
    allowed_ips: Vec<(IpAddr, u8)>,
}

fn seen(answer: &str) -> Seen {
    let mut seen = Seen::default();
    let body = answer.strip_suffix("errno=0\n\n").unwrap();
    // `wg` ignores unknown keys.
    let body = body.strip_prefix(FEATURES).unwrap();
    for line in body.split_terminator('\n') {
        let (key, value) = line.split_once('=').unwrap();
        match (key, seen.peers.last_mut()) {
            ("private_key", None) => seen.private_key = Some(key_of(value)),
            ("listen_port", None) => seen.listen_port = number(value, 0xffff),
            ("fwmark", None) => seen.fwmark = number(value, 0xffff_ffff),
            ("public_key", _) => {
                seen.peers.push(SeenPeer {
                    public_key: key_of(value),
                    ..SeenPeer::default()
                });
            }
            ("preshared_key", Some(peer)) => peer.preshared_key = key_of(value),
            ("protocol_version", Some(_)) => assert_eq!(value, "1"),
            ("endpoint", Some(peer)) => peer.endpoint = Some(value.parse().unwrap()),
            ("last_handshake_time_sec", Some(peer)) => {
                peer.seconds = number(value, i64::MAX as u64)
            }
            ("last_handshake_time_nsec", Some(peer)) => {
                peer.nanoseconds = number(value, 999_999_999)
            }
            ("tx_bytes", Some(peer)) => peer.tx_bytes = number(value, u64::MAX),
            ("rx_bytes", Some(peer)) => peer.rx_bytes = number(value, u64::MAX),
            ("persistent_keepalive_interval", Some(peer)) => {
                peer.persistent_keepalive = number(value, 0xffff);
            }
            ("allowed_ip", Some(peer)) => {
                let (address, length) = value.split_once('/').unwrap();
                let address: IpAddr = address.parse().unwrap();
                let max = if address.is_ipv4() { 32 } else { 128 };
                peer.allowed_ips.push((address, number(length, max) as u8));
            }
            // These are unknown to `wg` too.
            ("pq_private_key", None)
            | (
                "pq_public_key" | "post_quantum" | "pq_latched" | "session" | "lanes"
                | "interleaved",
                Some(_),
            ) => {}
            _ => panic!("unexpected line {line:?}"),
        }
    }
    seen
}

fn number(text: &str, max: u64) -> u64 {
    assert!(text.starts_with(|c: char| c.is_ascii_digit()));
    let value = text.parse().unwrap();
    assert!(value <= max);
    value
}

fn key_of(text: &str) -> [u8; 32] {
    assert_eq!(text.len(), 64);
    core::array::from_fn(|i| {
        let digits = &text[2 * i..2 * i + 2];
        assert_eq!(digits, digits.to_lowercase());
        u8::from_str_radix(digits, 16).unwrap()
    })
}

prop_compose! {
    fn seen_peer()(
        public_key: [u8; 32],
        preshared_key: [u8; 32],
        endpoint: Option<(IpAddr, u16)>,
        handshake in prop::option::of((1..u64::from(u32::MAX) * 2, 0..1_000_000_000_u64)),
        bytes: (u64, u64),
        keepalive: u16,
        allowed_ips in prop::collection::vec((any::<IpAddr>(), 0..=128_u8), 0..6),
    ) -> SeenPeer {
        let (seconds, nanoseconds) = handshake.unwrap_or_default();
        SeenPeer {
            public_key,
            preshared_key,
            endpoint: endpoint.map(SocketAddr::from),
            seconds,
            nanoseconds,
            tx_bytes: bytes.0,
            rx_bytes: bytes.1,
            persistent_keepalive: keepalive.into(),
            allowed_ips: allowed_ips
                .into_iter()
                .filter_map(|(address, length)| prefix::network(address, length))
                .map(|prefix| (prefix.addr(), prefix.prefix_len()))
                .collect(),
        }
    }
}

fn status_of(peer: &SeenPeer) -> PeerStatus {
    let handshake = Duration::new(peer.seconds, peer.nanoseconds as u32);
    let latched = peer.seconds % 2 == 1;
    PeerStatus {
        public_key: PublicKey(peer.public_key),
        preshared_key: PresharedKey::new(peer.preshared_key),
        pq_public_key: latched.then(pq_key),
        post_quantum: latched.then_some(PostQuantum::Prefer),
        pq_pinned: latched,
        session: (!peer.seconds.is_multiple_of(3)).then_some(SessionStatus {
            suite: latched.then_some(Suite::Hybrid768),
            born: Instant(peer.seconds),
        }),
        lanes: latched.then_some(LaneStatus {
            receiving: Lanes::Two,
            remote: Lanes::Sixteen,
            interleaved: peer.seconds % 4 == 1,
        }),
        endpoint: peer.endpoint,
        endpoint_name: None,
        latest_handshake: (!handshake.is_zero()).then_some(handshake),
        unanswered: None,
        tx_bytes: peer.tx_bytes,
        rx_bytes: peer.rx_bytes,
        persistent_keepalive: peer.persistent_keepalive as u16,
        allowed_ips: peer
            .allowed_ips
            .iter()
            .map(|(address, length)| IpNet::new(*address, *length).unwrap())
            .collect(),
    }
}

proptest! {
    #[test]
    fn every_answer_is_understood(
        private_key: Option<[u8; 32]>,
        listen_port: u16,
        fwmark: u32,
        peers in prop::collection::vec(seen_peer(), 0..5),
    ) {
        let private_key = private_key.and_then(PrivateKey::new);
        let expected = Seen {
            private_key: private_key.as_ref().map(|key| *key.expose()),
            listen_port: listen_port.into(),
            fwmark: fwmark.into(),
            peers,
        };
        let status = DeviceStatus {
            private_key,
            pq_private_key: PqPrivateKey::new(Secret::new([fwmark.to_le_bytes()[0]; 64])),
            peers: expected.peers.iter().map(status_of).collect(),
        };
        let answer = answer_get(&status, listen_port, fwmark);
        prop_assert_eq!(seen(&answer), expected);
        prop_assert_eq!(answer.capacity(), answer.len());
    }
}
