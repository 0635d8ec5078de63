//! Findings and notes about a tunnel's peers.

use super::{endpoint_path, findings, now};
use taupe_client::{Device, PeerStatus};
use taupe_config::file::File;
use taupe_runtime::clock::boot;
use taupe_uapi::key::Encoding;
use taupe_uapi::show;

/// Compares a peer's state with what it should be. `None` if all is well. `mark` is the fwmark of
/// datagrams to it, if they leave from this network namespace.
pub(super) fn assess(
    device: &Device,
    peer: &PeerStatus,
    is_initiator: bool,
    mark: Option<u32>,
) -> Option<findings::PeerAssessment> {
    let shown = shown(peer, device);
    if show::lacks_own_key(&device.status, peer) {
        return Some(findings::PeerAssessment::Finding(findings::no_own_key(
            &shown,
        )));
    }
    let status = findings::PeerObservation {
        is_initiator,
        age: peer.latest_handshake.map(|at| now().saturating_sub(at)),
        unanswered: peer
            .unanswered
            .map(|silence| (silence.initiations, boot().since(silence.since))),
        has_sent: peer.tx_bytes > 0,
        path: match (peer.unanswered, peer.endpoint, mark) {
            (silence, Some(endpoint), Some(mark)) if !is_initiator => {
                endpoint_path::look_up(endpoint.ip(), mark, silence.is_some())
            }
            _ => findings::EndpointPath::Unknown,
        },
    };
    findings::assess_peer(&shown, peer.endpoint, &status)
}

/// Returns the reasons why no datagrams leave for peers of a device.
pub(super) fn unreachable<'a>(
    device: &'a Device,
    file: Option<&'a File>,
) -> impl Iterator<Item = findings::Finding> + 'a {
    let peers = device.status.peers.iter();
    peers.filter_map(move |peer| {
        let endpoint = peer.endpoint.filter(|_| !is_initiator(peer, file))?;
        let path = endpoint_path::look_up(endpoint.ip(), device.fwmark, false);
        findings::unreachable(&shown(peer, device), endpoint, &path, None)
    })
}

/// Returns a sentence about `outer` for the status of a tunnel that goes through it.
pub(super) fn of_outer(outer: &str, text: &str) -> String {
    format!("{outer}, which it goes through: {text}")
}

/// Checks whether a peer starts handshakes itself, so that this side only responds: it has no
/// `Endpoint` in the file. A peer that was added to the device counts as one if it has neither an
/// endpoint name nor a keepalive. Without a file, no peer counts as one.
pub(super) fn is_initiator(peer: &PeerStatus, file: Option<&File>) -> bool {
    let Some(file) = file else { return false };
    let mut peers = file.peers.iter();
    match peers.find(|one| one.public_key == peer.public_key) {
        Some(one) => one.endpoint.is_none(),
        None => peer.endpoint_name.is_none() && peer.persistent_keepalive == 0,
    }
}

/// Names a peer in a sentence.
pub(super) fn shown(peer: &PeerStatus, device: &Device) -> String {
    match device.status.peers.len() {
        1 => "its peer".to_owned(),
        _ => format!("the peer {}", encoded(peer)),
    }
}

pub(super) fn encoded(peer: &PeerStatus) -> String {
    let key = Encoding::Base64.encode(&peer.public_key.0);
    key.as_str().to_owned()
}
