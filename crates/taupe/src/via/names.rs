//! Look-up of the inner tunnel's endpoint names through the outer tunnel.
//!
//! A query to the system's name servers would tell them, unencrypted, which server the inner tunnel
//! is about to use. So no name of the inner file is looked up before the outer tunnel runs, and
//! then only from within the outer tunnel's network namespace.
//!
//! If the outer file has no DNS, the system's name servers are queried through the outer tunnel,
//! except those with local addresses: 192.168.1.1 is another machine in the provider's network.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use taupe_client::EndpointName;
use taupe_config::destinations::{is_link_local, is_local};
use taupe_config::file::File;
use taupe_engine::{Resolver, ask_servers, system_servers};
use taupe_os_linux::namespace::NetworkNamespace;

use super::OuterPlan;
use crate::endpoints;
use ipnet::IpNet;

/// File of names that need no query (`hosts(5)`).
const HOSTS: &str = "/etc/hosts";

/// Resolver that sends its queries through an outer tunnel.
pub(crate) struct Inside {
    network: NetworkNamespace,
    reach: Reach,
    servers: Vec<IpAddr>,
}

impl Inside {
    pub(super) fn new(plan: &OuterPlan, network: NetworkNamespace) -> Self {
        Self {
            network,
            reach: Reach {
                addresses: plan.addresses.clone(),
                routes: plan.routes.clone(),
            },
            servers: plan.servers.clone(),
        }
    }

    fn ask(&self, name: &EndpointName) -> io::Result<Vec<SocketAddr>> {
        if self.servers.is_empty() {
            return Err(io::Error::other(
                "the outer tunnel leads to no name server; write DNS in its file",
            ));
        }
        // Marks select routes of the machine. In this namespace, the tunnel is the only route.
        self.network
            .within(|| ask_servers(&self.servers, 0, name))?
    }
}

impl Resolver for Inside {
    fn resolve(&self, name: &EndpointName, _: u32) -> io::Result<Vec<SocketAddr>> {
        let mut usable = in_hosts(&fs::read(HOSTS).unwrap_or_default(), name);
        if usable.is_empty() {
            usable = self.ask(name)?;
        }
        usable.retain(|address| self.reach.contains(address.ip()));
        match usable.is_empty() {
            false => Ok(usable),
            true => Err(io::Error::other(
                "the outer tunnel's AllowedIPs contain none of its addresses",
            )),
        }
    }

    fn can_send_to(&self, address: SocketAddr, _: u32) -> bool {
        self.reach.contains(address.ip())
    }
}

struct Reach {
    addresses: Vec<IpNet>,
    routes: Vec<IpNet>,
}

impl Reach {
    fn of(file: &File) -> Self {
        Self {
            addresses: file.interface.addresses.clone(),
            routes: endpoints::networks(file),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let is_of_family = |own: &IpNet| own.addr().is_ipv4() == address.is_ipv4();
        self.addresses.iter().any(is_of_family)
            && self.routes.iter().any(|network| network.contains(&address))
    }
}

/// Name servers for look-ups in an outer tunnel.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Servers {
    /// Name servers to which the tunnel leads, in the order in which they are queried.
    pub(super) reachable: Vec<IpAddr>,
    origin: Origin,
}

/// Source of the name servers.
#[derive(PartialEq, Eq, Debug)]
enum Origin {
    /// DNS of the outer file.
    File,
    /// Settings of the system. The addresses are those of local name servers, which are not
    /// queried.
    System(Vec<IpAddr>),
}

impl Servers {
    /// Returns the name servers in the outer tunnel's file. If it has none, returns those of the
    /// system, without local ones.
    pub(super) fn of(file: &File) -> Self {
        Self::choose(&file.interface.dns, &Reach::of(file), system_servers)
    }

    fn choose(dns: &[IpAddr], reach: &Reach, system: impl FnOnce() -> Vec<IpAddr>) -> Self {
        let (mut reachable, origin) = match dns {
            [] => {
                let servers = system().into_iter().map(|server| server.to_canonical());
                let (local, others) = servers.partition(|server| is_of_local_network(*server));
                (others, Origin::System(local))
            }
            servers => (servers.to_vec(), Origin::File),
        };
        reachable.retain(|server| reach.contains(*server));
        Self { reachable, origin }
    }

    /// Returns a warning if names of `inner` may not be found because name servers are left out.
    /// `config` is the outer tunnel's file.
    pub(super) fn warning(&self, config: &str, inner: &str) -> Option<String> {
        let local = match &self.origin {
            Origin::File if self.reachable.is_empty() => {
                return Some(format!(
                    "{config}: AllowedIPs contain no server of its DNS, so Taupe looks up the \
                     endpoints of {inner} only in {HOSTS}; add such a server to AllowedIPs"
                ));
            }
            Origin::File => return None,
            Origin::System(local) => local,
        };
        let left_out = match local.as_slice() {
            [] => String::new(),
            local => format!(
                " ({} of this system is not used there, because the address is local)",
                list(local)
            ),
        };
        match self.reachable.as_slice() {
            [] => Some(format!(
                "{config} has no DNS, and no name server of this system can be reached through that \
                 tunnel{left_out}: only {HOSTS} can give the addresses of {inner}'s endpoints; \
                 write DNS = and the address of a name server in the tunnel into {config}"
            )),
            _ if local.is_empty() => None,
            reachable => Some(format!(
                "{config} has no DNS: the endpoints of {inner} are looked up through that tunnel \
                 at {}{left_out}",
                list(reachable)
            )),
        }
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Checks whether an address means another machine in another network: private use, link-local,
/// shared with a provider (RFC 1918, 3927, 4193, 4291, 6598).
fn is_of_local_network(address: IpAddr) -> bool {
    let is_shared = |address| match address {
        IpAddr::V4(address) => matches!(address.octets(), [100, 64..=127, ..]),
        IpAddr::V6(_) => false,
    };
    is_local(address) || is_link_local(address) || is_shared(address)
}

/// Returns the addresses that the text of a `hosts(5)` file has for a name.
fn in_hosts(hosts: &[u8], name: &EndpointName) -> Vec<SocketAddr> {
    let host = name.host().trim_end_matches('.');
    let hosts = String::from_utf8_lossy(hosts);
    let address = |line: &str| {
        let mut words = line.split('#').next()?.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        let has_name = words.any(|word| word.trim_end_matches('.').eq_ignore_ascii_case(host));
        has_name.then(|| SocketAddr::new(address.to_canonical(), name.port()))
    };
    hosts.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests;
