//! The state of a simulated system, with the routing table of BSD kernels.
//!
//! Rules, each from the kernels' sources: `add` of a destination that has a route fails with
//! `EEXIST` (`add_route_byinfo` in FreeBSD's `sys/net/route/route_ctl.c`, `rtrequest_common_locked`
//! in xnu's `bsd/net/route.c`), `delete` without one with `ESRCH`; a router must be on the link of
//! an interface (`ENETUNREACH`); an address adds the route to its network, unless another interface
//! has it; the deletion of an interface deletes its addresses and its routes; other routes survive.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use taupe_os_bsd::System;
use taupe_os_bsd::layout::{RTF_STATIC, RTF_WASCLONED};
use taupe_os_bsd::routing::{Interface, InterfaceAddress, NextHop, RouteEntry};
use taupe_uapi::network_set::host;

use crate::fixtures::added;
use crate::route::TunnelRoute;
use crate::snapshot::{NetworkService, Snapshot};

/// The state of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct World {
    pub(super) snapshot: Snapshot,
    /// The input of `resolvconf`, by device.
    pub(super) resolvconf: BTreeMap<String, String>,
    pub(super) boot: u64,
}

impl World {
    pub(super) fn new(mut snapshot: Snapshot) -> Self {
        if snapshot.system == System::MacOs {
            snapshot.services = vec![
                service("Wi-Fi", &["192.0.2.53"]),
                service("Thunderbolt Bridge", &[]),
            ];
        }
        Self {
            snapshot,
            resolvconf: BTreeMap::new(),
            boot: 1_700_000_000,
        }
    }

    /// Returns the outgoing interface by the longest prefix, or `None` if packets are refused.
    pub(super) fn interface_to(&self, address: IpAddr) -> Option<u16> {
        let best = self.best(address)?;
        match best.route.next_hop {
            NextHop::Reject | NextHop::Blackhole => None,
            _ => Some(best.interface),
        }
    }

    fn best(&self, address: IpAddr) -> Option<&RouteEntry> {
        let usable = |entry: &&RouteEntry| {
            let route = &entry.route;
            route.scope.is_none() && route.zone == 0 && route.destination.contains(&address)
        };
        let routes = self.snapshot.routes.iter().filter(usable);
        routes.max_by_key(|entry| entry.route.destination.prefix_len())
    }

    fn table(&mut self, fib: Option<u32>) -> &mut Vec<RouteEntry> {
        match fib {
            Some(_) => &mut self.snapshot.fib_routes,
            None => &mut self.snapshot.routes,
        }
    }

    fn index(&self, interface: u16) -> Option<&Interface> {
        self.snapshot.interface(interface)
    }

    /// Returns the interface on whose link a router is: both kernels look at the interfaces'
    /// addresses before they look at routes (`ifa_ifwithroute`).
    fn link_of(&self, router: IpAddr, zone: u16) -> Option<u16> {
        if zone != 0 {
            return self.index(zone).map(|it| it.index);
        }
        let mut addresses = self.snapshot.addresses.iter();
        if let Some(address) = addresses.find(|it| it.network.contains(&router)) {
            return Some(address.interface);
        }
        let best = self.best(router)?;
        matches!(best.route.next_hop, NextHop::Interface(_)).then_some(best.interface)
    }

    pub(super) fn add_route(
        &mut self,
        fib: Option<u32>,
        destination: IpNet,
        next_hop: NextHop,
    ) -> Result<(), i32> {
        let interface = match next_hop {
            NextHop::Gateway(gateway) => {
                self.link_of(gateway.ip, gateway.zone).ok_or(ENETUNREACH)?
            }
            NextHop::Interface(index) => self.index(index).map(|it| it.index).ok_or(ENXIO)?,
            _ => self.loopback(),
        };
        let is_same = |it: &RouteEntry| {
            it.route.destination == destination
                && it.route.scope.is_none()
                && it.flags & RTF_WASCLONED == 0
        };
        if self.table(fib).iter().any(is_same) {
            return Err(EEXIST);
        }
        self.table(fib)
            .push(added(destination, next_hop, interface));
        Ok(())
    }

