//! Routes of a tunnel.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::file::{Compatibility, File};
use taupe_config::plan_note::{PlanNote, Remedy};
use taupe_os_bsd::System;
use taupe_os_bsd::routing::{InterfaceAddress, NextHop};
use taupe_packet::ip::Family;
use taupe_uapi::network_set::{LINK_LOCAL, NetworkSet, everything, halves, host};
use taupe_uapi::networks;

use super::{Destination, Options, bypass, claimed, host_routes};
use crate::route::{Hop, TunnelRoute};
use crate::snapshot::{ForeignRoutes, Snapshot, describe};

/// The input for routing decisions.
pub(super) struct Routing<'a> {
    pub(super) interface: &'a str,
    pub(super) file: &'a File,
    pub(super) snapshot: &'a Snapshot,
    pub(super) foreign: &'a ForeignRoutes<'a>,
    pub(super) compatibility: Compatibility,
    pub(super) options: Options,
    /// The tunnel's own addresses.
    pub(super) addresses: &'a [IpNet],
    /// True if the tunnel's IPv6 addresses and networks are left out.
    pub(super) without_ipv6: bool,
}

/// A network for which a route is wanted.
#[derive(Clone, Copy)]
struct WantedRoute {
    network: IpNet,
    /// The network of the file, of which this one is a half.
    half_of: Option<IpNet>,
}

/// The routes of a tunnel, in order.
#[derive(Default)]
pub(super) struct PlannedRoutes {
    /// The host routes to endpoints and routers. They precede the addresses, whose networks may
    /// contain an endpoint.
    pub(super) hosts: Vec<TunnelRoute>,
    /// The routes into the tunnel, then those that refuse packets.
    pub(super) networks: Vec<TunnelRoute>,
}

