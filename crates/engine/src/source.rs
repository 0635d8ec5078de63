//! The source address of datagrams to a peer that has not been heard of.
//!
//! Without an order the kernel chooses it from all interfaces. If the uplink has no address
//! of its own for the destination, as with IPv6 by link-local addresses alone, that may be
//! an address of the tunnel itself: answers would be lost, and the network outside would
//! see the address that is used inside.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use taupe_net::system::{Address, System};
use taupe_upkeep::names::{socket_from, socket_to};

/// Returns the address to send from, or `None` to leave the choice to the kernel.
///
/// # Errors
/// `EADDRNOTAVAIL` when there are only addresses of the tunnel's interface.
pub(crate) fn choose(interface: &str, remote: SocketAddr, mark: u32) -> io::Result<Option<IpAddr>> {
    let chosen = socket_to(remote, mark).and_then(|socket| socket.local_addr());
    // Where no route leads, the send itself says so.
    let Ok(chosen) = chosen else { return Ok(None) };
    let Some((index, addresses)) = look(interface, remote.ip(), mark) else {
        return Ok(None);
    };
    let (own, others): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.interface == index);
    let is_among = |addresses: &[Address], ip| addresses.iter().any(|a| a.network.addr() == ip);
    if !is_among(&own, chosen.ip()) || is_among(&others, chosen.ip()) {
        return Ok(None);
    }
    let mut candidates: Vec<IpAddr> = others
        .iter()
        .map(|address| address.network.addr())
        .filter(|ip| ip.is_ipv4() == remote.is_ipv4() && is_routable(*ip))
        .collect();
    candidates.sort_by_key(|ip| std::cmp::Reverse(common_bits(*ip, remote.ip())));
    let usable = |ip: &IpAddr| socket_from(*ip, remote, mark).is_ok();
    match candidates.into_iter().find(usable) {
        Some(ip) => Ok(Some(ip)),
        None => Err(Errno::ADDRNOTAVAIL.into()),
    }
}

/// Returns the index of the interface, and all addresses of this network. `None` if datagrams
/// to `remote` enter the tunnel itself, as to a peer behind another one: there the tunnel's
/// address is the right source.
fn look(interface: &str, remote: IpAddr, mark: u32) -> Option<(u32, Vec<Address>)> {
    let mut system = System::open().ok()?;
    let index = system.link(interface).ok()??.index;
    let enters = system
        .route_to(remote, mark)
        .is_ok_and(|route| route.interface == index);
    let addresses = system.addresses().ok()?;
    (!enters).then_some((index, addresses))
}

/// Checks whether answers to an address can come from other networks.
fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// How many leading bits two addresses share (RFC 6724 §5, rule 8).
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}
