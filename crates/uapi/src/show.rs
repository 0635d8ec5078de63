//! The output of `wg show` and `wg showconf` for a device, byte for byte.
//!
//! These functions write secrets: `out` must not leave copies in memory.

mod colour;
mod post_quantum;
mod showconf;
mod units;

use core::fmt::{self, Write};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::str::FromStr;
use core::time::Duration;

use ipnet::IpNet;
use taupe_protocol::key::{KEY_LEN, PublicKey};
use taupe_protocol::time::Instant;
use taupe_protocol::update::{DeviceStatus, PeerStatus};

use crate::Device;
use crate::key::Encoding;
use crate::{networks, prefix};

pub use colour::Colours;
pub use post_quantum::{
    HandshakeState, fingerprint, handshake_mode, handshake_state, lacks_own_key,
};
pub use showconf::{COMMENT_PREFIX, write_peer_pq_keys, write_pq_private_key};

use colour::{BOLD, CYAN, GREEN, RED, RESET, YELLOW};

/// Returns the name of an interface by its index. IPv6 scopes are printed by name.
pub type ScopeNames<'a> = &'a dyn Fn(u32) -> Option<String>;

/// Options of the human-readable form.
#[derive(Clone, Copy)]
pub struct PrettyOptions<'a> {
    /// Use of terminal colours.
    pub colours: Colours,
    /// True to show private and preshared keys instead of `(hidden)`.
    pub show_keys: bool,
    /// Wall-clock time, since the Unix epoch.
    pub now: Duration,
    /// The same time on the boot clock, for the age of sessions.
    pub boot: Instant,
    /// See [`ScopeNames`].
    pub scopes: ScopeNames<'a>,
    /// Additions of `taupe show`, which also shortens long lists of networks to `everything except …`.
    /// `None` prints the output of `wg`.
    pub extra: Option<Extra<'a>>,
}

/// Additions of `taupe show`, beside endpoint names and the state of handshakes.
#[derive(Clone, Copy)]
pub struct Extra<'a> {
    /// Lines of label and text about the device.
    pub lines: &'a [(&'a str, String)],
    /// Returns the name of a peer, without control characters.
    pub name: &'a dyn Fn(&PublicKey) -> Option<String>,
}

/// Writes the human-readable form of a device. Peers with the most recent handshake come first.
///
/// # Errors
/// Returns the errors of `out`.
pub fn pretty(out: &mut impl Write, device: &Device, options: &PrettyOptions<'_>) -> fmt::Result {
    let paint = options.colours;
    paint.write(out, &[RESET, GREEN, BOLD])?;
    out.write_str("interface")?;
    paint.write(out, &[RESET])?;
    out.write_str(": ")?;
    paint.write(out, &[GREEN])?;
    out.write_str(&device.name)?;
    paint.write(out, &[RESET])?;
    out.write_char('\n')?;
    if let Some(key) = &device.public_key {
        label(out, paint, "public key")?;
        writeln!(out, "{}", base64(&key.0).as_str())?;
    }
    if let Some(key) = &device.status.private_key {
        label(out, paint, "private key")?;
        writeln!(out, "{}", key_or_hidden(options, key.expose()).as_str())?;
    }
    if device.listen_port != 0 {
        label(out, paint, "listening port")?;
        writeln!(out, "{}", device.listen_port)?;
    }
    if device.fwmark != 0 {
        label(out, paint, "fwmark")?;
        writeln!(out, "{:#x}", device.fwmark)?;
    }
    for (name, text) in options.extra.map_or(&[][..], |extra| extra.lines) {
        label(out, paint, name)?;
        writeln!(out, "{text}")?;
    }
    let mut peers: Vec<&PeerStatus> = device.status.peers.iter().collect();
    peers.sort_by_key(|peer| core::cmp::Reverse(peer.latest_handshake));
    peers
        .into_iter()
        .try_for_each(|peer| pretty_peer(out, &device.status, peer, options))
}

