//! Parser of one line of a `set`.

use core::mem;
use core::net::SocketAddr;
use core::str;

use taupe_protocol::key::PqPublicKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{
    AllowedIpChange, EndpointName, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};

use crate::error::RequestProblem;
use crate::key::{Encoding, PqKeyError};
use crate::prefix;
use crate::request::{ScopeLookup, SetRequest};
use crate::text::decimal;

/// Value of `post_quantum` that restores the default.
pub(super) const DEFAULT: &str = "default";

/// Applies `line` to `request`, or returns the line's key and the problem.
///
/// Lines have the same meaning as in wireguard-go, which applies them in order: a repeated key
/// overrides, `replace_allowed_ips` also discards earlier changes of the peer, and all lines from
/// the first `public_key` on concern peers.
pub(super) fn apply<'a>(
    request: &mut SetRequest,
    line: &'a [u8],
    scopes: ScopeLookup<'_>,
) -> Result<(), (&'a str, RequestProblem)> {
    let line = str::from_utf8(line).map_err(|_| ("", RequestProblem::NotUtf8))?;
    let (key, value) = line
        .split_once('=')
        .ok_or(("", RequestProblem::NotKeyValue))?;
    let applied = match request.device.peers.last_mut() {
        _ if key == "public_key" => add_peer(&mut request.device.peers, value),
        Some(peer) => apply_to_peer(peer, key, value, scopes),
        None => apply_to_device(request, key, value),
    };
    applied.map_err(|problem| (key, problem))
}

fn apply_to_device(request: &mut SetRequest, key: &str, value: &str) -> Result<(), RequestProblem> {
    match key {
        "private_key" => {
            request.device.private_key = Some(PrivateKeyUpdate {
                key: Encoding::Hex.private_key(value)?,
                timestamp_floor: Tai64N::ZERO,
            });
        }
        "pq_private_key" => {
            request.device.pq_private_key = Some(Encoding::Hex.pq_private_key(value)?);
        }
        "listen_port" => request.listen_port = Some(u16_from(value)?),
        "fwmark" => request.fwmark = Some(fwmark(value)?),
        "replace_peers" => request.device.replace_peers = flag(value)?,
        "update_only"
        | "remove"
        | "preshared_key"
        | "endpoint"
        | "endpoint_name"
        | "pq_public_key"
        | "post_quantum"
        | "persistent_keepalive_interval"
        | "keepalive_now"
        | "replace_allowed_ips"
        | "allowed_ip"
        | "protocol_version" => return Err(RequestProblem::PeerKeyBeforePeer),
        _ => return Err(RequestProblem::UnknownDeviceKey),
    }
    Ok(())
}

fn apply_to_peer(
    peer: &mut PeerUpdate,
    key: &str,
    value: &str,
    scopes: ScopeLookup<'_>,
) -> Result<(), RequestProblem> {
    match key {
        "update_only" => peer.update_only = flag(value)?,
        "remove" => peer.remove = flag(value)?,
        "preshared_key" => peer.preshared_key = Some(Encoding::Hex.preshared_key(value)?),
        "endpoint" => peer.endpoint = Some(endpoint(value, scopes)?),
        "endpoint_name" => peer.endpoint_name = Some(endpoint_name(value)?),
        "pq_public_key" => peer.pq_public_key = Some(pq_public_key(value)?),
        "post_quantum" if value == DEFAULT => peer.post_quantum = Some(None),
        "post_quantum" => peer.post_quantum = Some(Some(post_quantum(value)?)),
        "persistent_keepalive_interval" => peer.persistent_keepalive = Some(u16_from(value)?),
        "keepalive_now" => peer.keepalive_now = flag(value)?,
        "replace_allowed_ips" => {
            peer.replace_allowed_ips = flag(value)?;
            peer.allowed_ips.clear();
        }
        "allowed_ip" => peer.allowed_ips.push(allowed_ip(value)?),
        "protocol_version" if value == "1" => {}
        "protocol_version" => return Err(RequestProblem::ProtocolVersion),
        "private_key" | "pq_private_key" | "listen_port" | "fwmark" | "replace_peers" => {
            return Err(RequestProblem::DeviceKeyAfterPeer);
        }
        _ => return Err(RequestProblem::UnknownPeerKey),
    }
    Ok(())
}

