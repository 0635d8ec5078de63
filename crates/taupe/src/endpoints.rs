//! Endpoints, addresses and networks of a file, for tunnels whose interface is in a network
//! namespace of its own.

use crate::console::say;
use ipnet::IpNet;
use std::net::SocketAddr;

use taupe_config::file::{Endpoint, File};
use taupe_config::mtu::TunnelMtu;
use taupe_os_linux::netlink::{Netlink, NetlinkError};

#[derive(Debug, thiserror::Error)]
#[error(
    "the endpoint {host}:{port} of the [Peer] in line {line} has no address: {reason}; correct the \
     name, see by `getent ahosts {host}` whether this machine's name servers answer, or write an \
     address in its place"
)]
pub(crate) struct Unresolved {
    host: String,
    port: u16,
    line: usize,
    reason: taupe_client::ResolveError,
}

/// Looks up the addresses of the peers' endpoints, in the order of the file.
pub(crate) fn endpoints(file: &File) -> Result<Vec<Option<SocketAddr>>, Unresolved> {
    let address = |peer: &taupe_config::file::Peer| match &peer.endpoint {
        None => Ok(None),
        Some(Endpoint::Address(address)) => Ok(Some(*address)),
        Some(Endpoint::Name { host, port }) => {
            let found = taupe_client::resolve(host, *port, &mut |line| {
                line.inspect(|line| say(line));
                true
            });
            found.map(Some).map_err(|reason| Unresolved {
                host: host.clone(),
                port: *port,
                line: peer.line,
                reason,
            })
        }
    };
    file.peers.iter().map(address).collect()
}

/// Returns the networks that are reached through the tunnel, without duplicates. The device decides
/// which peer gets packets for a network that two peers have.
pub(crate) fn networks(file: &File) -> Vec<IpNet> {
    let routes = file.peers.iter().flat_map(|peer| peer.routed());
    let mut routes: Vec<IpNet> = routes.collect();
    routes.sort_unstable();
    routes.dedup();
    routes
}

/// Returns the file's MTU, or what fits through the narrowest path to one of these
/// addresses. Prints a line if IPv6 needs more than that.
pub(crate) fn mtu(file: &File, endpoints: &[Option<SocketAddr>]) -> u32 {
    let path = match file.interface.mtu {
        Some(_) => None,
        None => narrowest(endpoints, file.interface.fwmark),
    };
    let mtu = TunnelMtu::of(file, path, file.carries_ipv6());
    mtu.note().inspect(|note| say(note));
    mtu.mtu
}

/// Returns the smallest MTU of the paths to peers. `None` if the system knows no path.
fn narrowest(endpoints: &[Option<SocketAddr>], mark: Option<u32>) -> Option<u32> {
    let mut system = Netlink::open().ok()?;
    let links = system.links().ok()?;
    let mut path = |address: &SocketAddr| -> Result<Option<u32>, NetlinkError> {
        let route = system.route_to(address.ip(), mark.unwrap_or_default())?;
        let link = links.iter().find(|link| link.index == route.interface);
        Ok(route.mtu.or(link.map(|link| link.mtu)))
    };
    let known = endpoints.iter().flatten();
    known.filter_map(|address| path(address).ok()?).min()
}
