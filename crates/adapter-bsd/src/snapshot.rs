//! The state of the system on which a plan depends.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_os_bsd::System;
use taupe_os_bsd::layout::RTF_WASCLONED;
use taupe_os_bsd::routing::{DecodeError, Interface, InterfaceAddress, NextHop, RouteEntry, Table};
use taupe_uapi::network_set::{LINK_LOCAL, NetworkSet, host};

use crate::route::Hop;

/// The state of the system on which a plan depends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The system.
    pub system: System,
    /// All interfaces.
    pub interfaces: Vec<Interface>,
    /// The addresses of all interfaces.
    pub addresses: Vec<InterfaceAddress>,
    /// The routes of the process's table.
    pub routes: Vec<RouteEntry>,
    /// FreeBSD: the process's FIB (`net.my_fibnum`), and the number of FIBs (`net.fibs`).
    pub fibs: Fibs,
    /// FreeBSD: the routes of the file's FIB, if it is not the process's.
    pub fib_routes: Vec<RouteEntry>,
    /// True if programs can use IPv6: a kernel or a jail may lack it.
    pub ipv6: bool,
    /// FreeBSD: true if there is a program `resolvconf`.
    pub resolvconf: bool,
    /// macOS: the network services.
    pub services: Vec<NetworkService>,
    /// The addresses of the peers' endpoints, without duplicates.
    pub endpoints: Vec<IpAddr>,
    /// The index of the tunnel's interface, if it exists.
    pub own: Option<u16>,
}

/// The routing tables of FreeBSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fibs {
    /// The process's.
    pub own: u32,
    /// The number of tables.
    pub count: u32,
}

/// A network service of macOS, such as `Wi-Fi`, and its settings by the user. Empty lists stand for
/// the settings of the network (DHCP).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct NetworkService {
    /// The name.
    pub name: String,
    /// The name servers, as networksetup(8) prints them.
    pub servers: Vec<String>,
    /// The search domains.
    pub search: Vec<String>,
}

impl Snapshot {
    /// Returns the snapshot of a system without interfaces and routes.
    #[must_use]
    pub const fn empty(system: System) -> Self {
        Self {
            system,
            interfaces: Vec::new(),
            addresses: Vec::new(),
            routes: Vec::new(),
            fibs: Fibs { own: 0, count: 1 },
            fib_routes: Vec::new(),
            ipv6: true,
            resolvconf: false,
            services: Vec::new(),
            endpoints: Vec::new(),
            own: None,
        }
    }

    /// Returns the snapshot of two listings: interfaces with their addresses, and routes.
    #[must_use]
    pub fn of(system: System, interfaces: Table, routes: Table) -> Self {
        Self {
            interfaces: interfaces.interfaces,
            addresses: interfaces.addresses,
            routes: routes.routes,
            ..Self::empty(system)
        }
    }

    /// Decodes two listings as the kernel writes them: interfaces with their addresses, and routes.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes contradict themselves.
    pub fn decode(system: System, interfaces: &[u8], routes: &[u8]) -> Result<Self, DecodeError> {
        let [interfaces, routes] = [interfaces, routes].map(|bytes| Table::decode(system, bytes));
        Ok(Self::of(system, interfaces?, routes?))
    }

    /// Returns the interface with an index.
    #[must_use]
    pub fn interface(&self, index: u16) -> Option<&Interface> {
        self.interfaces.iter().find(|it| it.index == index)
    }

    /// Returns the name of an interface, or its number if it has gone.
    #[must_use]
    pub fn name(&self, index: u16) -> String {
        let name = self.interface(index).and_then(|it| it.name.clone());
        name.unwrap_or_else(|| format!("interface {index}"))
    }

    /// Returns the addresses of networks with directly reachable hosts.
    pub(crate) fn local_networks(&self) -> Vec<&InterfaceAddress> {
        let is_shared = |address: &&InterfaceAddress| {
            let network = &address.network;
            let interface = self.interface(address.interface);
            let is_usable = interface.is_some_and(|interface| {
                interface.is_up() && !interface.is_loopback() && !interface.is_point_to_point()
            });
            is_usable
                && self.own != Some(address.interface)
                && network.prefix_len() < network.max_prefix_len()
                && !LINK_LOCAL.contains(network)
        };
        self.addresses.iter().filter(is_shared).collect()
    }

    /// Returns true if a route is one that others have made, and that packets without a bound
    /// interface use.
    fn is_foreign(&self, entry: &RouteEntry) -> bool {
        let route = &entry.route;
        let is_own = self
            .own
            .is_some_and(|own| entry.interface == own || route.next_hop == NextHop::Interface(own));
        !is_own && route.zone == 0 && self.is_usual(entry)
    }

    /// Returns true if packets without a bound interface use the route, and if it is no copy that
    /// macOS has made for one destination, such as an entry of the ARP cache.
    pub(crate) fn is_usual(&self, entry: &RouteEntry) -> bool {
        let is_cloned = self.system == System::MacOs && entry.flags & RTF_WASCLONED != 0;
        entry.is_up() && entry.route.scope.is_none() && !is_cloned
    }
}

