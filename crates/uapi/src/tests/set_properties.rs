//! Properties of every `set` request.

use core::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proptest::prelude::*;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{
    AllowedIpChange, EndpointName, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};

use super::super::write_set;
use super::*;
use crate::fuzzing::same_set;
use crate::prefix;

fn prefix_strategy() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0..=128_u8).prop_filter_map("too long", |(ip, n)| prefix::network(ip, n))
}

fn change() -> impl Strategy<Value = AllowedIpChange> {
    (any::<bool>(), prefix_strategy()).prop_map(|(add, prefix)| {
        if add {
            AllowedIpChange::Add(prefix)
        } else {
            AllowedIpChange::Remove(prefix)
        }
    })
}

fn name() -> impl Strategy<Value = EndpointName> {
    ("\\PC{1,80}", 1..=u16::MAX)
        .prop_filter_map("not a name", |(host, port)| EndpointName::new(&host, port))
}

/// Wrapper with the `Debug` that proptest requires, because secrets have none.
struct Opaque<T>(T);

impl<T> core::fmt::Debug for Opaque<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("…")
    }
}

prop_compose! {
    fn peer_update()(
        public_key: [u8; 32],
        flags: [bool; 4],
        preshared_key: Option<[u8; 32]>,
        endpoint: Option<(IpAddr, u16)>,
        endpoint_name in prop::option::of(prop::option::of(name())),
        has_pq_key: Option<bool>,
        post_quantum in prop::option::of(prop::sample::select(vec![
            None,
            Some(PostQuantum::Off),
            Some(PostQuantum::Prefer),
            Some(PostQuantum::Require),
        ])),
        persistent_keepalive: Option<u16>,
        allowed_ips in prop::collection::vec(change(), 0..6),
    ) -> Opaque<PeerUpdate> {
        Opaque(PeerUpdate {
            public_key: PublicKey(public_key),
            remove: flags[0],
            update_only: flags[1],
            preshared_key: preshared_key.map(PresharedKey::new),
            pq_public_key: has_pq_key.map(|given| given.then(pq_key)),
            post_quantum,
            pq_pinned: false,
            endpoint: endpoint.map(SocketAddr::from),
            endpoint_name,
            persistent_keepalive,
            keepalive_now: flags[3],
            replace_allowed_ips: flags[2],
            allowed_ips,
        })
    }
}

proptest! {
    #[test]
    fn every_request_reads_back(
        listen_port: Option<u16>,
        fwmark: Option<u32>,
        replace_peers: bool,
        private_key: Option<[u8; 32]>,
        seed: Option<u8>,
        peers in prop::collection::vec(peer_update(), 0..6),
    ) {
        let mut request = SetRequest { listen_port, fwmark, ..SetRequest::default() };
        request.device.replace_peers = replace_peers;
        request.device.private_key = private_key.map(|bytes| PrivateKeyUpdate {
            key: PrivateKey::new(bytes),
            timestamp_floor: Tai64N::ZERO,
        });
        request.device.pq_private_key =
            seed.map(|byte| PqPrivateKey::new(Secret::new([byte; 64])));
        request.device.peers = peers.into_iter().map(|peer| peer.0).collect();
        let mut text = String::new();
        write_set(&mut text, &request).unwrap();
        prop_assert!(same_set(&set(&text), &request));
    }

    /// An error never repeats a malformed value, whatever its key.
    #[test]
    fn values_are_never_repeated(
        key in prop::sample::select(vec!["private_key", "pq_private_key", "preshared_key", "pq_public_key", "post_quantum", "endpoint", "endpoint_name", "allowed_ip", "fwmark"]),
        value in "[G-Z]{8,80}",
    ) {
        let text = format!("set=1\n{}{key}={value}\n\n", match key {
            "private_key" | "pq_private_key" | "fwmark" => String::new(),
            _ => format!("public_key={}\n", hex(1)),
        });
        let error = refused(text);
        prop_assert_eq!(&error.key, key);
        let shown = format!("{error} {error:?}");
        prop_assert!(!shown.contains(&value));
    }
}
