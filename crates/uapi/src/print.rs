//! Writes answers to `get`, and `set` requests in canonical form.

use core::fmt::{self, Write};

use taupe_protocol::key::{KEY_LEN, PqPrivateKey, PqPublicKey};
use taupe_protocol::update::{
    AllowedIpChange, DeviceStatus, PeerStatus, PeerUpdate, PostQuantum, Unanswered,
};
use zeroize::Zeroizing;

use super::set::DEFAULT;
use super::{SetRequest, Status};
use crate::answer::Counter;
use crate::key::Encoding;
use crate::text::secret_text;

/// Extensions of a `set` that this device supports, separated by blanks. A client omits the keys of
/// others.
const FEATURES: &str = "endpoint_name keepalive_now post_quantum";

/// Returns the complete answer to a `get`, as [`secret_text`].
#[must_use]
pub fn answer_get(status: &DeviceStatus, listen_port: u16, fwmark: u32) -> Zeroizing<String> {
    answer_get_with(status, listen_port, fwmark, &[])
}

/// Returns the same with the counters of the device that are not 0.
#[must_use]
pub fn answer_get_with(
    status: &DeviceStatus,
    listen_port: u16,
    fwmark: u32,
    counters: &[Counter],
) -> Zeroizing<String> {
    secret_text(|mut out| write_get_with(&mut out, status, listen_port, fwmark, counters))
}

/// Writes the complete answer to a `get`: a line with the device's extensions, then the keys in the
/// order of wireguard-go. As there, a private key, port, mark or endpoint that is not set is
/// omitted.
///
/// Writes private and preshared keys: `out` must not leave copies in memory. [`answer_get`] has
/// such a buffer.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_get(
    out: &mut impl Write,
    status: &DeviceStatus,
    listen_port: u16,
    fwmark: u32,
) -> fmt::Result {
    write_get_with(out, status, listen_port, fwmark, &[])
}

fn write_get_with(
    out: &mut impl Write,
    status: &DeviceStatus,
    listen_port: u16,
    fwmark: u32,
    counters: &[Counter],
) -> fmt::Result {
    let DeviceStatus {
        private_key,
        pq_private_key,
        peers,
    } = status;
    writeln!(out, "features={FEATURES}")?;
    if let Some(private_key) = private_key {
        write_key(out, "private_key", private_key.expose())?;
    }
    if let Some(seed) = pq_private_key {
        write_seed(out, seed)?;
    }
    if listen_port != 0 {
        writeln!(out, "listen_port={listen_port}")?;
    }
    if fwmark != 0 {
        writeln!(out, "fwmark={fwmark}")?;
    }
    for Counter { group, name, count } in counters.iter().filter(|it| it.count > 0) {
        writeln!(out, "counter={group} {name} {count}")?;
    }
    for peer in peers {
        write_peer_status(out, peer)?;
    }
    write!(out, "{}", Status::SUCCESS)
}

/// Returns a complete `set` request, as [`secret_text`]; see [`write_set`].
#[must_use]
pub fn set_text(request: &SetRequest) -> Zeroizing<String> {
    secret_text(|mut out| write_set(&mut out, request))
}

/// Writes a complete `set` request. Parsing it returns `request` again, except for the private
/// key's `timestamp_floor`, which the UAPI does not transmit.
///
/// Writes secrets, as [`write_get`] does.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_set(out: &mut impl Write, request: &SetRequest) -> fmt::Result {
    let SetRequest {
        listen_port,
        fwmark,
        device,
    } = request;
    writeln!(out, "set=1")?;
    if let Some(update) = &device.private_key {
        let key = update
            .key
            .as_ref()
            .map_or(&[0; KEY_LEN], |key| key.expose());
        write_key(out, "private_key", key)?;
    }
    match &device.pq_private_key {
        Some(Some(seed)) => write_seed(out, seed)?,
        Some(None) => writeln!(out, "pq_private_key={:0>1$}", "", 2 * PqPrivateKey::LEN)?,
        None => {}
    }
    if let Some(listen_port) = listen_port {
        writeln!(out, "listen_port={listen_port}")?;
    }
    if let Some(fwmark) = fwmark {
        writeln!(out, "fwmark={fwmark}")?;
    }
    write_flag(out, "replace_peers", device.replace_peers)?;
    for peer in &device.peers {
        write_peer_update(out, peer)?;
    }
    writeln!(out)
}

