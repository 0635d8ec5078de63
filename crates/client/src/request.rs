//! Requests that apply a file to a device.

use std::net::SocketAddr;

use taupe_config::file::{File, Peer};
use taupe_protocol::key::PrivateKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{AllowedIpChange, PeerUpdate, PrivateKeyUpdate};
use taupe_uapi::SetRequest;

/// Returns a request that replaces the device's configuration by the file's. If the file has no
/// private key, the device's is removed. If the file has no ML-KEM seed, the device's remains: only
/// some devices could remove it, and no peer of the file uses it.
///
/// `endpoints` are the addresses of the peers' endpoints, in the order of the file.
#[must_use]
pub fn setconf_request(file: &File, endpoints: &[Option<SocketAddr>]) -> SetRequest {
    let mut request = addconf_request(file, endpoints);
    request.device.replace_peers = true;
    request.listen_port.get_or_insert(0);
    request.fwmark.get_or_insert(0);
    request
        .device
        .private_key
        .get_or_insert_with(|| new_private_key(None));
    request
}

/// Returns a request that adds the file to the device's configuration: other peers stay, and so
/// does every `[Interface]` setting that the file lacks.
#[must_use]
pub fn addconf_request(file: &File, endpoints: &[Option<SocketAddr>]) -> SetRequest {
    let mut request = SetRequest {
        listen_port: file.interface.listen_port,
        fwmark: file.interface.fwmark,
        ..SetRequest::default()
    };
    request.device.private_key = file
        .interface
        .private_key
        .clone()
        .map(|key| PrivateKeyUpdate {
            key: Some(key),
            timestamp_floor: Tai64N::ZERO,
        });
    request.device.pq_private_key = file.interface.pq_private_key.clone().map(Some);
    let addresses = endpoints.iter().copied().chain(std::iter::repeat(None));
    // Reserved at once: reallocation would leave copies of keys in freed memory.
    request.device.peers.reserve_exact(file.peers.len());
    let peers = file.peers.iter().zip(addresses);
    request
        .device
        .peers
        .extend(peers.map(|(peer, address)| update(peer, address)));
    request
}

/// Returns an update of the private key; `None` removes the key.
#[must_use]
pub fn new_private_key(key: Option<PrivateKey>) -> PrivateKeyUpdate {
    PrivateKeyUpdate {
        key,
        // The device applies its own, higher floor.
        timestamp_floor: Tai64N::ZERO,
    }
}

fn update(peer: &Peer, address: Option<SocketAddr>) -> PeerUpdate {
    let networks = peer.routed();
    PeerUpdate {
        preshared_key: peer.preshared_key.clone(),
        pq_public_key: peer.pq_public_key.as_ref().map(|key| Some(key.key.clone())),
        post_quantum: peer.post_quantum.map(Some),
        endpoint: address,
        endpoint_name: address.and(peer.endpoint_name()).map(Some),
        persistent_keepalive: peer.persistent_keepalive,
        replace_allowed_ips: true,
        allowed_ips: networks.into_iter().map(AllowedIpChange::Add).collect(),
        ..PeerUpdate::new(peer.public_key)
    }
}
