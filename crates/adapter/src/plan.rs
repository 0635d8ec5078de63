//! What is to be done to bring a tunnel up, decided without touching anything.
//!
//! [`plan`] is a pure function of the file, of the system as it is and of what
//! was asked for. Routes are decided in this order:
//!
//! 1. *wanted*: the allowed IPs of all peers, longest first;
//! 2. *implied*: what the tunnel's own addresses lead into it already is left
//!    out, as `wg-quick` does;
//! 3. *conflicts*: what another interface has a route to, or is its local
//!    network, is left out, or wins by being more specific;
//! 4. *policy*: default routes, and routes that would carry the tunnel's own
//!    datagrams, go to a table of their own that marked packets do not see.
//!
//! Where only what has a mark uses the tunnel, none of this is asked: such packets have a
//! table of their own, which knows of every destination where it goes.

mod marked;
mod name_servers;
mod routing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use taupe_config::file::{File, InterfaceAddress, Personality, Table};
use taupe_os_linux::netlink::{Address, Link, Route, Rule};
use taupe_packet::ip::Family;
use thiserror::Error;

use crate::bypass::{self, Bypass, Surroundings};
use crate::change::{Change, Hook, Phase};
use crate::dns::Dns;
use crate::mtu::TunnelMtu;
use crate::request::Options;

/// What the plan depends on.
#[derive(Clone, Default, Debug)]
pub struct Snapshot {
    /// All interfaces, without the tunnel's.
    pub links: Vec<Link>,
    /// Their addresses.
    pub addresses: Vec<Address>,
    /// All routes of all tables, without those of this tunnel.
    pub routes: Vec<Route>,
    /// All rules of policy routing, without those of this tunnel.
    pub rules: Vec<Rule>,
    /// Where the peers are reached that have an endpoint.
    pub endpoints: Vec<SocketAddr>,
    /// The MTU of the path to each endpoint to which there is a route.
    pub path_mtus: Vec<u32>,
    /// The endpoints to which there is none.
    pub unreachable: Vec<IpAddr>,
    /// The numbers of routing tables that have a name.
    pub table_names: BTreeMap<String, u32>,
    /// The kernel has IPv6.
    pub ipv6: bool,
    /// A new interface has it: it is not switched off.
    pub ipv6_on_interfaces: bool,
    /// `net.ipv4.conf.all.src_valid_mark` before the first tunnel that set it.
    pub valid_mark: Option<u32>,
    /// The number that this tunnel has been given already, when it is up: of its table, or
    /// its mark, which is the same.
    pub mark: Option<u32>,
    /// How the name servers of the file are made known.
    pub dns: Option<Dns>,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Plan {
    /// The steps, in order.
    pub changes: Vec<Change>,
    /// What the owner of the file should know, a sentence each.
    pub notes: Vec<String>,
    /// The routes of others that lead around the tunnel; [`Self::notes`] name them.
    pub bypasses: Vec<Bypass>,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PlanError {
    /// A routing table that nobody has given a number.
    #[error(
        "Table = {0}: there is no routing table of this name; give its number, or name it in \
         /etc/iproute2/rt_tables"
    )]
    UnknownTable(String),
}

/// Decides what is to be done to bring the tunnel of `file` up as `interface`,
/// after its PreUp commands.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    interface: &str,
    file: &File,
    snapshot: &Snapshot,
    personality: Personality,
    options: Options,
) -> Result<Plan, PlanError> {
    let mut plan = Plan::default();
    let without_ipv6 = personality == Personality::Taupe && !snapshot.ipv6_on_interfaces;
    let mut addresses = addresses(file);
    if without_ipv6 {
        addresses.retain(|net| Family::of(net.addr()) == Family::V4);
        plan.notes.extend(file.carries_ipv6().then(|| {
            format!(
                "IPv6 is switched off on this system (net.ipv6.conf.default.disable_ipv6): the \
                 IPv6 addresses and networks of {interface} are left out"
            )
        }));
    }
    if personality == Personality::Taupe {
        plan.notes.extend(unreachable(&snapshot.unreachable));
    }
    let routing = routing::Routing {
        interface,
        file,
        snapshot,
        personality,
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
    // wg-quick loses IPv6 to a small MTU.
    let ipv6 = personality == Personality::Taupe && !without_ipv6 && file.carries_ipv6();
    let mtu = TunnelMtu::of(file, narrowest_path(snapshot), ipv6);
    plan.notes.extend(mtu.note());
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
    if personality == Personality::Taupe {
        plan.notes
            .extend(bypass_note(interface, options, &plan.bypasses));
    }
    let post_up = hooks(Phase::PostUp, &file.interface.hooks.post_up, interface);
    plan.changes.extend(post_up.map(Change::Hook));
    Ok(plan)
}

/// The commands of one phase, with `%i` replaced.
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

/// The routes of others that lead around the tunnel.
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

fn bypass_note(interface: &str, options: Options, bypasses: &[Bypass]) -> Option<String> {
    let listed = bypass::Listed(bypasses);
    let advice = match options.override_routes {
        true => "DisallowedIPs keeps them out of the tunnel knowingly",
        false => {
            "--override-routes tunnels them, DisallowedIPs keeps them out of the tunnel knowingly"
        }
    };
    (!bypasses.is_empty()).then(|| {
        format!(
            "traffic to the destinations of {listed} bypasses {interface}, whose routes are less \
             specific; {advice}"
        )
    })
}

/// It may come: the system may only just be starting.
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

fn addresses(file: &File) -> Vec<IpNet> {
    let addresses = file.interface.addresses.iter();
    let network = |a: &InterfaceAddress| IpNet::new(a.address, a.length).ok();
    addresses.filter_map(network).collect()
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

/// The endpoints' addresses, each once.
pub(crate) fn distinct(endpoints: &[SocketAddr]) -> Vec<IpAddr> {
    let mut addresses: Vec<_> = endpoints.iter().map(SocketAddr::ip).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
