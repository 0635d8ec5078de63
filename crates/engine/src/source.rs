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

use taupe_os_linux::netlink::{Address, Netlink};
use taupe_runtime::udp;

use crate::underlay::Source;

/// Asks the kernel for the source of datagrams to `remote`.
pub(crate) fn look_up(interface: &str, remote: SocketAddr, mark: u32) -> Source {
    let chosen = udp::connect(remote, mark).and_then(|socket| socket.local_addr());
    // Without a route, the send itself fails with the right error.
    let Ok(chosen) = chosen else {
        return Source::Kernel;
    };
    let Some((index, addresses)) = look(interface, remote.ip(), mark) else {
        return Source::Kernel;
    };
    let (own, others): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.interface == index);
    let is_among = |addresses: &[Address], ip| addresses.iter().any(|a| a.network.addr() == ip);
    if !is_among(&own, chosen.ip()) || is_among(&others, chosen.ip()) {
        return Source::Kernel;
    }
    let mut candidates: Vec<IpAddr> = others
        .iter()
        .map(|address| address.network.addr())
        .filter(|ip| ip.is_ipv4() == remote.is_ipv4() && is_routable(*ip))
        .collect();
    candidates.sort_by_key(|ip| std::cmp::Reverse(common_bits(*ip, remote.ip())));
    let usable = |ip: &IpAddr| udp::connect_from(*ip, remote, mark).is_ok();
    let usable = candidates.into_iter().find(usable);
    usable.map_or(Source::Unavailable, Source::Address)
}

/// Returns the index of the interface and all addresses of this network. Returns `None` if
/// datagrams to `remote` enter the tunnel itself, for example to a peer behind another peer: there
/// the tunnel's address is the right source.
fn look(interface: &str, remote: IpAddr, mark: u32) -> Option<(u32, Vec<Address>)> {
    let mut system = Netlink::open().ok()?;
    let index = system.link(interface).ok()??.index;
    let enters = system
        .route_to(remote, mark)
        .is_ok_and(|route| route.interface == index);
    let addresses = system.addresses().ok()?;
    (!enters).then_some((index, addresses))
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
