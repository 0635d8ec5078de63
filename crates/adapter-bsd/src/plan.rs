//! The steps to bring a tunnel up, computed without changing anything.
//!
//! Routes are decided in this order:
//!
//! 1. *wanted*: the allowed IPs of all peers, longest first. A default route is wanted as its two
//!    halves, which are more specific than the network's default route and leave it in place;
//! 2. *implied*: networks that the tunnel's own addresses route into it already are omitted, as in
//!    `wg-quick`;
//! 3. *conflicts*: networks to which another interface has a route, or which are its local network,
//!    are omitted, or are routed by their two halves;
//! 4. *host routes*: endpoints and routers whose datagrams would enter the tunnel get host routes
//!    to where the present table sends them. Their own addresses in AllowedIPs are omitted.

mod bypass;
mod hosts;
mod name_servers;
mod routing;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::file::{Compatibility, File, Table};
use taupe_config::mtu::TunnelMtu;
use taupe_config::plan_note::PlanNote;
use taupe_os_bsd::System;
use taupe_os_bsd::device_name::{DeviceName, NameError};
use taupe_uapi::network_set::{NetworkSet, host};

use crate::dns::DnsSettings;
use crate::route::{Hop, TunnelRoute};
use crate::snapshot::{ForeignRoutes, Snapshot};

pub(crate) use hosts::host_routes;
use routing::PlannedRoutes;

/// Options from the command line.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// The tunnel has precedence over existing routes and local networks.
    pub override_routes: bool,
}

/// A step to bring a tunnel up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Create the device.
    Device,
    /// Set keys and peers. `fwmark` is the mark to set, if there is one.
    Configure {
        /// `FwMark`, on systems that have it.
        fwmark: Option<u32>,
    },
    /// Add an address.
    Address {
        /// The address with the length of its network.
        network: IpNet,
        /// The address of the link's other end.
        peer: Option<IpAddr>,
    },
    /// Set the MTU in bytes, and bring the interface up.
    Up {
        /// The MTU.
        mtu: u32,
    },
    /// Add a route.
    Route(TunnelRoute),
    /// Set name servers.
    Dns(DnsSettings),
    /// Run a command of the file.
    Hook(String),
}

/// The steps to bring a tunnel up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Notes for the user.
    pub notes: Vec<PlanNote>,
    /// True if the MTU follows the paths to the endpoints.
    pub mtu_follows: bool,
}

impl Plan {
    /// Returns the routes.
    pub fn routes(&self) -> impl Iterator<Item = &TunnelRoute> {
        self.steps.iter().filter_map(|step| match step {
            Step::Route(route) => Some(route),
            _ => None,
        })
    }
}

/// Error of planning. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The system has no named routing tables.
    #[error("Table = {name}: {system} has no routing table of this name; use {}", allowed(*.system))]
    NamedTable {
        /// The file's table.
        name: String,
        /// The system.
        system: System,
    },
    /// macOS has one routing table.
    #[error("Table = {0}: macOS has one routing table only; use auto, main or off")]
    OneTable(u32),
    /// There is no such FIB.
    #[error(
        "Table = {fib}: there are {count} routing tables (FIBs), the last of which is {}; use one of them, or \
         raise net.fibs in loader.conf(5)", .count.saturating_sub(1)
    )]
    NoFib {
        /// The file's table.
        fib: u32,
        /// The number of tables.
        count: u32,
    },
    /// The name servers cannot be set.
    #[error(
        "DNS{}: there is no program resolvconf to set name servers; install one (pkg install \
         openresolv), or remove DNS from the file",
        .0.map_or_else(String::new, |server| format!(" = {server}"))
    )]
    NoResolvconf(Option<IpAddr>),
    /// The system permits no such interface.
    #[error(transparent)]
    Name(#[from] NameError),
}

const fn allowed(system: System) -> &'static str {
    match system {
        System::FreeBsd => "auto, off or the number of a FIB",
        System::MacOs => "auto, main or off",
    }
}