/// Longer lists are written as everything except other networks, if that is shorter.
const MAX_LISTED: usize = 8;

/// Returns a long list of networks as `0.0.0.0/0, ::/0 except …`: two lists, each with the word
/// before it.
fn as_everything_except(networks: &[IpNet]) -> Option<[(&'static str, Vec<IpNet>); 2]> {
    if networks.len() <= MAX_LISTED {
        return None;
    }
    let default_routes = ["0.0.0.0/0", "::/0"].map(prefix::parse);
    let is_in_use = |default: &IpNet| {
        let mut networks = networks.iter();
        networks.any(|network| network.addr().is_ipv4() == default.addr().is_ipv4())
    };
    let all: Vec<IpNet> = default_routes
        .into_iter()
        .flatten()
        .filter(is_in_use)
        .collect();
    let except = networks::subtract(&all, networks);
    (!except.is_empty() && except.len() <= networks.len() / 2)
        .then_some([("", all), (" except ", except)])
}

fn pretty_peer(
    out: &mut impl Write,
    device: &DeviceStatus,
    peer: &PeerStatus,
    options: &PrettyOptions<'_>,
) -> fmt::Result {
    let paint = options.colours;
    out.write_char('\n')?;
    paint.write(out, &[YELLOW, BOLD])?;
    out.write_str("peer")?;
    paint.write(out, &[RESET])?;
    out.write_str(": ")?;
    paint.write(out, &[YELLOW])?;
    out.write_str(&base64(&peer.public_key.0))?;
    paint.write(out, &[RESET])?;
    out.write_char('\n')?;
    if let Some(name) = options
        .extra
        .and_then(|extra| (extra.name)(&peer.public_key))
    {
        label(out, paint, "name")?;
        writeln!(out, "{name}")?;
    }
    if peer.preshared_key.is_set() {
        label(out, paint, "preshared key")?;
        writeln!(
            out,
            "{}",
            key_or_hidden(options, peer.preshared_key.expose()).as_str()
        )?;
    }
    if let Some(address) = peer.endpoint {
        label(out, paint, "endpoint")?;
        writeln!(out, "{}", fmt_endpoint(address, options.scopes))?;
    }
    label(out, paint, "allowed ips")?;
    if peer.allowed_ips.is_empty() {
        out.write_str("(none)")?;
    }
    let short = options
        .extra
        .and_then(|_| as_everything_except(&peer.allowed_ips));
    let lists = match &short {
        Some(lists) => lists.as_slice(),
        None => &[("", peer.allowed_ips.clone())],
    };
    for (word, networks) in lists {
        out.write_str(word)?;
        for (index, network) in networks.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(out, "{separator}{}", fmt_ip(network.network()))?;
            paint.write(out, &[CYAN])?;
            out.write_char('/')?;
            paint.write(out, &[RESET])?;
            write!(out, "{}", network.prefix_len())?;
        }
    }
    out.write_char('\n')?;
    if let Some(time) = peer.latest_handshake.map(|time| time.as_secs())
        && time != 0
    {
        label(out, paint, "latest handshake")?;
        match options.now.as_secs().checked_sub(time) {
            None => {
                out.write_char('(')?;
                paint.write(out, &[RED])?;
                out.write_str("System clock wound backward; connection problems may ensue.")?;
                paint.write(out, &[RESET])?;
                out.write_char(')')?;
            }
            Some(0) => out.write_str("Now")?,
            Some(seconds) => {
                units::duration(out, paint, seconds)?;
                out.write_str(" ago")?;
            }
        }
        out.write_char('\n')?;
    }
    if (peer.rx_bytes, peer.tx_bytes) != (0, 0) {
        label(out, paint, "transfer")?;
        units::bytes(out, paint, peer.rx_bytes)?;
        out.write_str(" received, ")?;
        units::bytes(out, paint, peer.tx_bytes)?;
        out.write_str(" sent\n")?;
    }
    if peer.persistent_keepalive != 0 {
        label(out, paint, "persistent keepalive")?;
        out.write_str("every ")?;
        units::duration(out, paint, peer.persistent_keepalive.into())?;
        out.write_char('\n')?;
    }
    if options.extra.is_none() {
        return Ok(());
    }
    if let Some(name) = &peer.endpoint_name {
        label(out, paint, "endpoint name")?;
        writeln!(out, "{name}")?;
    }
    if let Some(key) = &peer.pq_public_key {
        label(out, paint, "post-quantum key")?;
        writeln!(out, "{}", fingerprint(key))?;
    }
    if let Some(state) = handshake_state(device, peer, options.boot) {
        label(out, paint, "post-quantum")?;
        writeln!(out, "{state}")?;
    }
    Ok(())
}

