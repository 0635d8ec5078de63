//! A tunnel that is up, as its own process knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::device::DeviceInterface;
use crate::dns::DnsSettings;
use crate::plan::claimed;
use crate::route::{Hop, TunnelRoute};
use crate::snapshot::{Snapshot, hop_of};
use taupe_os_bsd::routing::RouteEntry;
use taupe_uapi::network_set::{NetworkSet, host};

/// A tunnel that is up, as its own process knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tunnel {
    /// Its interface.
    pub device: DeviceInterface,
    /// The routes into the tunnel and those that refuse packets.
    pub routes: Vec<TunnelRoute>,
    /// True if endpoints and routers get host routes: the tunnel's routes are in the process's table.
    pub has_hosts: bool,
    /// The host routes to endpoints and routers.
    pub hosts: BTreeMap<IpAddr, Hop>,
    /// The name servers.
    pub dns: Option<DnsSettings>,
    /// The MTU in bytes that was computed last, if it follows the paths to the endpoints.
    pub mtu: Option<u32>,
    /// True if the tunnel carries IPv6, which needs a larger MTU.
    pub ipv6: bool,
    /// The networks of routes whose deletion was reported.
    pub reported: BTreeSet<IpNet>,
    /// The networks of routes that another interface's network has replaced.
    pub displaced: BTreeSet<IpNet>,
}

impl Tunnel {
    /// Returns a tunnel whose device exists, and of whose plan nothing was applied yet.
    #[must_use]
    pub(crate) const fn new(device: DeviceInterface) -> Self {
        Self {
            device,
            routes: Vec::new(),
            has_hosts: false,
            hosts: BTreeMap::new(),
            dns: None,
            mtu: None,
            ipv6: false,
            reported: BTreeSet::new(),
            displaced: BTreeSet::new(),
        }
    }

    /// Adds a route of its plan that was applied. `claimed` are the networks that the plan carries or
    /// refuses.
    pub(crate) fn add(&mut self, claimed: &NetworkSet, route: &TunnelRoute) {
        if route.hop == Hop::Tunnel || claimed.contains(&route.destination) {
            self.routes.push(route.clone());
        } else {
            self.hosts
                .insert(route.destination.addr(), route.hop.clone());
        }
    }

    /// Returns the networks that its routes carry or refuse, and those that the table has for its
    /// interface: the networks of its addresses, and routes that commands of the file have added.
    pub(crate) fn claimed(&self, snapshot: &Snapshot) -> NetworkSet {
        let mut claims = claimed(self.routes.iter());
        for entry in &snapshot.routes {
            let is_own = entry.interface == self.device.index && entry.route.zone == 0;
            if is_own && snapshot.is_usual(entry) {
                claims.insert(entry.route.destination);
            }
        }
        claims
    }

    /// Forgets that routes were deleted or replaced which are there again.
    pub(crate) fn forget_returned(&mut self, snapshot: &Snapshot) {
        let routes = snapshot.routes.iter();
        for entry in routes.filter(|entry| entry.interface == self.device.index) {
            self.reported.remove(&entry.route.destination);
            self.displaced.remove(&entry.route.destination);
        }
    }

    /// Returns true if an entry of the table is one that this tunnel has added.
    pub(crate) fn has_added(&self, snapshot: &Snapshot, entry: &RouteEntry) -> bool {
        let destination = entry.route.destination;
        let hop = hop_of(snapshot, entry);
        let is_host = destination == host(destination.addr())
            && self.hosts.get(&destination.addr()) == Some(&hop);
        let mut routes = self.routes.iter();
        is_host
            || hop == Hop::Reject && routes.any(|it| it.hop == hop && it.destination == destination)
    }
}
