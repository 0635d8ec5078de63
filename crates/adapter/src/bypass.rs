//! Foreign routes that bypass a full tunnel.
//!
//! A full tunnel replaces only default routes: all other routes of the main table stay in force, so
//! that local networks remain reachable. A DHCP server (option 121, RFC 3442) or a router (RFC
//! 4191) can have routes added to that table and thereby divert destinations from the tunnel. For
//! example, `0.0.0.0/1` diverts half of all addresses (TunnelVision, CVE-2024-3661). Taupe does not
//! remove foreign routes. `up` reports those that exist already, and [`crate::verify()`] those that
//! were added later.
//!
//! A route to private, link-local or multicast addresses is not reported: it is how a local network
//! reaches its other parts.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_os_linux::netlink::{Address, Link, Medium, Route, RouteKind, Rule};
use taupe_packet::ip::Family;
use taupe_uapi::network_set::host;
use taupe_uapi::networks::{covers, is_special, overlaps};

use crate::change::Change;

/// A route of the main table that diverts public destinations from a full tunnel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bypass {
    /// The destinations.
    pub destination: IpNet,
    /// The next hop; `None` if the destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// The interface's name.
    pub interface: String,
}

/// The state of the system that [`find`] depends on.
pub(crate) struct Surroundings<'a> {
    pub(crate) links: &'a [Link],
    pub(crate) addresses: &'a [Address],
    pub(crate) routes: &'a [Route],
    /// The addresses to which the tunnel sends its own datagrams: a route to one of them diverts no
    /// other traffic.
    pub(crate) endpoints: Vec<IpAddr>,
    pub(crate) own: Option<u32>,
}

/// Returns the routes that bypass the tunnel made of `changes`, without duplicates.
pub(crate) fn find(changes: &[&Change], surroundings: &Surroundings<'_>) -> Vec<Bypass> {
    let mut found: Vec<Bypass> = Vec::new();
    for family in Family::ALL {
        let Some(tunnel) = FullTunnel::of(changes, family) else {
            continue;
        };
        for route in surroundings.routes {
            let Some(link) = surroundings.link_around(route, family) else {
                continue;
            };
            let bypass = Bypass {
                destination: route.destination,
                gateway: route.gateway,
                interface: link.name.clone(),
            };
            if tunnel.claims(route.destination) && !found.contains(&bypass) {
                found.push(bypass);
            }
        }
    }
    found
}

/// The networks of one family that a full tunnel carries or blocks.
struct FullTunnel {
    /// The networks of its table, whose rule comes after the main table's.
    claimed: Vec<IpNet>,
    /// Its networks in the main table and in the tables before it.
    preferred: Vec<IpNet>,
}

impl FullTunnel {
    /// Returns `None` if the tunnel does not carry or block the whole family, or if its rule comes
    /// before the main table's.
    fn of(changes: &[&Change], family: Family) -> Option<Self> {
        let rules = || {
            changes.iter().filter_map(|change| match change {
                Change::Rule(rule) if rule.family == family => Some(rule),
                _ => None,
            })
        };
        let is_asked_for_main = |rule: &&Rule| {
            rule.table == Route::MAIN_TABLE && rule.suppress_prefix_length == Some(DEFAULT_ROUTE)
        };
        let main = rules().find(is_asked_for_main)?.priority;
        let tables = |is_wanted: &dyn Fn(u32) -> bool| -> Vec<u32> {
            let wanted = rules().filter(|rule| rule.invert && is_wanted(rule.priority));
            wanted.map(|rule| rule.table).collect()
        };
        let networks = |tables: Vec<u32>| {
            let network = |change: &&Change| match change {
                Change::Route { destination, table }
                | Change::Unreachable { destination, table }
                    if tables.contains(table) && Family::of(destination.addr()) == family =>
                {
                    Some(*destination)
                }
                _ => None,
            };
            changes.iter().filter_map(network).collect()
        };
        let mut before = tables(&|priority| priority < main);
        before.push(Route::MAIN_TABLE);
        Some(Self {
            claimed: networks(tables(&|priority| priority > main)),
            preferred: networks(before),
        })
    }

    /// Returns true if some public address of a network would use the tunnel.
    fn claims(&self, destination: IpNet) -> bool {
        let is_within = |network: &&IpNet| {
            network.prefix_len() >= destination.prefix_len() && overlaps(**network, destination)
        };
        let preferred: Vec<IpNet> = self.preferred.iter().filter(is_within).copied().collect();
        let is_claimed = |network: &IpNet| {
            let longer = match network.prefix_len() > destination.prefix_len() {
                true => *network,
                false => destination,
            };
            overlaps(*network, destination) && !is_special(longer)
        };
        self.claimed.iter().any(is_claimed) && !covers(&preferred, destination)
    }
}

/// Prefix length in bits of a default route.
const DEFAULT_ROUTE: u32 = 0;