/// The routing table for a tunnel's routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// No routes are added.
    Nowhere,
    /// The process's table.
    Main,
    /// Another FIB.
    Fib(u32),
}

/// Returns the table that a file selects.
///
/// # Errors
/// [`PlanError`] if the system does not have it.
pub(crate) fn destination(file: &File, snapshot: &Snapshot) -> Result<Destination, PlanError> {
    let system = snapshot.system;
    match (&file.interface.table, system) {
        (Table::Off, _) => Ok(Destination::Nowhere),
        (Table::Auto, _) => Ok(Destination::Main),
        (Table::Name(name), System::MacOs) if name == "main" => Ok(Destination::Main),
        (Table::Name(name), _) => Err(PlanError::NamedTable {
            name: name.clone(),
            system,
        }),
        (Table::Id(number), System::MacOs) => Err(PlanError::OneTable(*number)),
        (Table::Id(fib), System::FreeBsd) if *fib == snapshot.fibs.own => Ok(Destination::Main),
        (Table::Id(fib), System::FreeBsd) if *fib < snapshot.fibs.count => {
            Ok(Destination::Fib(*fib))
        }
        (Table::Id(fib), System::FreeBsd) => Err(PlanError::NoFib {
            fib: *fib,
            count: snapshot.fibs.count,
        }),
    }
}

/// Computes the steps to bring the tunnel of `file` up as `interface`, after its PreUp commands. If
/// the snapshot contains the tunnel's interface, [`Step::Device`] is omitted.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    interface: &str,
    file: &File,
    snapshot: &Snapshot,
    compatibility: Compatibility,
    options: Options,
) -> Result<Plan, PlanError> {
    let destination = destination(file, snapshot)?;
    if snapshot.system == System::FreeBsd {
        // The kernel of macOS chooses the name.
        DeviceName::parse(snapshot.system, interface)?;
    }
    let foreign = ForeignRoutes::of(snapshot, |_| false);
    let mut notes = Vec::new();
    if compatibility == Compatibility::Taupe {
        notes.extend(unreachable(snapshot, &foreign));
    }
    let fwmark = file.interface.fwmark.filter(|mark| *mark != 0);
    let has_marks = snapshot.system == System::FreeBsd;
    if let (Some(mark), false) = (fwmark, has_marks) {
        let sentence = format!("FwMark = {mark} has no effect: macOS has no firewall marks");
        notes.push(sentence.into());
    }
    let mut steps = Vec::new();
    if snapshot.own.is_none() {
        steps.push(Step::Device);
    }
    steps.push(Step::Configure {
        fwmark: fwmark.filter(|_| has_marks),
    });
    let without_ipv6 = compatibility == Compatibility::Taupe && !snapshot.ipv6;
    let mut addresses = file.interface.addresses.clone();
    if without_ipv6 {
        addresses.retain(|net| net.addr().is_ipv4());
        notes.extend(file.carries_ipv6().then(|| {
            let sentence = format!(
                "IPv6 is switched off on this system: the IPv6 addresses and networks of \
                 {interface} are left out"
            );
            PlanNote::from(sentence)
        }));
    }
    let mut routing = routing::Routing {
        interface,
        file,
        snapshot,
        foreign: &foreign,
        compatibility,
        options,
        addresses: &addresses,
        without_ipv6,
    };
    let own_addresses = routing.own_addresses(destination);
    routing.addresses = &own_addresses;
    let mut route_notes = Vec::new();
    let routes = match destination {
        Destination::Nowhere => PlannedRoutes::default(),
        Destination::Fib(fib) => routing.fib_routes(fib, &mut route_notes),
        Destination::Main => routing.main_routes(&mut route_notes),
    };
    steps.extend(routes.hosts.into_iter().map(Step::Route));
    steps.extend(own_addresses.iter().map(|network| Step::Address {
        network: *network,
        peer: peer_of(snapshot.system, network),
    }));
    let mtu = tunnel_mtu(file, snapshot, &foreign, compatibility);
    notes.extend(mtu.note().map(PlanNote::from));
    notes.append(&mut route_notes);
    steps.push(Step::Up { mtu: mtu.mtu });
    steps.extend(routes.networks.into_iter().map(Step::Route));
    let dns = DnsSettings::of(file);
    let has_program = snapshot.system == System::MacOs || snapshot.resolvconf;
    if let (Some(dns), false) = (&dns, has_program) {
        return Err(PlanError::NoResolvconf(dns.servers.first().copied()));
    }
    steps.extend(dns.map(Step::Dns));
    let hooks = file.interface.hooks.post_up.iter();
    steps.extend(hooks.cloned().map(Step::Hook));
    Ok(Plan {
        steps,
        notes,
        mtu_follows: file.interface.mtu.is_none(),
    })
}