fn label(out: &mut impl Write, paint: Colours, text: &str) -> fmt::Result {
    out.write_str("  ")?;
    paint.write(out, &[BOLD])?;
    out.write_str(text)?;
    paint.write(out, &[RESET])?;
    out.write_str(": ")
}

/// A field of a device, in machine-readable form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The device's public key.
    PublicKey,
    /// The device's private key.
    PrivateKey,
    /// The device's UDP port.
    ListenPort,
    /// The device's packet mark.
    Fwmark,
    /// The peers' public keys.
    Peers,
    /// The peers' preshared keys.
    PresharedKeys,
    /// The peers' addresses and ports.
    Endpoints,
    /// The peers' allowed IPs.
    AllowedIps,
    /// Times of the peers' latest handshakes.
    LatestHandshakes,
    /// Bytes received from and sent to the peers.
    Transfer,
    /// The peers' persistent keepalives.
    PersistentKeepalive,
    /// All fields: the device in the first line, and one line per peer.
    Dump,
}

/// The name is not that of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownField;

impl Field {
    /// All fields with their names, in the order of `wg`'s manual.
    pub const ALL: [(&'static str, Self); 12] = [
        ("public-key", Self::PublicKey),
        ("private-key", Self::PrivateKey),
        ("listen-port", Self::ListenPort),
        ("fwmark", Self::Fwmark),
        ("peers", Self::Peers),
        ("preshared-keys", Self::PresharedKeys),
        ("endpoints", Self::Endpoints),
        ("allowed-ips", Self::AllowedIps),
        ("latest-handshakes", Self::LatestHandshakes),
        ("transfer", Self::Transfer),
        ("persistent-keepalive", Self::PersistentKeepalive),
        ("dump", Self::Dump),
    ];
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(text: &str) -> Result<Self, UnknownField> {
        let named = Self::ALL.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, field)| field).ok_or(UnknownField)
    }
}

/// Writes one field of a device, separated by tabs. Each line begins with the device's name if
/// `with_name`.
///
/// # Errors
/// Returns the errors of `out`.
pub fn field(
    out: &mut impl Write,
    device: &Device,
    field: Field,
    with_name: bool,
    scopes: ScopeNames<'_>,
) -> fmt::Result {
    let write_name = |out: &mut dyn Write| match with_name {
        true => write!(out, "{}\t", device.name),
        false => Ok(()),
    };
    if let Field::PublicKey | Field::PrivateKey | Field::ListenPort | Field::Fwmark | Field::Dump =
        field
    {
        write_name(out)?;
    }
    match field {
        Field::PublicKey => write_key(out, device.public_key.as_ref().map(|key| &key.0))?,
        Field::PrivateKey => write_private_key(out, device)?,
        Field::ListenPort => write!(out, "{}", device.listen_port)?,
        Field::Fwmark => write_fwmark(out, device.fwmark)?,
        Field::Dump => {
            write_private_key(out, device)?;
            out.write_char('\t')?;
            write_key(out, device.public_key.as_ref().map(|key| &key.0))?;
            write!(out, "\t{}\t", device.listen_port)?;
            write_fwmark(out, device.fwmark)?;
        }
        _ => {
            return device.status.peers.iter().try_for_each(|peer| {
                write_name(out)?;
                peer_field(out, peer, field, scopes)
            });
        }
    }
    out.write_char('\n')?;
    if field == Field::Dump {
        for peer in &device.status.peers {
            write_name(out)?;
            dump_peer(out, peer, scopes)?;
        }
    }
    Ok(())
}