fn write_peer_status(out: &mut impl Write, peer: &PeerStatus) -> fmt::Result {
    let PeerStatus {
        public_key,
        preshared_key,
        pq_public_key,
        post_quantum,
        pq_pinned,
        session,
        lanes,
        endpoint,
        endpoint_name,
        latest_handshake,
        unanswered,
        tx_bytes,
        rx_bytes,
        persistent_keepalive,
        allowed_ips,
    } = peer;
    write_key(out, "public_key", &public_key.0)?;
    write_key(out, "preshared_key", preshared_key.expose())?;
    writeln!(out, "protocol_version=1")?;
    if let Some(endpoint) = endpoint {
        writeln!(out, "endpoint={endpoint}")?;
    }
    if let Some(name) = endpoint_name {
        writeln!(out, "endpoint_name={name}")?;
    }
    if let Some(key) = pq_public_key {
        write_pq_public_key(out, key)?;
    }
    if let Some(post_quantum) = post_quantum {
        writeln!(out, "post_quantum={}", post_quantum.name())?;
    }
    write_flag(out, "pq_latched", *pq_pinned)?;
    if let Some(session) = session {
        writeln!(out, "session={} {}", session.name(), session.born.0)?;
    }
    if let Some(lanes) = lanes {
        let (receiving, remote) = (lanes.receiving.count(), lanes.remote.count());
        writeln!(out, "lanes={receiving} {remote}")?;
        write_flag(out, "interleaved", lanes.interleaved)?;
    }
    let handshake = latest_handshake.unwrap_or_default();
    writeln!(out, "last_handshake_time_sec={}", handshake.as_secs())?;
    writeln!(out, "last_handshake_time_nsec={}", handshake.subsec_nanos())?;
    if let Some(Unanswered { initiations, since }) = unanswered {
        writeln!(out, "unanswered={initiations} {}", since.0)?;
    }
    writeln!(out, "tx_bytes={tx_bytes}")?;
    writeln!(out, "rx_bytes={rx_bytes}")?;
    writeln!(out, "persistent_keepalive_interval={persistent_keepalive}")?;
    for prefix in allowed_ips {
        writeln!(out, "allowed_ip={}", prefix)?;
    }
    Ok(())
}

fn write_peer_update(out: &mut impl Write, peer: &PeerUpdate) -> fmt::Result {
    let PeerUpdate {
        public_key,
        remove,
        update_only,
        preshared_key,
        pq_public_key,
        post_quantum,
        // Determined by the device; clients cannot set it.
        pq_pinned: _,
        endpoint,
        endpoint_name,
        persistent_keepalive,
        keepalive_now,
        replace_allowed_ips,
        allowed_ips,
    } = peer;
    write_key(out, "public_key", &public_key.0)?;
    write_flag(out, "update_only", *update_only)?;
    write_flag(out, "remove", *remove)?;
    if let Some(preshared_key) = preshared_key {
        write_key(out, "preshared_key", preshared_key.expose())?;
    }
    if let Some(endpoint) = endpoint {
        writeln!(out, "endpoint={endpoint}")?;
    }
    match endpoint_name {
        Some(Some(name)) => writeln!(out, "endpoint_name={name}")?,
        Some(None) => writeln!(out, "endpoint_name=")?,
        None => {}
    }
    match pq_public_key {
        Some(Some(key)) => write_pq_public_key(out, key)?,
        Some(None) => writeln!(out, "pq_public_key=")?,
        None => {}
    }
    if let Some(post_quantum) = post_quantum {
        let word = post_quantum.map_or(DEFAULT, PostQuantum::name);
        writeln!(out, "post_quantum={word}")?;
    }
    if let Some(seconds) = persistent_keepalive {
        writeln!(out, "persistent_keepalive_interval={seconds}")?;
    }
    write_flag(out, "keepalive_now", *keepalive_now)?;
    write_flag(out, "replace_allowed_ips", *replace_allowed_ips)?;
    for change in allowed_ips {
        match change {
            AllowedIpChange::Add(prefix) => {
                writeln!(out, "allowed_ip={}", prefix)?;
            }
            AllowedIpChange::Remove(prefix) => {
                writeln!(out, "allowed_ip=-{}", prefix)?;
            }
        }
    }
    Ok(())
}

fn write_flag(out: &mut impl Write, name: &str, set: bool) -> fmt::Result {
    if set {
        writeln!(out, "{name}=true")
    } else {
        Ok(())
    }
}

fn write_key(out: &mut impl Write, name: &str, key: &[u8; KEY_LEN]) -> fmt::Result {
    writeln!(out, "{name}={}", Encoding::Hex.encode(key).as_str())
}

fn write_seed(out: &mut impl Write, seed: &PqPrivateKey) -> fmt::Result {
    let text = Encoding::Hex.encode_pq_private_key(seed);
    writeln!(out, "pq_private_key={}", text.as_str())
}

fn write_pq_public_key(out: &mut impl Write, key: &PqPublicKey) -> fmt::Result {
    writeln!(
        out,
        "pq_public_key={}",
        Encoding::Hex.encode_pq_public_key(key)
    )
}