    fn loopback(&self) -> u16 {
        let mut interfaces = self.snapshot.interfaces.iter();
        interfaces
            .find(|it| it.is_loopback())
            .map_or(0, |it| it.index)
    }

    pub(super) fn delete_route(&mut self, destination: IpNet) -> Result<(), i32> {
        let before = self.snapshot.routes.len();
        self.snapshot.routes.retain(|it| {
            it.route.destination != destination
                || it.route.scope.is_some()
                || it.flags & RTF_WASCLONED != 0
        });
        match self.snapshot.routes.len() < before {
            true => Ok(()),
            false => Err(ESRCH),
        }
    }

    /// Deletes a route as the tunnel does it. FreeBSD deletes only a route with this next hop
    /// (`match_nhop_gw` in `sys/net/route/route_ctl.c`).
    pub(super) fn delete_our_route(&mut self, route: &TunnelRoute) -> Result<(), i32> {
        if self.snapshot.system == System::MacOs {
            return self.delete_route(route.destination);
        }
        let next_hop = route.for_kernel(0).next_hop;
        let table = self.table(route.fib);
        let before = table.len();
        table.retain(|it| {
            it.route.destination != route.destination || it.route.next_hop != next_hop
        });
        match table.len() < before {
            true => Ok(()),
            false => Err(ESRCH),
        }
    }

    pub(super) fn add_interface(&mut self, name: &str, flags: u32) -> u16 {
        let interfaces = &mut self.snapshot.interfaces;
        let index = interfaces.iter().map(|it| it.index).max().unwrap_or(0) + 1;
        interfaces.push(Interface {
            index,
            name: Some(name.to_owned()),
            mtu: 1500,
            medium: 0,
            ethernet: None,
            flags,
        });
        index
    }

    pub(super) fn delete_interface(&mut self, index: u16) {
        let snapshot = &mut self.snapshot;
        let own: Vec<IpAddr> = snapshot
            .addresses
            .iter()
            .filter(|it| it.interface == index)
            .map(|it| it.network.addr())
            .collect();
        snapshot.interfaces.retain(|it| it.index != index);
        snapshot.addresses.retain(|it| it.interface != index);
        let is_left = |it: &RouteEntry| {
            it.interface != index && !own.iter().any(|own| it.route.destination == host(*own))
        };
        snapshot.routes.retain(is_left);
        snapshot.fib_routes.retain(is_left);
    }

    pub(super) fn add_address(&mut self, index: u16, network: IpNet) {
        self.snapshot.addresses.push(InterfaceAddress {
            interface: index,
            network,
            peer: None,
        });
        let implies_route = match network {
            IpNet::V4(it) => self.snapshot.system == System::FreeBsd && it.prefix_len() < 32,
            IpNet::V6(it) => it.prefix_len() < 128,
        };
        if implies_route {
            self.connect(index, network.trunc());
        }
        let loopback = NextHop::Interface(self.loopback());
        let _ = self.add_route(None, host(network.addr()), loopback);
    }
}

impl World {
    /// Adds the route to an interface's own network. On FreeBSD it replaces a static route (rule of
    /// `RTF_PINNED`). Otherwise, if there is a route, the address goes without.
    fn connect(&mut self, index: u16, network: IpNet) {
        let next_hop = NextHop::Interface(index);
        if self.add_route(None, network, next_hop) == Err(EEXIST)
            && self.snapshot.system == System::FreeBsd
        {
            let routes = &mut self.snapshot.routes;
            routes.retain(|it| it.route.destination != network || it.flags & RTF_STATIC == 0);
            let _ = self.add_route(None, network, next_hop);
        }
        let mut routes = self.snapshot.routes.iter_mut();
        if let Some(own) = routes.find(|it| {
            it.route.destination == network && it.interface == index && it.route.scope.is_none()
        }) {
            own.flags &= !RTF_STATIC;
        }
    }
}

pub(super) const ESRCH: i32 = 3;
const ENXIO: i32 = 6;
const EEXIST: i32 = 17;
const ENETUNREACH: i32 = 51;

pub(super) fn service(name: &str, servers: &[&str]) -> NetworkService {
    NetworkService {
        name: name.to_owned(),
        servers: servers.iter().map(|&it| it.to_owned()).collect(),
        search: Vec::new(),
    }
}