/// Prefix length in bits of an IPv6 subnet (RFC 4291 §2.5.4). No IPv4 prefix is that long.
const LONGEST_SUBNET: u8 = 64;

/// The protocol of routes that the kernel adds with an address (`RTPROT_KERNEL`).
const KERNEL: u8 = 2;

impl Surroundings<'_> {
    /// Returns the link, if the route diverts public destinations to machines outside the local
    /// networks.
    fn link_around(&self, route: &Route, family: Family) -> Option<&Link> {
        let is_of_main = route.table == Route::MAIN_TABLE && route.family() == family;
        let destination = &route.destination;
        if !is_of_main
            || route.kind != RouteKind::Unicast
            || route.interface == self.own
            || destination.prefix_len() == 0
            || is_special(*destination)
            || self.is_endpoint(destination)
        {
            return None;
        }
        let mut links = self.links.iter();
        let link = links.find(|link| Some(link.index) == route.interface)?;
        let leads_around = route.gateway.is_some() || !self.is_local(route, link);
        leads_around.then_some(link)
    }

    fn is_endpoint(&self, destination: &IpNet) -> bool {
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|endpoint| host(*endpoint) == *destination)
    }

    /// Returns true if a route without a gateway leads to a local network, to the router of a local
    /// network, or into another tunnel.
    fn is_local(&self, route: &Route, link: &Link) -> bool {
        let destination = &route.destination;
        let is_here = |address: &Address| {
            address.interface == link.index && address.network.contains(destination)
        };
        let is_router = |other: &Route| {
            other.interface == route.interface
                && other
                    .gateway
                    .is_some_and(|gateway| host(gateway) == *destination)
        };
        // With DHCPv6 an address has a prefix length of 128, and the subnet's prefix comes from
        // router advertisements.
        let is_prefix_of = |address: &Address| {
            address.interface == link.index
                && destination.prefix_len() >= LONGEST_SUBNET
                && destination.contains(&address.network.addr())
        };
        route.protocol == KERNEL
            || self.addresses.iter().any(is_prefix_of)
            || !matches!(link.medium, Medium::Ethernet(_))
            || self.addresses.iter().any(is_here)
            || self.routes.iter().any(is_router)
    }
}

/// Formats the route as `ip` does.
impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        write!(f, " dev {}", self.interface)
    }
}

/// Formats the first few of several routes, as part of a sentence.
pub(crate) struct Listed<'a>(pub(crate) &'a [Bypass]);