/// Returns the other end of the link for an own address. macOS has point-to-point interfaces, for
/// which wg-quick uses the own IPv4 address; on FreeBSD the interface is a broadcast interface
/// ([`taupe_os_bsd::tun`]), whose broadcast address the kernel computes.
fn peer_of(system: System, network: &IpNet) -> Option<IpAddr> {
    match (system, network) {
        (System::MacOs, IpNet::V4(network)) => Some(network.addr().into()),
        _ => None,
    }
}

/// Returns the MTU for the narrowest path to an endpoint.
pub(crate) fn tunnel_mtu(
    file: &File,
    snapshot: &Snapshot,
    foreign: &ForeignRoutes<'_>,
    compatibility: Compatibility,
) -> TunnelMtu {
    let ipv6 = compatibility == Compatibility::Taupe && snapshot.ipv6 && file.carries_ipv6();
    TunnelMtu::of(file, narrowest_path(snapshot, foreign), ipv6)
}

/// Returns the MTU in bytes of the narrowest path to an endpoint, or else that of the default
/// route.
pub(crate) fn narrowest_path(snapshot: &Snapshot, foreign: &ForeignRoutes<'_>) -> Option<u32> {
    let mtu_of = |address: IpAddr| {
        let entry = foreign.best(address)?;
        let link = snapshot.interface(entry.interface).map(|it| it.mtu);
        // 0 stands for the interface's.
        entry.mtu.filter(|mtu| *mtu != 0).or(link)
    };
    let narrowest = snapshot.endpoints.iter().filter_map(|it| mtu_of(*it)).min();
    narrowest.or_else(|| mtu_of(IpAddr::from([0, 0, 0, 0])))
}

/// Returns a note about unreachable endpoints. This is not an error, because the network may come
/// up later.
fn unreachable(snapshot: &Snapshot, foreign: &ForeignRoutes<'_>) -> Option<PlanNote> {
    let is_lost = |address: &&IpAddr| foreign.best(**address).is_none() && !is_zoned(**address);
    let mut lost = snapshot.endpoints.iter().filter(is_lost);
    let first = lost.next()?;
    let others = match lost.count() {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    let sentence = format!(
        "there is no route to the endpoint {first}{others}: nothing gets through to it before \
         there is one"
    );
    Some(sentence.into())
}

/// Returns true for addresses whose routes have zones, and are more specific than the tunnel's.
pub(crate) fn is_zoned(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns the networks that the tunnel's routes in the process's table carry or refuse.
pub(crate) fn claimed<'a>(routes: impl Iterator<Item = &'a TunnelRoute>) -> NetworkSet {
    let claims = |route: &&TunnelRoute| {
        let is_host = route.destination == host(route.destination.addr());
        route.fib.is_none()
            && match route.hop {
                Hop::Tunnel => true,
                // The refusal of an endpoint's address is one of the host routes.
                Hop::Reject => !is_host,
                Hop::Gateway { .. } | Hop::Link { .. } => false,
            }
    };
    routes
        .filter(claims)
        .map(|route| route.destination)
        .collect()
}
