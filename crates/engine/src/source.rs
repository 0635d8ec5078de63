//! The source address of datagrams to a peer that has sent nothing yet.
//!
//! If a datagram names no source address, the kernel chooses one from all interfaces. If the uplink
//! has no routable address of the right family (for example an IPv6 uplink with link-local
//! addresses only), the kernel may choose the tunnel's own address. Answers would then be lost, and
//! the outer network would see an address that is used inside the tunnel. So this module asks the
//! kernel for its choice, and if that is the tunnel's address, selects another.
//!
//! A look-up costs several system calls, so its result is cached until addresses, routes or the
//! mark change (`underlay/sources.rs`).

use std::net::{IpAddr, SocketAddr};

use taupe_os_linux::netlink::{Address, NetworkReader, RouteQuery};

use crate::underlay::Source;

/// Asks the kernel for the source of datagrams to `remote` from a socket with `mark`. `interface` is
/// the tunnel's.
pub(crate) fn look_up(
    network: &NetworkReader,
    interface: &str,
    remote: SocketAddr,
    mark: u32,
) -> Source {
    let query = RouteQuery::of_datagrams(remote, mark);
    // Without a route or an interface, the send itself fails with the right error.
    if needs_interface(remote) && query.interface.is_none() {
        return Source::Kernel;
    }
    let Ok(route) = network.route(&query) else {
        return Source::Kernel;
    };
    let Some(chosen) = route.source else {
        return Source::Kernel;
    };
    let Some((index, addresses)) = look(network, interface) else {
        return Source::Kernel;
    };
    // Datagrams that enter the tunnel itself, for example to a peer behind another peer, have the
    // tunnel's address rightly.
    if route.interface == index {
        return Source::Kernel;
    }
    let (own, others): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.interface == index);
    let is_among = |addresses: &[Address], ip| addresses.iter().any(|a| a.network.addr() == ip);
    if !is_among(&own, chosen) || is_among(&others, chosen) {
        return Source::Kernel;
    }
    let mut candidates: Vec<IpAddr> = others
        .iter()
        .map(|address| address.network.addr())
        .filter(|ip| ip.is_ipv4() == remote.is_ipv4() && is_routable(*ip))
        .collect();
    candidates.sort_by_key(|ip| std::cmp::Reverse(common_bits(*ip, remote.ip())));
    let usable = |ip: &IpAddr| is_usable(network, *ip, &query);
    let usable = candidates.into_iter().find(usable);
    usable.map_or(Source::Unavailable, Source::Address)
}

/// Returns the index of the interface and all addresses of this network.
fn look(network: &NetworkReader, interface: &str) -> Option<(u32, Vec<Address>)> {
    let index = network.link(interface).ok()??.index;
    Some((index, network.addresses().ok()?))
}

/// Checks whether a socket could be bound to `source` and send the datagrams of `query`.
fn is_usable(network: &NetworkReader, source: IpAddr, query: &RouteQuery) -> bool {
    // The kernel does not check an IPv6 source: while the detection of duplicates runs, an address has
    // no route in the local table.
    let own = network.route(&RouteQuery::to(source, 0));
    let query = RouteQuery {
        source: Some(source),
        ..*query
    };
    own.is_ok_and(|route| route.is_local) && network.route(&query).is_ok()
}

/// Checks whether an address means a machine only together with an interface.
fn needs_interface(remote: SocketAddr) -> bool {
    matches!(remote.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Checks whether an address can be reached from other networks.
fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Returns the number of leading bits that two addresses share (RFC 6724 §5, rule 8).
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}