impl Routing<'_> {
    /// Returns the tunnel's addresses for the interface. The kernel adds a route to the network of
    /// each address. If another interface has that route, the address gets the maximum prefix
    /// length.
    pub(super) fn own_addresses(&self, destination: Destination) -> Vec<IpNet> {
        let is_alone = |own: &IpNet| {
            self.compatibility == Compatibility::Taupe
                && destination == Destination::Main
                && !self.options.override_routes
                && !LINK_LOCAL.contains(own)
                && self.is_others(&own.trunc())
        };
        let addresses = self.addresses.iter();
        addresses
            .map(|own| match is_alone(own) {
                true => host(own.addr()),
                false => *own,
            })
            .collect()
    }

    /// Returns the routes for another FIB than the process's, in which nothing is chosen by the
    /// tunnel's own datagrams.
    pub(super) fn fib_routes(&self, fib: u32, notes: &mut Vec<PlanNote>) -> PlannedRoutes {
        let foreign = ForeignRoutes::of_fib(self.snapshot);
        let wanted = sorted(self.wanted())
            .into_iter()
            .map(|network| WantedRoute {
                network,
                half_of: None,
            });
        let conflicts = Conflicts {
            routing: self,
            foreign: &foreign,
            local: HashMap::new(),
        };
        let routes = conflicts.resolve(wanted.collect(), "tunnelled", notes);
        let route = |destination| TunnelRoute {
            fib: Some(fib),
            ..TunnelRoute::new(destination, Hop::Tunnel)
        };
        PlannedRoutes {
            networks: sorted(routes).into_iter().map(route).collect(),
            ..PlannedRoutes::default()
        }
    }

    /// Returns the routes for the process's table.
    pub(super) fn main_routes(&self, notes: &mut Vec<PlanNote>) -> PlannedRoutes {
        let is_taupe = self.compatibility == Compatibility::Taupe;
        let outside = self.outside();
        let is_outside =
            |net: &IpNet| *net == host(net.addr()) && outside.contains_key(&net.addr());
        let (excluded, wanted): (Vec<_>, Vec<_>) =
            sorted(self.wanted()).into_iter().partition(is_outside);
        notes.extend(excluded.iter().filter_map(|net| {
            let reason = outside.get(&net.addr())?;
            let sentence = format!("AllowedIPs {net} is not tunnelled: it is {reason}");
            Some(PlanNote::from(sentence))
        }));
        let implied = self.implied();
        let contested = match is_taupe {
            true => self.contested(&implied),
            false => NetworkSet::default(),
        };
        let is_implied = |net: &IpNet| match implied.holding(net) {
            None => false,
            Some(holder) => {
                !contested.contains(&holder) || (holder == *net && !self.is_others(net))
            }
        };
        let routed: Vec<_> = wanted
            .iter()
            .copied()
            .filter(|net| !is_implied(net))
            .collect();
        let full = Family::ALL.map(|family| (family, self.is_full(family)));
        let is_full = |net: &IpNet| full.contains(&(Family::of(net.addr()), true));
        let conflicts = Conflicts {
            routing: self,
            foreign: self.foreign,
            local: self.local(),
        };
        let mut tunnelled = conflicts.resolve(with_halves(&routed), "tunnelled", notes);
        let all: NetworkSet = wanted.iter().copied().collect();
        self.local_within(&all, &is_full, &mut tunnelled, notes);
        let mut refused = Vec::new();
        let [(_, v4), (_, v6)] = full;
        if is_taupe && v4 && !v6 && self.snapshot.ipv6 {
            let everything = with_halves(&[everything(Family::V6)]);
            refused = conflicts.resolve(everything, "refused", notes);
            let sentence = format!(
                "{} carries all of IPv4 but not of IPv6: IPv6 to anywhere but local networks is \
                 refused while it is up, so that nothing leaves beside the tunnel; \
                 AllowedIPs = ::/0 tunnels it",
                self.interface
            );
            notes.push(sentence.into());
        }
        if is_taupe {
            let claims = tunnelled.iter().copied().collect();
            let servers = self.name_server_routes(&claims, &is_full, notes);
            tunnelled.extend(servers);
            // A half of a network may be one address.
            tunnelled.retain(|net| !is_outside(net));
            self.note_bypasses(&is_full, &tunnelled, &refused, notes);
        }
        let into = |destination| TunnelRoute::new(destination, Hop::Tunnel);
        let refuse = |destination| TunnelRoute::new(destination, Hop::Reject);
        let mut own: Vec<TunnelRoute> = sorted(tunnelled).into_iter().map(into).collect();
        own.extend(sorted(refused).into_iter().map(refuse));
        let mut claims = claimed(own.iter());
        self.connected().for_each(|net| claims.insert(*net));
        let hosts = host_routes(self.snapshot, self.foreign, &claims);
        let hosts = hosts.into_iter();
        PlannedRoutes {
            hosts: hosts
                .map(|(address, hop)| TunnelRoute::new(host(address), hop))
                .collect(),
            networks: own,
        }
    }

    /// Returns the addresses that the tunnel must not carry, and what each is: the tunnel's own
    /// datagrams would enter the tunnel, or the network would lose its router.
    pub(super) fn outside(&self) -> HashMap<IpAddr, &'static str> {
        let routes = self.foreign.all();
        let routers = routes
            .iter()
            .filter_map(|entry| match entry.route.next_hop {
                NextHop::Gateway(gateway) => Some((gateway.ip, "a router of this network")),
                _ => None,
            });
        let endpoints = self.snapshot.endpoints.iter();
        let endpoints = endpoints.map(|it| (*it, "an endpoint of the tunnel"));
        routers.chain(endpoints).collect()
    }

    /// Returns the networks that the tunnel carries.
    pub(super) fn wanted(&self) -> Vec<IpNet> {
        let routed = self.file.peers.iter().flat_map(|peer| peer.routed());
        let is_carried = |net: &IpNet| !self.without_ipv6 || net.addr().is_ipv4();
        routed.filter(is_carried).collect()
    }

    /// Returns true if a whole family is tunnelled, except for networks that the file excludes.
    fn is_full(&self, family: Family) -> bool {
        let allowed = self.file.peers.iter().flat_map(|peer| &peer.allowed_ips);
        let allowed: Vec<_> = allowed.copied().collect();
        networks::covers_public(&allowed, family)
    }

    /// Returns the networks that the kernel routes into the tunnel because of its addresses: the
    /// network of each address, and the link-local network of every interface.
    fn implied(&self) -> NetworkSet {
        self.connected().copied().chain([LINK_LOCAL]).collect()
    }

    /// Returns the networks of the tunnel's addresses. On macOS an IPv4 address of a point-to-point
    /// interface implies a route to its other end only.
    fn connected(&self) -> impl Iterator<Item = &IpNet> {
        self.addresses.iter().filter(|net| match net {
            IpNet::V4(net) => self.snapshot.system == System::FreeBsd && net.prefix_len() != 32,
            IpNet::V6(_) => true,
        })
    }

    /// Returns the tunnel's own networks in which other interfaces have a route or an address, so
    /// that the kernel may route a part of them elsewhere.
    fn contested(&self, implied: &NetworkSet) -> NetworkSet {
        let routes = self.foreign.all();
        let routes = routes.iter().map(|entry| entry.route.destination);
        let others = routes.chain(self.local().into_keys());
        let within = others.filter(|net| !LINK_LOCAL.contains(net));
        within.filter_map(|net| implied.holding(&net)).collect()
    }

    /// Returns true if another interface has a route to exactly this network, or is in it.
    fn is_others(&self, net: &IpNet) -> bool {
        self.foreign.get(net).is_some() || self.local().contains_key(net)
    }

    /// Returns the local networks, each with this machine's address.
    fn local(&self) -> HashMap<IpNet, &InterfaceAddress> {
        let local = self.snapshot.local_networks().into_iter();
        local
            .map(|address| (address.network.trunc(), address))
            .collect()
    }

    /// Reports the local networks inside wanted ones, or adds routes to their halves.
    fn local_within(
        &self,
        all: &NetworkSet,
        is_full: &dyn Fn(&IpNet) -> bool,
        tunnelled: &mut Vec<IpNet>,
        notes: &mut Vec<PlanNote>,
    ) {
        let mut local: Vec<_> = self.local().into_iter().collect();
        local.sort_unstable_by_key(|(network, _)| *network);
        for (network, address) in local {
            let Some(holder) = all.holding(&network).filter(|holder| *holder != network) else {
                continue;
            };
            let name = self.snapshot.name(address.interface);
            match halves(&network).filter(|_| self.options.override_routes) {
                Some(halves) => {
                    let sentence = format!(
                        "the local network {network} on {name} is tunnelled, since {holder} is"
                    );
                    notes.push(sentence.into());
                    tunnelled.extend(halves);
                }
                None if is_full(&holder) => {}
                None => notes.push(PlanNote {
                    sentence: format!(
                        "the local network {network} on {name} is not tunnelled, though AllowedIPs \
                         {holder} contains it"
                    ),
                    remedy: Some(Remedy::Override),
                }),
            }
        }
    }

    /// Reports foreign routes that bypass a full tunnel.
    fn note_bypasses(
        &self,
        is_full: &dyn Fn(&IpNet) -> bool,
        tunnelled: &[IpNet],
        refused: &[IpNet],
        notes: &mut Vec<PlanNote>,
    ) {
        let tunnelled = tunnelled.iter().filter(|net| is_full(net));
        let claimed = tunnelled.chain(refused).copied().collect();
        let found = bypass::find(self.snapshot, self.foreign, &claimed);
        if found.is_empty() {
            return;
        }
        let named = found.iter().take(NAMED);
        let named = named.map(|entry| format!("`{}`", describe(self.snapshot, entry)));
        let routes = if found.len() == 1 { "route" } else { "routes" };
        let more = match found.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        notes.push(PlanNote {
            sentence: format!(
                "traffic to the destinations of the {routes} {}{more} bypasses {}, whose routes are \
                 less specific",
                named.collect::<Vec<_>>().join(", "),
                self.interface
            ),
            remedy: Some(Remedy::Exclude),
        });
    }
}