fn peer_field(
    out: &mut impl Write,
    peer: &PeerStatus,
    field: Field,
    scopes: ScopeNames<'_>,
) -> fmt::Result {
    write_key(out, Some(&peer.public_key.0))?;
    match field {
        Field::PresharedKeys => {
            out.write_char('\t')?;
            write_preshared_key(out, peer)?;
        }
        Field::Endpoints => {
            out.write_char('\t')?;
            write_endpoint(out, peer, scopes)?;
        }
        Field::AllowedIps => {
            out.write_char('\t')?;
            write_networks(out, &peer.allowed_ips, " ")?;
        }
        Field::LatestHandshakes => write!(out, "\t{}", handshake_seconds(peer))?,
        Field::Transfer => write!(out, "\t{}\t{}", peer.rx_bytes, peer.tx_bytes)?,
        Field::PersistentKeepalive => {
            out.write_char('\t')?;
            write_keepalive(out, peer.persistent_keepalive)?;
        }
        _ => {}
    }
    out.write_char('\n')
}

fn dump_peer(out: &mut impl Write, peer: &PeerStatus, scopes: ScopeNames<'_>) -> fmt::Result {
    write_key(out, Some(&peer.public_key.0))?;
    out.write_char('\t')?;
    write_preshared_key(out, peer)?;
    out.write_char('\t')?;
    write_endpoint(out, peer, scopes)?;
    out.write_char('\t')?;
    write_networks(out, &peer.allowed_ips, ",")?;
    write!(
        out,
        "\t{}\t{}\t{}\t",
        handshake_seconds(peer),
        peer.rx_bytes,
        peer.tx_bytes
    )?;
    write_keepalive(out, peer.persistent_keepalive)?;
    out.write_char('\n')
}

/// Writes a device as a file for `wg setconf`. If `with_extensions`, it has comments with keys
/// for `taupe setconf`.
///
/// # Errors
/// Returns the errors of `out`.
pub fn showconf(
    out: &mut impl Write,
    device: &Device,
    with_extensions: bool,
    scopes: ScopeNames<'_>,
) -> fmt::Result {
    out.write_str("[Interface]\n")?;
    if device.listen_port != 0 {
        writeln!(out, "ListenPort = {}", device.listen_port)?;
    }
    if device.fwmark != 0 {
        writeln!(out, "FwMark = {:#x}", device.fwmark)?;
    }
    if let Some(key) = &device.status.private_key {
        writeln!(out, "PrivateKey = {}", base64(key.expose()).as_str())?;
    }
    if let (true, Some(key)) = (with_extensions, &device.status.pq_private_key) {
        write_pq_private_key(out, key)?;
    }
    out.write_char('\n')?;
    for (index, peer) in device.status.peers.iter().enumerate() {
        let gap = if index == 0 { "" } else { "\n" };
        let key = base64(&peer.public_key.0);
        writeln!(out, "{gap}[Peer]\nPublicKey = {}", key.as_str())?;
        if peer.preshared_key.is_set() {
            let key = base64(peer.preshared_key.expose());
            writeln!(out, "PresharedKey = {}", key.as_str())?;
        }
        if with_extensions {
            write_peer_pq_keys(out, peer.pq_public_key.as_ref(), peer.post_quantum)?;
        }
        if !peer.allowed_ips.is_empty() {
            out.write_str("AllowedIPs = ")?;
            write_networks(out, &peer.allowed_ips, ", ")?;
            out.write_char('\n')?;
        }
        if let Some(address) = peer.endpoint {
            writeln!(out, "Endpoint = {}", fmt_endpoint(address, scopes))?;
        }
        if peer.persistent_keepalive != 0 {
            writeln!(out, "PersistentKeepalive = {}", peer.persistent_keepalive)?;
        }
    }
    Ok(())
}

