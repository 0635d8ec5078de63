//! The steps to bring a tunnel up, computed without changing anything.
//!
//! [`plan`] is a pure function of the file, the present system and the options. Steps are in the
//! order of the table of steps. Routes are decided in this order:
//!
//! 1. *wanted*: the allowed IPs of all peers, longest first;
//! 2. *implied*: networks that the tunnel's own addresses route into it already are omitted, as in
//!    `wg-quick`;
//! 3. *conflicts*: networks to which another interface has a route, or which are its local network,
//!    are omitted, or are routed with more specific routes;
//! 4. *policy*: default routes, and routes that would carry the tunnel's own datagrams, are placed
//!    in a separate table, which marked packets do not use.
//!
//! If only marked packets use the tunnel, none of this applies: these packets have a separate
//! table, which has a route for every destination.

mod marked;
mod name_servers;
mod routing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use taupe_config::file::{Compatibility, File, Table};
use taupe_config::mtu::TunnelMtu;
use taupe_os_linux::netlink::{Address, Link, Route, Rule};
use taupe_packet::ip::Family;
use thiserror::Error;

use crate::bypass::{self, Bypass, Surroundings};
use crate::change::{Change, Hook, Phase};
use crate::dns::Dns;

use crate::request::Options;
use taupe_config::plan_note::{PlanNote, Remedy};

/// The state on which a plan depends.
#[derive(Clone, Default, Debug)]
pub struct Snapshot {
    /// All interfaces except the tunnel's.
    pub links: Vec<Link>,
    /// The addresses of all interfaces except the tunnel's.
    pub addresses: Vec<Address>,
    /// All routes of all tables except this tunnel's.
    pub routes: Vec<Route>,
    /// All routing policy rules except this tunnel's.
    pub rules: Vec<Rule>,
    /// The endpoints of the peers that have one.
    pub endpoints: Vec<SocketAddr>,
    /// The MTU of the path to each reachable endpoint.
    pub path_mtus: Vec<u32>,
    /// The endpoints to which there is no route.
    pub unreachable: Vec<IpAddr>,
    /// The names of routing tables, with their numbers.
    pub table_names: BTreeMap<String, u32>,
    /// True if the kernel has IPv6.
    pub ipv6: bool,
    /// True if new interfaces have IPv6, that is, it is not disabled.
    pub ipv6_on_interfaces: bool,
    /// `net.ipv4.conf.all.src_valid_mark` before the first tunnel that set it.
    pub valid_mark: Option<u32>,
    /// The number of this tunnel's table and mark, if it is up.
    pub mark: Option<u32>,
    /// The method of setting the file's name servers.
    pub dns: Option<Dns>,
}

/// The steps to bring a tunnel up.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// The steps, in order.
    pub changes: Vec<Change>,
    /// Notes for the user.
    pub notes: Vec<PlanNote>,
    /// The foreign routes that bypass the tunnel; [`Self::notes`] name them.
    pub bypasses: Vec<Bypass>,
}

/// Error of planning.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PlanError {
    /// The routing table has no number.
    #[error(
        "Table = {0}: there is no routing table of this name; give its number, or name it in \
         /etc/iproute2/rt_tables"
    )]
    UnknownTable(String),
}

