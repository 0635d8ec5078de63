//! Routing of a selected application's packets by destination: a table in which the longest match
//! decides.
//!
//! The first rule of this list that contains a destination determines its class:
//!
//! 1. this host (loopback, `0.0.0.0`, `::`): direct,
//! 2. `DisallowedIPs`, and local networks if `BypassLanTraffic` is set: direct,
//! 3. multicast and broadcast: drop,
//! 4. `AllowedIPs`: tunnel,
//! 5. all of a family, if the tunnel contains no public address of it but all public addresses of
//!    the other family: refuse. A tunnel that was meant for all traffic does not leak the other
//!    family.
//! 6. any other destination: direct.
//!
//! A link-local destination ([`is_link_local`]) is direct before all of these if it is itself the
//! next hop. The table cannot know the next hop: it contains the class for link-local destinations
//! behind a router.

use core::net::IpAddr;

use crate::file::Peer;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_packet::ip::Family;
use taupe_uapi::networks::{self, Addresses, family};
use taupe_uapi::prefix;

/// Unspecified, which Linux treats as this host, and loopback.
const THIS_HOST: [&str; 4] = ["0.0.0.0", "127.0.0.0/8", "::", "::1"];

/// Link-local networks.
const LINK_LOCAL: [&str; 2] = ["169.254.0.0/16", "fe80::/10"];

/// Networks that bypass the tunnel with `BypassLanTraffic`: private use (RFC 1918, RFC 4193),
/// multicast, broadcast.
const LAN: [&str; 7] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255",
    "fc00::/7",
    "ff00::/8",
];

/// Multicast and broadcast.
const MULTICAST_AND_BROADCAST: [&str; 3] = ["224.0.0.0/4", "255.255.255.255", "ff00::/8"];

const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Treatment of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Class {
    /// Through the tunnel. Dropped if the tunnel is down.
    Tunnel,
    /// As without a tunnel.
    Direct,
    /// Rejected: the application gets an error at once.
    Refuse,
    /// Dropped silently.
    Drop,
}

/// Returns the table for tunnelled and excluded networks. Both lists are as in a file: in any
/// order, and they may overlap.
///
/// Every address of both families matches an entry, and its longest match has the class that the
/// list above gives. The table has at most 18 entries more than the lists together. No entry lies
/// within the IPv4-mapped addresses (`::ffff:0:0/96`), so that one table can store both families,
/// with IPv4 in that range.
#[must_use]
pub fn table(allowed: &[IpNet], disallowed: &[IpNet], bypass_lan: bool) -> Vec<(IpNet, Class)> {
    let mut direct = disallowed.to_vec();
    if bypass_lan {
        direct.extend(parse_networks(&LAN));
    }
    let order: [(&[IpNet], Class); 6] = [
        (&parse_networks(&THIS_HOST), Class::Direct),
        (&direct, Class::Direct),
        (&parse_networks(&MULTICAST_AND_BROADCAST), Class::Drop),
        (allowed, Class::Tunnel),
        (&refused_families(allowed), Class::Refuse),
        (&parse_networks(&EVERYTHING), Class::Direct),
    ];
    let mut table = Vec::new();
    let mut classified = Vec::new();
    for (networks, class) in order {
        // A network within earlier ones would only shadow their class as the longer match.
        let before = Addresses::from_networks(&classified);
        let mut open = networks.to_vec();
        open.retain(|network| !before.contains(*network) && !is_mapped(*network));
        open.sort_unstable();
        open.dedup();
        table.extend(open.into_iter().map(|network| (network, class)));
        classified.extend_from_slice(networks);
    }
    table
}

/// Returns the table for the peers of a file. A network that one peer disallows and another one
/// routes is not excluded.
#[must_use]
pub fn table_for_peers(peers: &[Peer], bypass_lan: bool) -> Vec<(IpNet, Class)> {
    let all = |networks: fn(&Peer) -> Vec<IpNet>| peers.iter().flat_map(networks).collect();
    let allowed: Vec<IpNet> = all(|peer| peer.allowed_ips.clone());
    let disallowed: Vec<IpNet> = all(|peer| peer.disallowed_ips.clone());
    if peers.len() < 2 {
        return table(&allowed, &disallowed, bypass_lan);
    }
    let routed: Vec<IpNet> = all(Peer::routed);
    table(
        &allowed,
        &networks::subtract(&disallowed, &routed),
        bypass_lan,
    )
}

/// Returns the class of an address by the longest match.
#[must_use]
pub fn class_of(table: &[(IpNet, Class)], address: IpAddr) -> Class {
    let fitting = table
        .iter()
        .filter(|(network, _)| network.contains(&address));
    let longest = fitting.max_by_key(|(network, _)| network.prefix_len());
    longest.map_or(Class::Drop, |(_, class)| *class)
}

/// Returns the link-local networks of both families.
#[must_use]
pub fn link_local() -> Vec<IpNet> {
    parse_networks(&LINK_LOCAL)
}

/// Returns true if an address is link-local.
#[must_use]
pub fn is_link_local(address: IpAddr) -> bool {
    link_local()
        .into_iter()
        .any(|network| network.contains(&address))
}

/// Returns true if an address bypasses the tunnel with `BypassLanTraffic`.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    parse_networks(&LAN)
        .into_iter()
        .any(|network| network.contains(&address))
}

/// Returns each family of which the tunnel contains no public address while it contains all public
/// addresses of the other.
fn refused_families(allowed: &[IpNet]) -> Vec<IpNet> {
    let has_public = |wanted| {
        let mut of_family = allowed.iter().filter(|net| family(**net) == wanted);
        of_family.any(|network| !networks::is_special(*network))
    };
    let missing = |network: &IpNet| {
        let (this, other) = match family(*network) {
            Family::V4 => (Family::V4, Family::V6),
            Family::V6 => (Family::V6, Family::V4),
        };
        networks::covers_public(allowed, other) && !has_public(this)
    };
    parse_networks(&EVERYTHING)
        .into_iter()
        .filter(missing)
        .collect()
}

fn parse_networks(texts: &[&str]) -> Vec<IpNet> {
    texts
        .iter()
        .filter_map(|text| prefix::parse(text).ok())
        .collect()
}

fn is_mapped(network: IpNet) -> bool {
    match network.network() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => network.prefix_len() >= 96 && address.to_ipv4_mapped().is_some(),
    }
}

#[cfg(test)]
mod tests;