/// Begins the update of a peer.
///
/// Reallocation would leave copies of preshared keys in freed memory. So growing clones them, and
/// drops the old ones in place, which zeroises them.
fn add_peer(peers: &mut Vec<PeerUpdate>, value: &str) -> Result<(), RequestProblem> {
    let public_key = Encoding::Hex.public_key(value)?;
    if peers.len() == peers.capacity() {
        let mut grown = Vec::with_capacity((peers.len() * 2).max(1));
        grown.extend(peers.iter_mut().map(|peer| PeerUpdate {
            preshared_key: peer.preshared_key.clone(),
            pq_public_key: mem::take(&mut peer.pq_public_key),
            endpoint_name: mem::take(&mut peer.endpoint_name),
            allowed_ips: mem::take(&mut peer.allowed_ips),
            ..*peer
        }));
        *peers = grown;
    }
    peers.push(PeerUpdate::new(public_key));
    Ok(())
}

fn flag(value: &str) -> Result<bool, RequestProblem> {
    (value == "true")
        .then_some(true)
        .ok_or(RequestProblem::NotTrue)
}

fn u16_from(value: &str) -> Result<u16, RequestProblem> {
    decimal(value).ok_or(RequestProblem::Number { max: u16::MAX })
}

/// Parses a packet mark: decimal as from `wg`, or hexadecimal.
fn fwmark(value: &str) -> Result<u32, RequestProblem> {
    let mark = match value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"))
    {
        // `from_str_radix` would accept a sign.
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None => decimal(value),
    };
    mark.ok_or(RequestProblem::Fwmark)
}

/// Parses an endpoint. `wg` sends the scope of a link-local address as an interface name.
pub(super) fn endpoint(value: &str, scopes: ScopeLookup<'_>) -> Result<SocketAddr, RequestProblem> {
    let name = value
        .split_once('%')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(scope, _)| scope)
        .filter(|scope| decimal::<u32>(scope).is_none());
    let Some(name) = name else {
        return value.parse().map_err(|_| RequestProblem::Endpoint);
    };
    let index = scopes(name).ok_or(RequestProblem::EndpointScope)?;
    let numeric = value.replacen(&format!("%{name}]"), &format!("%{index}]"), 1);
    numeric.parse().map_err(|_| RequestProblem::Endpoint)
}

/// Parses an endpoint name. An empty value removes the name.
pub(super) fn endpoint_name(value: &str) -> Result<Option<EndpointName>, RequestProblem> {
    if value.is_empty() {
        return Ok(None);
    }
    value
        .rsplit_once(':')
        .and_then(|(host, port)| EndpointName::new(host, decimal(port)?))
        .map(Some)
        .ok_or(RequestProblem::EndpointName)
}

/// Parses an ML-KEM key. An empty value removes the key.
fn pq_public_key(value: &str) -> Result<Option<PqPublicKey>, PqKeyError> {
    let is_given = !value.is_empty();
    is_given
        .then(|| Encoding::Hex.pq_public_key(value))
        .transpose()
}

pub(super) fn post_quantum(value: &str) -> Result<PostQuantum, RequestProblem> {
    let mut all = PostQuantum::ALL.into_iter();
    all.find(|one| one.name() == value)
        .ok_or(RequestProblem::PostQuantum)
}

/// Parses an allowed IP. The length is required, because `10.0.0.0` may be meant as a network.
fn allowed_ip(value: &str) -> Result<AllowedIpChange, RequestProblem> {
    if !value.contains('/') {
        return Err(RequestProblem::AllowedIpWithoutLength);
    }
    let change = match value.strip_prefix('-') {
        Some(prefix) => AllowedIpChange::Remove(prefix::parse(prefix)?),
        None => AllowedIpChange::Add(prefix::parse(value.strip_prefix('+').unwrap_or(value))?),
    };
    Ok(change)
}
