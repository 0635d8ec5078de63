//! What a file asks of a device.

use std::net::SocketAddr;

use taupe_config::file::{Endpoint, File, Peer};
use taupe_protocol::key::PrivateKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{AllowedIpChange, EndpointName, PeerUpdate, PrivateKeyUpdate};
use taupe_uapi::SetRequest;

/// Makes the device what the file says, and nothing else: without a key in the
/// file it has none. A seed of ML-KEM keys stays where the file has none, since only
/// some devices can be told to forget it; no peer of the file's needs it.
///
/// `endpoints` are the addresses of the peers' endpoints, in the order of the
/// file.
#[must_use]
pub fn request(file: &File, endpoints: &[Option<SocketAddr>]) -> SetRequest {
    let mut request = addition(file, endpoints);
    request.device.replace_peers = true;
    request.listen_port.get_or_insert(0);
    request.fwmark.get_or_insert(0);
    request
        .device
        .private_key
        .get_or_insert_with(|| new_private_key(None));
    request
}

/// Adds what the file says to what the device is: its other peers stay, and so
/// does everything of `[Interface]` that is not in the file.
#[must_use]
pub fn addition(file: &File, endpoints: &[Option<SocketAddr>]) -> SetRequest {
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
    // Room for all of them at once: growing would leave keys behind.
    request.device.peers.reserve_exact(file.peers.len());
    let peers = file.peers.iter().zip(addresses);
    request
        .device
        .peers
        .extend(peers.map(|(peer, address)| update(peer, address)));
    request
}

/// Gives a device another private key; `None` takes it away.
#[must_use]
pub fn new_private_key(key: Option<PrivateKey>) -> PrivateKeyUpdate {
    PrivateKeyUpdate {
        key,
        // Only the device knows better.
        timestamp_floor: Tai64N::ZERO,
    }
}

fn update(peer: &Peer, address: Option<SocketAddr>) -> PeerUpdate {
    let name = match &peer.endpoint {
        Some(Endpoint::Name { host, port }) => EndpointName::new(host, *port),
        Some(Endpoint::Address(_)) | None => None,
    };
    let networks = peer.routed();
    PeerUpdate {
        preshared_key: peer.preshared_key.clone(),
        pq_public_key: peer.pq_public_key.as_ref().map(|key| Some(key.key.clone())),
        post_quantum: peer.post_quantum.map(Some),
        endpoint: address,
        endpoint_name: address.and(name).map(Some),
        persistent_keepalive: peer.persistent_keepalive,
        replace_allowed_ips: true,
        allowed_ips: networks.into_iter().map(AllowedIpChange::Add).collect(),
        ..PeerUpdate::new(peer.public_key)
    }
}
