//! Writes files, and the file of a running tunnel.

use core::fmt::{self, Write};
use core::net::IpAddr;

use ipnet::IpNet;
use taupe_protocol::key::{KEY_LEN, PublicKey};
use taupe_protocol::update::{DeviceStatus, PeerStatus};
use taupe_uapi::show::{COMMENT_PREFIX, write_peer_pq_keys, write_pq_private_key};
use zeroize::Zeroizing;

use super::key_file::KEY_FILE;
use super::keys::Key;
use super::{Endpoint, File, Hooks, Interface, Peer, PeerPqKey, Table, Transparent};
use crate::application::{AppRules, Rule};
use taupe_uapi::key::Encoding;
use taupe_uapi::networks::aggregate;
use taupe_uapi::text::secret_text;

/// Writes a file in the order of `wg-quick save`. Without the keys that only `wg-quick` has, the
/// result equals the output of `wg showconf`.
/// The text is as from [`secret_text`].
#[must_use]
pub fn print(file: &File) -> Zeroizing<String> {
    secret_text(|mut out| write_file(&mut out, file))
}

/// State of a running tunnel.
#[derive(Clone, Copy)]
pub struct Current<'a> {
    /// State of the device.
    pub status: &'a DeviceStatus,
    /// UDP port of the device; 0 if it has none.
    pub listen_port: u16,
    /// Packet mark of the device; 0 is off.
    pub fwmark: u32,
    /// Addresses of the interface.
    pub addresses: &'a [IpNet],
    /// DNS servers in use for the interface.
    pub dns: &'a [IpAddr],
    /// Search domains in use for the interface.
    pub dns_search: &'a [String],
    /// MTU of the interface, in bytes.
    pub mtu: u32,
}

/// Returns the file that would bring up the running tunnel, as `wg-quick save` writes it: the state
/// of the device, and from the old file the settings that the system does not report.
///
/// Differences from `wg-quick`: an endpoint with a name retains the name. Search domains are
/// retained. A peer whose networks still equal its `AllowedIPs` without its `DisallowedIPs` retains
/// both lists; if its networks differ, they have been changed on the device and are saved as
/// `AllowedIPs`. `Table = auto` is omitted, because it is the default.
#[must_use]
pub fn save(old: &File, current: &Current<'_>) -> Zeroizing<String> {
    let Interface {
        private_key,
        private_key_file,
        pq_private_key,
        pq_private_key_file,
        mtu,
        table,
        hooks,
        save_config,
        lanes,
        ..
    } = &old.interface;
    let interface = Interface {
        private_key: current.status.private_key.clone(),
        // The path remains if the device still has the key of the file.
        private_key_file: private_key_file
            .clone()
            .filter(|_| *private_key == current.status.private_key),
        pq_private_key: current.status.pq_private_key.clone(),
        pq_private_key_file: pq_private_key_file
            .clone()
            .filter(|_| *pq_private_key == current.status.pq_private_key),
        listen_port: Some(current.listen_port).filter(|port| *port != 0),
        fwmark: Some(current.fwmark).filter(|mark| *mark != 0),
        addresses: current.addresses.to_vec(),
        dns: current.dns.to_vec(),
        dns_search: current.dns_search.to_vec(),
        mtu: mtu.map(|_| current.mtu),
        table: table.clone(),
        hooks: hooks.clone(),
        save_config: *save_config,
        lanes: *lanes,
    };
    let by_key: std::collections::HashMap<&PublicKey, &Peer> = old
        .peers
        .iter()
        .map(|peer| (&peer.public_key, peer))
        .collect();
    // Collected at its final size: reallocation would leave copies of preshared keys.
    let peers = current
        .status
        .peers
        .iter()
        .map(|status| saved_peer(status, by_key.get(&status.public_key).copied()))
        .collect();
    print(&File {
        interface,
        peers,
        transparent: old.transparent.clone(),
    })
}