/// The routes that others have made, by destination.
#[derive(Clone, Debug)]
pub(crate) struct ForeignRoutes<'a> {
    by_destination: HashMap<IpNet, &'a RouteEntry>,
    destinations: NetworkSet,
}

impl<'a> ForeignRoutes<'a> {
    /// Selects from the process's table, without the destinations that `is_ours` accepts.
    pub(crate) fn of(snapshot: &'a Snapshot, is_ours: impl Fn(&RouteEntry) -> bool) -> Self {
        Self::among(snapshot, &snapshot.routes, is_ours)
    }

    /// Selects from the file's FIB.
    pub(crate) fn of_fib(snapshot: &'a Snapshot) -> Self {
        Self::among(snapshot, &snapshot.fib_routes, |_| false)
    }

    fn among(
        snapshot: &'a Snapshot,
        routes: &'a [RouteEntry],
        is_ours: impl Fn(&RouteEntry) -> bool,
    ) -> Self {
        let mut by_destination = HashMap::new();
        for entry in routes {
            if snapshot.is_foreign(entry) && !is_ours(entry) {
                // FreeBSD lists a route with several next hops once for each.
                by_destination
                    .entry(entry.route.destination)
                    .or_insert(entry);
            }
        }
        let destinations = by_destination.keys().copied().collect();
        Self {
            by_destination,
            destinations,
        }
    }

    /// Returns the route to exactly this destination.
    pub(crate) fn get(&self, destination: &IpNet) -> Option<&'a RouteEntry> {
        self.by_destination.get(destination).copied()
    }

    /// Returns the route that the kernel would use, by the longest prefix.
    pub(crate) fn best(&self, address: IpAddr) -> Option<&'a RouteEntry> {
        let holder = self.destinations.holding(&host(address))?;
        self.get(&holder)
    }

    /// Returns all routes, sorted by destination.
    pub(crate) fn all(&self) -> Vec<&'a RouteEntry> {
        let mut all: Vec<_> = self.by_destination.values().copied().collect();
        all.sort_unstable_by_key(|entry| entry.route.destination);
        all
    }
}

/// Returns the next hop of a route that others have made.
pub(crate) fn hop_of(snapshot: &Snapshot, entry: &RouteEntry) -> Hop {
    let link = |index| Hop::Link {
        index,
        name: snapshot.name(index),
    };
    match entry.route.next_hop {
        NextHop::Gateway(gateway) => Hop::Gateway {
            address: gateway.ip,
            zone: gateway.zone,
        },
        NextHop::Interface(index) => link(index),
        NextHop::Unspecified => link(entry.interface),
        // macOS marks a neighbour that does not answer so (`arp_lookup_ip` in xnu's
        // `bsd/netinet/in_arp.c`).
        NextHop::Reject if entry.is_neighbour() => link(entry.interface),
        NextHop::Blackhole | NextHop::Reject => Hop::Reject,
    }
}

/// Formats a route as commands of other systems do: its destination, its router and its interface.
pub(crate) fn describe(snapshot: &Snapshot, entry: &RouteEntry) -> String {
    let mut text = entry.route.destination.to_string();
    match entry.route.next_hop {
        NextHop::Gateway(gateway) => text.push_str(&format!(" via {}", gateway.ip)),
        NextHop::Blackhole => text.insert_str(0, "blackhole "),
        NextHop::Reject => text.insert_str(0, "reject "),
        NextHop::Interface(_) | NextHop::Unspecified => {}
    }
    if entry.interface != 0 {
        text.push_str(&format!(" on {}", snapshot.name(entry.interface)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_os_bsd::routing::{Route, RouteChange, encode};

    /// A line of a listing is a request with another number (`RTM_GET`).
    #[test]
    fn listings_are_decoded_as_the_kernel_writes_them() {
        for system in System::ALL {
            let mut bytes = Vec::new();
            for (destination, router) in [("0.0.0.0/0", "192.168.1.1"), ("::/0", "2001:db8::1")] {
                let router: IpAddr = router.parse().unwrap();
                let route = Route {
                    destination: destination.parse().unwrap(),
                    zone: 0,
                    next_hop: NextHop::Gateway(router.into()),
                    scope: None,
                };
                let mut message = encode(system, RouteChange::Add, &route, 1).unwrap();
                *message.get_mut(3).unwrap() = 4;
                bytes.extend(message);
            }
            let snapshot = Snapshot::decode(system, &[], &bytes).unwrap();
            let foreign = ForeignRoutes::of(&snapshot, |_| false);
            let best = foreign.best("198.51.100.9".parse().unwrap()).unwrap();
            let hop = hop_of(&snapshot, best);
            assert!(
                matches!(hop, Hop::Gateway { address, zone: 0 } if address.to_string() == "192.168.1.1")
            );
            let cut = bytes.get(..bytes.len() - 3).unwrap();
            assert!(Snapshot::decode(system, &[], cut).is_err());
        }
    }
}
