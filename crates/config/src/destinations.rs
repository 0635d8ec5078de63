//! Where the packets of a chosen application go, by their destination: a table
//! in which the longest match decides.
//!
//! The order in which a destination is judged, the first that fits:
//!
//! 1. this host (loopback, `0.0.0.0`, `::`): direct,
//! 2. `DisallowedIPs`, and with `BypassLanTraffic` local networks: direct,
//! 3. multicast and broadcast: dropped,
//! 4. `AllowedIPs`: into the tunnel,
//! 5. a family of which the tunnel has nothing public, while it has all of the
//!    other that is public: refused, so that nothing leaves beside a tunnel that
//!    was meant for everything,
//! 6. anything else: direct.
//!
//! Link-local destinations ([`is_link_local`]) are direct before all of this when the next hop
//! is the destination itself. The table cannot know the next hop: it has the class for those
//! behind a router.

use core::net::IpAddr;

use crate::file::Peer;
use taupe_packet::ip::Family;
use taupe_uapi::networks::{self, Addresses, family};
use taupe_uapi::prefix::{self, Prefix};

/// Unspecified (which Linux takes for itself), loopback.
const HOST: [&str; 4] = ["0.0.0.0", "127.0.0.0/8", "::", "::1"];

/// Link-local networks.
const LINK_LOCAL: [&str; 2] = ["169.254.0.0/16", "fe80::/10"];

/// Networks that `BypassLanTraffic` leaves out of the tunnel: private use (RFC 1918, RFC 4193),
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
const GROUPS: [&str; 3] = ["224.0.0.0/4", "255.255.255.255", "ff00::/8"];

const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// It goes through the tunnel, or nowhere.
    Tunnel,
    /// It goes where it would go without a tunnel.
    Direct,
    /// The application is told at once that there is no way.
    Refuse,
    /// It vanishes.
    Drop,
}

/// The table for networks that are tunnelled and networks that are not; both
/// as a file has them, in any order, also with networks in common.
///
/// Every address of both families matches, and its longest match has the class
/// of the order above. There are no more entries than networks that went in, and
/// 18. IPv4 mapped into IPv6 (`::ffff:0:0/96`) is never a destination of its own:
/// no entry lies in there, so that a table of both families can keep IPv4 in it.
#[must_use]
pub fn table(allowed: &[Prefix], disallowed: &[Prefix], bypass_lan: bool) -> Vec<(Prefix, Class)> {
    let mut direct = disallowed.to_vec();
    if bypass_lan {
        direct.extend(list(&LAN));
    }
    let order: [(&[Prefix], Class); 6] = [
        (&list(&HOST), Class::Direct),
        (&direct, Class::Direct),
        (&list(&GROUPS), Class::Drop),
        (allowed, Class::Tunnel),
        (&refused(allowed), Class::Refuse),
        (&list(&EVERYTHING), Class::Direct),
    ];
    let mut table = Vec::new();
    let mut judged = Vec::new();
    for (networks, class) in order {
        // What is judged as a whole already would only be the longer match.
        let before = Addresses::of(&judged);
        let mut open = networks.to_vec();
        open.retain(|network| !before.contain(*network) && !is_mapped(*network));
        open.sort_unstable();
        open.dedup();
        table.extend(open.into_iter().map(|network| (network, class)));
        judged.extend_from_slice(networks);
    }
    table
}

/// The table for the peers of a file. What one peer disallows and another one
/// carries is not disallowed.
#[must_use]
pub fn of_peers(peers: &[Peer], bypass_lan: bool) -> Vec<(Prefix, Class)> {
    let all = |networks: fn(&Peer) -> Vec<Prefix>| peers.iter().flat_map(networks).collect();
    let allowed: Vec<Prefix> = all(|peer| peer.allowed_ips.clone());
    let disallowed: Vec<Prefix> = all(|peer| peer.disallowed_ips.clone());
    if peers.len() < 2 {
        return table(&allowed, &disallowed, bypass_lan);
    }
    let routed: Vec<Prefix> = all(Peer::routed);
    table(
        &allowed,
        &networks::subtract(&disallowed, &routed),
        bypass_lan,
    )
}

/// What a table says of an address: the longest match decides.
#[must_use]
pub fn class_of(table: &[(Prefix, Class)], address: IpAddr) -> Class {
    let fitting = table.iter().filter(|(network, _)| has(*network, address));
    let longest = fitting.max_by_key(|(network, _)| network.length());
    longest.map_or(Class::Drop, |(_, class)| *class)
}

/// Whether a network contains an address.
#[must_use]
pub fn has(network: Prefix, address: IpAddr) -> bool {
    let length = if address.is_ipv4() { 32 } else { 128 };
    let one = Prefix::new(address, length);
    one.is_some_and(|one| networks::overlap(network, one))
}

/// The link-local networks, one of each family.
#[must_use]
pub fn link_local() -> Vec<Prefix> {
    list(&LINK_LOCAL)
}

/// Checks whether an address is link-local.
#[must_use]
pub fn is_link_local(address: IpAddr) -> bool {
    link_local()
        .into_iter()
        .any(|network| has(network, address))
}

/// Whether `BypassLanTraffic` leaves an address out of the tunnel.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    list(&LAN).into_iter().any(|network| has(network, address))
}

/// Each family of which the tunnel has nothing public while it has all of the
/// other.
fn refused(allowed: &[Prefix]) -> Vec<Prefix> {
    let has_public = |wanted| {
        let mut of_family = allowed.iter().filter(|net| family(**net) == wanted);
        of_family.any(|network| !networks::is_special(*network))
    };
    let missing = |network: &Prefix| {
        let (this, other) = match family(*network) {
            Family::V4 => (Family::V4, Family::V6),
            Family::V6 => (Family::V6, Family::V4),
        };
        networks::covers_public(allowed, other) && !has_public(this)
    };
    list(&EVERYTHING).into_iter().filter(missing).collect()
}

fn list(texts: &[&str]) -> Vec<Prefix> {
    texts
        .iter()
        .filter_map(|text| prefix::parse(text).ok())
        .collect()
}

fn is_mapped(network: Prefix) -> bool {
    match network.address() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => network.length() >= 96 && address.to_ipv4_mapped().is_some(),
    }
}

#[cfg(test)]
mod tests;