fn saved_peer(status: &PeerStatus, old: Option<&Peer>) -> Peer {
    let mut allowed_ips = status.allowed_ips.clone();
    let mut disallowed_ips = Vec::new();
    if let Some(old) = old.filter(|old| !old.disallowed_ips.is_empty())
        && aggregate(&allowed_ips) == old.routed()
    {
        allowed_ips.clone_from(&old.allowed_ips);
        disallowed_ips.clone_from(&old.disallowed_ips);
    }
    // The path remains if the peer still has the key of the file.
    let old_key = old.and_then(|old| old.pq_public_key.as_ref());
    let pq_file = old_key
        .filter(|old| Some(&old.key) == status.pq_public_key.as_ref())
        .and_then(|old| old.file.clone());
    let preshared_key = Some(status.preshared_key.clone()).filter(|key| key.is_set());
    let preshared_key_file = old
        .filter(|old| old.preshared_key == preshared_key)
        .and_then(|old| old.preshared_key_file.clone());
    Peer {
        public_key: status.public_key,
        preshared_key,
        preshared_key_file,
        pq_public_key: status
            .pq_public_key
            .clone()
            .map(|key| PeerPqKey { key, file: pq_file }),
        post_quantum: status.post_quantum,
        endpoint: match &status.endpoint_name {
            Some(name) => Some(Endpoint::Name {
                host: name.host().to_owned(),
                port: name.port(),
            }),
            None => status.endpoint.map(Endpoint::Address),
        },
        allowed_ips,
        disallowed_ips,
        persistent_keepalive: Some(status.persistent_keepalive).filter(|every| *every != 0),
        name: old.and_then(|old| old.name.clone()),
        line: 0,
    }
}

fn write_file(out: &mut impl Write, file: &File) -> fmt::Result {
    let File {
        interface,
        peers,
        transparent,
    } = file;
    writeln!(out, "[Interface]")?;
    write_interface(out, interface)?;
    write_transparent(out, transparent)?;
    for peer in peers {
        writeln!(out, "\n[Peer]")?;
        write_peer(out, peer)?;
    }
    Ok(())
}

fn write_interface(out: &mut impl Write, interface: &Interface) -> fmt::Result {
    let Interface {
        private_key,
        private_key_file,
        pq_private_key,
        pq_private_key_file,
        listen_port,
        fwmark,
        addresses,
        dns,
        dns_search,
        mtu,
        table,
        hooks,
        save_config,
        lanes,
    } = interface;
    for address in addresses {
        write_line(out, Key::Address, address)?;
    }
    for server in dns {
        write_line(out, Key::Dns, server)?;
    }
    for domain in dns_search {
        write_line(out, Key::Dns, domain)?;
    }
    if let Some(mtu) = mtu {
        write_line(out, Key::Mtu, mtu)?;
    }
    match table {
        Table::Auto => {}
        Table::Off => write_line(out, Key::Table, "off")?,
        Table::Id(id) => write_line(out, Key::Table, id)?,
        Table::Name(name) => write_line(out, Key::Table, name)?,
    }
    if *save_config {
        write_line(out, Key::SaveConfig, "true")?;
    }
    if let Some(lanes) = lanes {
        write_comment_line(out, Key::Lanes, lanes.count())?;
    }
    let Hooks {
        pre_up,
        post_up,
        pre_down,
        post_down,
    } = hooks;
    for (key, commands) in [
        (Key::PreUp, pre_up),
        (Key::PostUp, post_up),
        (Key::PreDown, pre_down),
        (Key::PostDown, post_down),
    ] {
        for command in commands {
            write_line(out, key, command)?;
        }
    }
    if let Some(port) = listen_port {
        write_line(out, Key::ListenPort, port)?;
    }
    match fwmark {
        None => {}
        Some(0) => write_line(out, Key::FwMark, "off")?,
        Some(mark) => write_line(out, Key::FwMark, format_args!("{mark:#x}"))?,
    }
    match (private_key, private_key_file) {
        (_, Some(path)) => write_key_file(out, Key::PrivateKey, path)?,
        (Some(key), None) => write_key(out, Key::PrivateKey, key.expose())?,
        (None, None) => {}
    }
    match (pq_private_key, pq_private_key_file) {
        (_, Some(path)) => write_comment_line(out, Key::PqPrivateKey, in_file(path))?,
        (Some(key), None) => write_pq_private_key(out, key)?,
        (None, None) => {}
    }
    Ok(())
}

