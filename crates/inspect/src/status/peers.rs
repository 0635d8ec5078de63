//! Findings and notes about a tunnel's peers.

use super::{judge, now, way};
use taupe_client::{Device, PeerStatus};
use taupe_config::file::File;
use taupe_runtime::clock::boot;
use taupe_uapi::key::Encoding;
use taupe_uapi::show;

/// Judges a peer. `mark` is the fwmark of datagrams to it, if they leave from this network
/// namespace.
pub(super) fn heard(
    device: &Device,
    peer: &PeerStatus,
    is_caller: bool,
    mark: Option<u32>,
) -> Option<judge::Heard> {
    let shown = shown(peer, device);
    if show::lacks_own_key(&device.status, peer) {
        return Some(judge::Heard::Finding(judge::no_own_key(&shown)));
    }
    let status = judge::Peer {
        is_caller,
        age: peer.latest_handshake.map(|at| now().saturating_sub(at)),
        unanswered: peer
            .unanswered
            .map(|silence| (silence.initiations, boot().since(silence.since))),
        has_sent: peer.tx_bytes > 0,
        way: match (peer.unanswered, peer.endpoint, mark) {
            (silence, Some(endpoint), Some(mark)) if !is_caller => {
                way::look(endpoint.ip(), mark, silence.is_some())
            }
            _ => judge::Way::Unknown,
        },
    };
    judge::peer(&shown, peer.endpoint, &status)
}

/// Returns the reasons why no datagrams leave for peers of a device.
pub(super) fn unreachable<'a>(
    device: &'a Device,
    file: Option<&'a File>,
) -> impl Iterator<Item = judge::Finding> + 'a {
    let peers = device.status.peers.iter();
    peers.filter_map(move |peer| {
        let endpoint = peer.endpoint.filter(|_| !is_caller(peer, file))?;
        let way = way::look(endpoint.ip(), device.fwmark, false);
        judge::unreachable(&shown(peer, device), endpoint, &way, None)
    })
}

/// Returns a sentence about `outer` for the status of a tunnel that goes through it.
pub(super) fn of_outer(outer: &str, text: &str) -> String {
    format!("{outer}, which it goes through: {text}")
}

/// Checks whether a peer calls, so that this side only answers: it has no `Endpoint` in the file. A
/// peer that was added to the device counts as one if it has neither an endpoint name nor a
/// keepalive. Without a file, no peer counts as one.
pub(super) fn is_caller(peer: &PeerStatus, file: Option<&File>) -> bool {
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