/// Number of routes to name.
const NAMED: usize = 3;

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 {
            "the route "
        } else {
            "the routes "
        })?;
        for (index, bypass) in self.0.iter().take(NAMED).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}`{bypass}`")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{file, host as machine, net, route};
    use crate::{Compatibility, Options, PlanNote, Remedy, Snapshot, plan};

    const FULL: &str = "AllowedIPs = 0.0.0.0/0, ::/0";

    fn by(destination: &str, gateway: &str) -> Route {
        Route {
            gateway: Some(gateway.parse().expect(gateway)),
            ..route(destination, 2)
        }
    }

    /// Returns the routes that bypass the tunnel of a file with this peer if they are added later,
    /// and the notes of `up` if they exist before.
    fn around(peer: &str, routes: &[Route], options: Options) -> (Vec<String>, Vec<PlanNote>) {
        let file = file("Address = 10.9.0.2/32, fd09::2/128", peer);
        let planned = |snapshot: &Snapshot| {
            plan("wg0", &file, snapshot, Compatibility::Taupe, options).expect("a plan")
        };
        let mut snapshot = machine();
        let before = planned(&snapshot);
        snapshot.routes.extend_from_slice(routes);
        let notes = planned(&snapshot).notes.into_iter();
        let notes = notes.filter(|note| note.sentence.contains("bypass"));
        let changes: Vec<&Change> = before.changes.iter().collect();
        let found = find(&changes, &surroundings(&snapshot)).into_iter();
        (
            found.map(|bypass| bypass.to_string()).collect(),
            notes.collect(),
        )
    }

    fn surroundings(snapshot: &Snapshot) -> Surroundings<'_> {
        Surroundings {
            links: &snapshot.links,
            addresses: &snapshot.addresses,
            routes: &snapshot.routes,
            endpoints: vec!["9.9.9.9".parse().expect("an address")],
            own: None,
        }
    }

    fn found(peer: &str, route: Route) -> Vec<String> {
        around(peer, &[route], Options::default()).0
    }

    #[test]
    fn public_destinations_of_a_full_tunnel_are_found() {
        let router = "192.168.1.1";
        for peer in [
            FULL,
            "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1, 2000::/3",
            "AllowedIPs = 0.0.0.0/0, ::/0\nDisallowedIPs = 203.0.113.9/32",
        ] {
            for (destination, gateway) in [
                ("0.0.0.0/1", router),
                ("8.8.8.8/32", router),
                ("2000::/3", "fe80::1"),
            ] {
                let route = by(destination, gateway);
                let expected = format!("{destination} via {gateway} dev eth0");
                assert_eq!(found(peer, route), [expected], "{peer}");
            }
        }
        // The tunnel blocks IPv6.
        let ipv4 = "AllowedIPs = 0.0.0.0/0";
        assert_eq!(found(ipv4, by("2000::/3", "fe80::1")).len(), 1);
    }

    #[test]
    fn local_destinations_and_exceptions_of_the_file_are_none() {
        let router = "192.168.1.1";
        for (peer, destination) in [
            (FULL, "10.0.0.0/8"),
            (FULL, "169.254.0.0/16"),
            (FULL, "224.0.0.0/4"),
            (FULL, "0.0.0.0/0"),
            // The route to an endpoint.
            (FULL, "9.9.9.9/32"),
            (
                "AllowedIPs = 0.0.0.0/0\nDisallowedIPs = 8.8.8.0/24",
                "8.8.8.0/24",
            ),
            (
                "AllowedIPs = 0.0.0.0/0\nDisallowedIPs = 8.8.8.0/24",
                "8.8.8.8/32",
            ),
            // This is not a full tunnel.
            ("AllowedIPs = 8.0.0.0/8", "8.8.8.8/32"),
        ] {
            assert_eq!(
                found(peer, by(destination, router)),
                [""; 0],
                "{destination}"
            );
        }
        let wider = by("8.8.0.0/16", router);
        let peer = "AllowedIPs = 0.0.0.0/0\nDisallowedIPs = 8.8.8.0/24";
        assert_eq!(found(peer, wider).len(), 1);
        // The tunnel's own routes are more specific.
        let peer = "AllowedIPs = 0.0.0.0/0, 8.8.8.0/25, 8.8.8.128/25";
        assert_eq!(found(peer, by("8.8.8.0/24", router)), [""; 0]);
        // The name server's own route comes before the main table.
        let asked = |destination| {
            let file = file("Address = 10.9.0.2/32\nDNS = 8.8.8.8", FULL);
            let mut snapshot = machine();
            let options = Options::default();
            let plan =
                plan("wg0", &file, &snapshot, Compatibility::Taupe, options).expect("a plan");
            snapshot.routes.push(by(destination, router));
            let changes: Vec<&Change> = plan.changes.iter().collect();
            find(&changes, &surroundings(&snapshot)).len()
        };
        assert_eq!((asked("8.8.8.8/32"), asked("8.8.4.4/32")), (0, 1));
        let mut other_table = by("0.0.0.0/1", router);
        other_table.table = 100;
        assert_eq!(found(FULL, other_table), [""; 0]);
    }

    #[test]
    fn neighbours_that_are_none_are_found() {
        let mut snapshot = machine();
        let eth0 = snapshot.links.iter_mut().find(|link| link.index == 2);
        eth0.expect("eth0").medium = Medium::Ethernet([2; 6]);
        snapshot.addresses.push(Address {
            interface: 2,
            network: net("9.8.7.6/24"),
        });
        // An address from DHCPv6, and its prefix from a router advertisement.
        snapshot.addresses.push(Address {
            interface: 2,
            network: net("2a00:7::6/128"),
        });
        let kernel = Route {
            protocol: KERNEL,
            ..route("9.8.6.0/24", 2)
        };
        snapshot.routes.extend([
            route("0.0.0.0/1", 2),
            // The route to a provider's router, and a local network.
            route("198.41.0.1/32", 2),
            by("10.0.0.0/8", "198.41.0.1"),
            route("9.8.7.0/25", 2),
            route("2a00:7::/64", 2),
            kernel,
        ]);
        let file = file("Address = 10.9.0.2/32", "AllowedIPs = 0.0.0.0/0");
        let options = Options::default();
        let plan = plan("wg0", &file, &snapshot, Compatibility::Taupe, options).expect("a plan");
        let changes: Vec<&Change> = plan.changes.iter().collect();
        let found = find(&changes, &surroundings(&snapshot));
        assert_eq!(Listed(&found).to_string(), "the route `0.0.0.0/1 dev eth0`");
    }

    #[test]
    fn up_names_them_unless_the_tunnel_comes_first() {
        let route = by("8.8.8.8/32", "192.168.1.1");
        let (_, notes) = around(FULL, std::slice::from_ref(&route), Options::default());
        let [note] = notes.as_slice() else {
            panic!("{notes:?}");
        };
        assert!(
            note.sentence
                .contains("`8.8.8.8/32 via 192.168.1.1 dev eth0`"),
            "{note:?}"
        );
        assert_eq!(note.remedy, Some(Remedy::OverrideOrExclude));
        let options = Options {
            override_routes: true,
            ..Options::default()
        };
        let (found, notes) = around(FULL, &[route], options);
        assert_eq!((found.len(), notes.len()), (0, 0), "{notes:?}");
    }
}