/// Writes the keys of transparent mode below `[Interface]`, where every file may have them.
fn write_transparent(out: &mut impl Write, transparent: &Transparent) -> fmt::Result {
    let Transparent {
        apps,
        bypass_lan,
        kill_switch,
        forwarded,
        system_bus,
        children,
        first: _,
        comment_prefix,
    } = transparent;
    let AppRules {
        allowed,
        disallowed,
        children: _,
        of_user,
    } = apps;
    let prefix = comment_prefix.unwrap_or_default();
    for (key, rules) in [
        (Key::AllowedApps, allowed),
        (Key::DisallowedApps, disallowed),
    ] {
        if let [first, rest @ ..] = rules.as_slice() {
            write!(out, "{prefix}{key} = {}", first.application)?;
            for Rule { application, .. } in rest {
                write!(out, ", {application}")?;
            }
            writeln!(out)?;
        }
    }
    if let Some(only) = of_user {
        writeln!(out, "{prefix}{} = {}", Key::AppsOfUser, only.user)?;
    }
    if let Some(bypass) = bypass_lan {
        writeln!(out, "{prefix}{} = {bypass}", Key::BypassLanTraffic)?;
    }
    if let Some(kill_switch) = kill_switch {
        writeln!(out, "{prefix}{} = {kill_switch}", Key::KillSwitch)?;
    }
    if let Some(forwarded) = forwarded {
        writeln!(out, "{prefix}{} = {forwarded}", Key::Forwarded)?;
    }
    if let Some(system_bus) = system_bus {
        writeln!(out, "{prefix}{} = {system_bus}", Key::SystemBus)?;
    }
    if let Some(children) = children {
        writeln!(out, "{prefix}{} = {children}", Key::Children)?;
    }
    Ok(())
}

fn write_peer(out: &mut impl Write, peer: &Peer) -> fmt::Result {
    let Peer {
        public_key,
        preshared_key,
        preshared_key_file,
        pq_public_key,
        post_quantum,
        endpoint,
        allowed_ips,
        disallowed_ips,
        persistent_keepalive,
        name,
        line: _,
    } = peer;
    if let Some(name) = name {
        // A comment to every program.
        writeln!(out, "# {} = {name}", Key::Name)?;
    }
    write_key(out, Key::PublicKey, &public_key.0)?;
    match (preshared_key, preshared_key_file) {
        (_, Some(path)) => write_key_file(out, Key::PresharedKey, path)?,
        (Some(key), None) => write_key(out, Key::PresharedKey, key.expose())?,
        (None, None) => {}
    }
    let path = pq_public_key.as_ref().and_then(|key| key.file.as_deref());
    if let Some(path) = path {
        write_comment_line(out, Key::PqPublicKey, in_file(path))?;
    }
    let key = pq_public_key.as_ref().map(|key| &key.key);
    write_peer_pq_keys(out, key.filter(|_| path.is_none()), *post_quantum)?;
    write_networks(out, Key::AllowedIps, allowed_ips)?;
    write_networks(out, Key::DisallowedIps, disallowed_ips)?;
    if let Some(endpoint) = endpoint {
        write_line(out, Key::Endpoint, endpoint)?;
    }
    match persistent_keepalive {
        None => {}
        Some(0) => write_line(out, Key::PersistentKeepalive, "off")?,
        Some(seconds) => write_line(out, Key::PersistentKeepalive, seconds)?,
    }
    Ok(())
}

fn write_line(out: &mut impl Write, key: Key, value: impl fmt::Display) -> fmt::Result {
    writeln!(out, "{key} = {value}")
}

/// Writes a line that is a comment to other programs.
fn write_comment_line(out: &mut impl Write, key: Key, value: impl fmt::Display) -> fmt::Result {
    writeln!(out, "{COMMENT_PREFIX}{key} = {value}")
}

fn write_key_file(out: &mut impl Write, key: Key, path: &str) -> fmt::Result {
    write_line(out, key, in_file(path))
}

fn in_file(path: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{KEY_FILE}{path}"))
}

fn write_key(out: &mut impl Write, key: Key, value: &[u8; KEY_LEN]) -> fmt::Result {
    write_line(out, key, Encoding::Base64.encode(value).as_str())
}

pub(super) fn write_networks(out: &mut impl Write, key: Key, networks: &[IpNet]) -> fmt::Result {
    // Stays far below `MAX_LINE`, even with the longest networks.
    for networks in networks.chunks(100_000) {
        write!(out, "{key} = ")?;
        for (index, network) in networks.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(out, "{comma}{network}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