fn handshake_seconds(peer: &PeerStatus) -> u64 {
    peer.latest_handshake.unwrap_or_default().as_secs()
}

fn base64(key: &[u8; KEY_LEN]) -> zeroize::Zeroizing<String> {
    Encoding::Base64.encode(key)
}

fn key_or_hidden(options: &PrettyOptions<'_>, key: &[u8; KEY_LEN]) -> zeroize::Zeroizing<String> {
    if options.show_keys {
        base64(key)
    } else {
        zeroize::Zeroizing::new("(hidden)".to_owned())
    }
}

fn write_key(out: &mut impl Write, key: Option<&[u8; KEY_LEN]>) -> fmt::Result {
    match key {
        Some(key) => out.write_str(&base64(key)),
        None => out.write_str("(none)"),
    }
}

fn write_private_key(out: &mut impl Write, device: &Device) -> fmt::Result {
    let key = device.status.private_key.as_ref();
    write_key(out, key.map(|key| key.expose()))
}

fn write_preshared_key(out: &mut impl Write, peer: &PeerStatus) -> fmt::Result {
    let key = &peer.preshared_key;
    write_key(out, key.is_set().then(|| key.expose()))
}

fn write_fwmark(out: &mut impl Write, mark: u32) -> fmt::Result {
    match mark {
        0 => out.write_str("off"),
        mark => write!(out, "{mark:#x}"),
    }
}

fn write_keepalive(out: &mut impl Write, seconds: u16) -> fmt::Result {
    match seconds {
        0 => out.write_str("off"),
        seconds => write!(out, "{seconds}"),
    }
}

fn write_endpoint(out: &mut impl Write, peer: &PeerStatus, scopes: ScopeNames<'_>) -> fmt::Result {
    match peer.endpoint {
        Some(address) => write!(out, "{}", fmt_endpoint(address, scopes)),
        None => out.write_str("(none)"),
    }
}

fn write_networks(out: &mut impl Write, networks: &[IpNet], separator: &str) -> fmt::Result {
    if networks.is_empty() {
        return out.write_str("(none)");
    }
    for (index, network) in networks.iter().enumerate() {
        let before = if index == 0 { "" } else { separator };
        write!(
            out,
            "{before}{}/{}",
            fmt_ip(network.network()),
            network.prefix_len()
        )?;
    }
    Ok(())
}

/// Formats an address and port as `getnameinfo(3)` does.
fn fmt_endpoint(address: SocketAddr, scopes: ScopeNames<'_>) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let SocketAddr::V6(v6) = address else {
            return write!(f, "{address}");
        };
        write!(f, "[{}", fmt_ip((*v6.ip()).into()))?;
        if v6.scope_id() != 0 {
            let is_link_scoped =
                v6.ip().is_unicast_link_local() || v6.ip().segments()[0] & 0xff0f == 0xff02;
            // For other addresses the scope is not an interface index.
            match is_link_scoped.then(|| scopes(v6.scope_id())).flatten() {
                Some(name) => write!(f, "%{name}")?,
                None => write!(f, "%{}", v6.scope_id())?,
            }
        }
        write!(f, "]:{}", v6.port())
    })
}

/// Formats an address as `inet_ntop(3)` does: unlike Rust, with the last four bytes of an
/// IPv4-compatible address (RFC 4291 §2.5.5.1) in decimal.
fn fmt_ip(address: IpAddr) -> impl fmt::Display {
    fmt::from_fn(move |f| match address {
        IpAddr::V6(v6) if is_ipv4_compatible(v6) => {
            let [.., a, b, c, d] = v6.octets();
            write!(f, "::{a}.{b}.{c}.{d}")
        }
        _ => write!(f, "{address}"),
    })
}

fn is_ipv4_compatible(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0, 0, 0, 0, 0, 0, high, _] if high != 0)
}

#[cfg(test)]
mod tests;