/// Number of routes to name.
const NAMED: usize = 3;

/// Decides between wanted routes and those of others.
struct Conflicts<'a> {
    routing: &'a Routing<'a>,
    foreign: &'a ForeignRoutes<'a>,
    local: HashMap<IpNet, &'a InterfaceAddress>,
}

impl Conflicts<'_> {
    /// Omits networks that have a route already, or uses more specific routes for them. `fate` says
    /// in notes how the networks are treated.
    fn resolve(
        &self,
        wanted: Vec<WantedRoute>,
        fate: &str,
        notes: &mut Vec<PlanNote>,
    ) -> Vec<IpNet> {
        let mut result = Vec::with_capacity(wanted.len());
        for WantedRoute { network, half_of } in wanted {
            let Some(reason) = self.conflict(&network) else {
                result.push(network);
                continue;
            };
            let subject = match half_of {
                None => format!("AllowedIPs {network}"),
                Some(all) => format!("{network}, half of {all},"),
            };
            let overrides = self.routing.options.override_routes;
            match halves(&network).filter(|_| overrides) {
                Some(halves) => {
                    notes.push(format!("{subject} is {fate}, although {reason}").into());
                    result.extend(halves);
                }
                None if overrides => {
                    let sentence = format!(
                        "{subject} is not {fate}: {reason}, and no route is more specific; remove \
                         that one first"
                    );
                    notes.push(sentence.into());
                }
                None => notes.push(PlanNote {
                    sentence: format!("{subject} is not {fate}: {reason}"),
                    remedy: Some(Remedy::Override),
                }),
            }
        }
        result
    }

    /// Returns the reason why a network cannot have another route.
    fn conflict(&self, network: &IpNet) -> Option<String> {
        let snapshot = self.routing.snapshot;
        if let Some(address) = self.local.get(network) {
            return Some(format!(
                "it is the local network of {} on {}",
                address.network.addr(),
                snapshot.name(address.interface)
            ));
        }
        let route = self.foreign.get(network)?;
        let route = describe(snapshot, route);
        Some(format!("there is a route already, `{route}`"))
    }
}

/// Replaces each default route by its halves.
fn with_halves(networks: &[IpNet]) -> Vec<WantedRoute> {
    let parts = |network: &IpNet| match halves(network).filter(|_| network.prefix_len() == 0) {
        Some(parts) => parts.map(|part| (part, Some(*network))).to_vec(),
        None => vec![(*network, None)],
    };
    let parts = networks.iter().flat_map(parts);
    parts
        .map(|(network, half_of)| WantedRoute { network, half_of })
        .collect()
}

/// Sorts networks by prefix length, longest first, and removes duplicates.
fn sorted(mut networks: Vec<IpNet>) -> Vec<IpNet> {
    networks.sort_unstable_by_key(|net| (Reverse(net.prefix_len()), *net));
    networks.dedup();
    networks
}
