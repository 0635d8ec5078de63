//! Routes that apply only to marked packets.

use ipnet::IpNet;
use taupe_config::destinations::{self, Class};
use taupe_config::file::KillSwitch;
use taupe_os_linux::netlink::{RouteKind, Rule};
use taupe_packet::ip::Family;
use taupe_uapi::network_set::host;

use super::Plan;
use super::routing::Routing;
use crate::change::Change;

impl Routing<'_> {
    /// Adds a table for packets with a mark, and for packets from the tunnel's own addresses. Only
    /// the tunnel uses these addresses; with the table, answers to them pass the reverse-path
    /// filter, and packets from them do not bypass the tunnel. The table rejects packets for
    /// tunnelled networks once the device is gone.
    pub(super) fn add_mark_routes(&self, mark: u32, plan: &mut Plan) {
        let table = self.free_mark();
        let transparent = &self.file.transparent;
        let fails_closed = transparent.kill_switch != Some(KillSwitch::Off);
        let own = |family| {
            let addresses = self.addresses.iter();
            addresses.filter(move |net| Family::of(net.addr()) == family)
        };
        let special = |kind, destination| Change::Special {
            kind,
            destination,
            table,
        };
        let bypass_lan = transparent.bypass_lan.unwrap_or(false);
        // Neighbours are reached through the main table. The eBPF program at the sockets rejects
        // hosts behind a router, because a route cannot distinguish them from neighbours.
        let link_local = destinations::link_local();
        let is_within_link = |network: IpNet| {
            let mut links = link_local.iter();
            links.any(|link| link.contains(&network))
        };
        let mut judged = destinations::table_for_peers(&self.file.peers, bypass_lan);
        judged.retain(|(network, _)| !is_within_link(*network));
        let past = link_local.iter().map(|link| (*link, Class::Direct));
        for (destination, class) in past.chain(judged) {
            let family = Family::of(destination.addr());
            if !self.knows(family) || is_this_host(&destination) {
                continue;
            }
            let tunnelled = class == Class::Tunnel && own(family).next().is_some();
            plan.changes
                .extend(tunnelled.then_some(Change::Route { destination, table }));
            let last = match class {
                Class::Direct => Some(RouteKind::Throw),
                Class::Tunnel if tunnelled && !fails_closed => None,
                Class::Tunnel | Class::Refuse | Class::Drop => Some(RouteKind::Prohibit),
            };
            plan.changes
                .extend(last.map(|kind| special(kind, destination)));
        }
        let mut rules = self.snapshot.rules.clone();
        for family in Family::ALL.into_iter().filter(|family| self.knows(*family)) {
            let mut add = |make: &dyn Fn(u32) -> Rule| {
                let rule = make(Rule::next_priority(&rules, family));
                rules.push(rule.clone());
                plan.changes.push(Change::Rule(rule));
            };
            for own in own(family) {
                add(&|priority| Rule::from(host(own.addr()), priority, table));
            }
            add(&|priority| Rule::marked(family, priority, mark, mark, table));
        }
    }

    /// Returns true if the kernel supports the family.
    fn knows(&self, family: Family) -> bool {
        family == Family::V4 || self.snapshot.ipv6
    }
}

/// Returns true if a network belongs to this host, so that the local table has precedence.
fn is_this_host(network: &IpNet) -> bool {
    let address = network.addr();
    let is_whole = network.prefix_len() == network.max_prefix_len();
    address.is_loopback() || (address.is_unspecified() && is_whole)
}