/// Computes the steps to bring the tunnel of `file` up as `interface`, after its PreUp commands.
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
    let mut plan = Plan::default();
    let without_ipv6 = compatibility == Compatibility::Taupe && !snapshot.ipv6_on_interfaces;
    let mut addresses = file.interface.addresses.clone();
    if without_ipv6 {
        addresses.retain(|net| Family::of(net.addr()) == Family::V4);
        plan.notes.extend(file.carries_ipv6().then(|| {
            let sentence = format!(
                "IPv6 is switched off on this system (net.ipv6.conf.default.disable_ipv6): the \
                 IPv6 addresses and networks of {interface} are left out"
            );
            PlanNote::from(sentence)
        }));
    }
    if compatibility == Compatibility::Taupe {
        let note = unreachable(&snapshot.unreachable);
        plan.notes.extend(note.map(PlanNote::from));
    }
    let routing = routing::Routing {
        interface,
        file,
        snapshot,
        compatibility,
        options,
        addresses: &addresses,
        without_ipv6,
    };
    let addresses = routing.own_addresses();
    let routing = routing::Routing {
        addresses: &addresses,
        ..routing
    };
    plan.changes.push(Change::Device);
    plan.changes.push(Change::Configure);
    plan.changes
        .extend(addresses.iter().copied().map(Change::Address));
    // With a small MTU, wg-quick loses IPv6.
    let ipv6 = compatibility == Compatibility::Taupe && !without_ipv6 && file.carries_ipv6();
    let mtu = TunnelMtu::of(file, narrowest_path(snapshot), ipv6);
    plan.notes.extend(mtu.note().map(PlanNote::from));
    plan.changes.push(Change::Up { mtu: mtu.mtu });
    plan.changes.extend(snapshot.dns.clone().map(Change::Dns));
    match (options.chosen, &file.interface.table) {
        (Some(mark), _) => routing.add_mark_routes(mark, &mut plan),
        (None, Table::Off) => {}
        (None, Table::Id(table)) => routing.add_routes(*table, &mut plan),
        (None, Table::Name(name)) => {
            let table = snapshot.table_names.get(name);
            let table = table.ok_or_else(|| PlanError::UnknownTable(name.clone()))?;
            routing.add_routes(*table, &mut plan);
        }
        (None, Table::Auto) => routing.add_auto_routes(&mut plan),
    }
    plan.bypasses = bypasses(snapshot, &plan.changes);
    if compatibility == Compatibility::Taupe {
        plan.notes
            .extend(bypass_note(interface, options, &plan.bypasses));
    }
    let post_up = hooks(Phase::PostUp, &file.interface.hooks.post_up, interface);
    plan.changes.extend(post_up.map(Change::Hook));
    plan.changes.sort_by_key(|change| change.step().stage);
    Ok(plan)
}

/// Returns the commands of one phase, with `%i` replaced.
pub(crate) fn hooks<'a>(
    phase: Phase,
    commands: &'a [String],
    interface: &'a str,
) -> impl Iterator<Item = Hook> + 'a {
    commands.iter().map(move |command| Hook {
        phase,
        command: command.replace("%i", interface),
    })
}

/// Returns the foreign routes that bypass the tunnel.
fn bypasses(snapshot: &Snapshot, changes: &[Change]) -> Vec<Bypass> {
    let changes: Vec<&Change> = changes.iter().collect();
    let surroundings = Surroundings {
        links: &snapshot.links,
        addresses: &snapshot.addresses,
        routes: &snapshot.routes,
        endpoints: distinct(&snapshot.endpoints),
        own: None,
    };
    bypass::find(&changes, &surroundings)
}

fn bypass_note(interface: &str, options: Options, bypasses: &[Bypass]) -> Option<PlanNote> {
    let listed = bypass::Listed(bypasses);
    (!bypasses.is_empty()).then(|| PlanNote {
        sentence: format!(
            "traffic to the destinations of {listed} bypasses {interface}, whose routes are less \
             specific"
        ),
        remedy: Some(match options.override_routes {
            true => Remedy::Exclude,
            false => Remedy::OverrideOrExclude,
        }),
    })
}

/// Returns a note about unreachable endpoints. This is not an error, because the network may come
/// up later.
fn unreachable(endpoints: &[IpAddr]) -> Option<String> {
    let (first, others) = endpoints.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        count => format!(" and {count} others"),
    };
    Some(format!(
        "there is no route to the endpoint {first}{others}: nothing gets through to it before \
         there is one"
    ))
}

/// Returns the MTU of the narrowest path to a peer, `None` if it is unknown.
///
/// `wg-quick` before wireguard-tools 1.0.20250521 took the widest path.
fn narrowest_path(snapshot: &Snapshot) -> Option<u32> {
    let narrowest = snapshot.path_mtus.iter().min().copied();
    narrowest.or_else(|| default_route_mtu(snapshot))
}

fn default_route_mtu(snapshot: &Snapshot) -> Option<u32> {
    let any = IpNet::V4(ipnet::Ipv4Net::default());
    let of_main = |route: &&Route| route.table == Route::MAIN_TABLE && route.destination == any;
    let route = snapshot.routes.iter().find(of_main)?;
    route.mtu.or_else(|| {
        let link = |link: &&Link| Some(link.index) == route.interface;
        snapshot.links.iter().find(link).map(|link| link.mtu)
    })
}

/// Returns the endpoints' addresses without duplicates.
pub(crate) fn distinct(endpoints: &[SocketAddr]) -> Vec<IpAddr> {
    let mut addresses: Vec<_> = endpoints.iter().map(SocketAddr::ip).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
