//! `set`.

use super::{Call, Compatibility, Failed, Outcome, value};
use std::ffi::{OsStr, OsString};
use taupe_client::{PeerUpdate, PresharedKey, PrivateKey, SetRequest};
use value::ValueError;

pub(super) fn set(call: &Call<'_>) -> Outcome {
    let (interface, words) = match call.rest {
        [interface, words @ ..] if !words.is_empty() => (interface.to_string_lossy(), words),
        _ => return Err(call.misused()),
    };
    let request = request(call, words)?;
    taupe_client::apply(&interface, request)
        .map_err(|error| call.refused("Unable to modify interface", &interface, &error))
}

/// Translates the arguments to a request to the device.
fn request(call: &Call<'_>, words: &[OsString]) -> Result<SetRequest, Failed> {
    let mut request = SetRequest::default();
    // The capacity is reserved, because growing would leave copies of keys behind.
    let peers = words.iter().filter(|word| *word == "peer").count();
    request.device.peers.reserve_exact(peers);
    let is_taupe = call.compatibility == Compatibility::Taupe;
    let mut words = words.iter().map(OsString::as_os_str);
    while let Some(word) = words.next() {
        let invalid = |invalid: ValueError| {
            call.failed(&invalid.wg(), || {
                format!("{}: {}", word.to_string_lossy(), invalid.taupe())
            })
        };
        let next = words.clone().next();
        let peer = request.device.peers.last_mut();
        match (word.to_str(), peer, next) {
            (Some("listen-port"), None, Some(text)) => {
                request.listen_port = Some(value::port(text).map_err(invalid)?);
            }
            (Some("fwmark"), None, Some(text)) => {
                request.fwmark = Some(value::fwmark(text).map_err(invalid)?);
            }
            (Some("private-key"), None, Some(path)) => {
                let key = value::key_file(path, "genkey").map_err(invalid)?;
                let key = PrivateKey::new(*key);
                request.device.private_key = Some(taupe_client::new_private_key(key));
            }
            (Some("pq-private-key"), None, Some(path)) if is_taupe => {
                request.device.pq_private_key = Some(value::pq_private_key(path).map_err(invalid)?);
            }
            (Some("pq-public-key"), Some(peer), Some(path)) if is_taupe => {
                peer.pq_public_key = Some(value::pq_public_key(path).map_err(invalid)?);
            }
            (Some("post-quantum"), Some(peer), Some(text)) if is_taupe => {
                peer.post_quantum = Some(value::post_quantum(text).map_err(invalid)?);
            }
            (Some("peer"), _, Some(key)) => {
                let key = value::public_key(key).map_err(invalid)?;
                request.device.peers.push(PeerUpdate::new(key));
            }
            (Some("remove"), Some(peer), _) => {
                peer.remove = true;
                continue;
            }
            (Some("endpoint"), Some(peer), Some(text)) => {
                let (address, name) = value::endpoint(text).map_err(invalid)?;
                peer.endpoint = Some(address);
                peer.endpoint_name = name.map(Some);
            }
            (Some("allowed-ips"), Some(peer), Some(text)) => {
                value::allowed_ips(peer, text).map_err(invalid)?;
            }
            (Some("persistent-keepalive"), Some(peer), Some(text)) => {
                peer.persistent_keepalive = Some(value::keepalive(text).map_err(invalid)?);
            }
            (Some("preshared-key"), Some(peer), Some(path)) => {
                let key = value::key_file(path, "genpsk").map_err(invalid)?;
                peer.preshared_key = Some(PresharedKey::new(*key));
            }
            _ => return Err(unexpected(call, word)),
        }
        words.next();
    }
    for peer in request.device.peers.iter_mut().filter(|peer| peer.remove) {
        *peer = PeerUpdate {
            remove: true,
            ..PeerUpdate::new(peer.public_key)
        };
    }
    Ok(request)
}

fn unexpected(call: &Call<'_>, word: &OsStr) -> Failed {
    call.failed(
        &[b"Invalid argument: ", word.as_encoded_bytes()].concat(),
        || {
            format!(
                "set: {word:?} is not valid here; first write listen-port, fwmark, private-key and \
             pq-private-key, each with a value, then for each peer `peer KEY' and its settings: \
             remove, or preshared-key, pq-public-key, post-quantum, endpoint, \
             persistent-keepalive and allowed-ips, each with a value"
            )
        },
    )
}
