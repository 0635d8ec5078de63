//! Routes of a tunnel.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::file::{Compatibility, File, Table};
use taupe_os_linux::netlink::{Address, Route, RouteKind, Rule};
use taupe_packet::ip::Family;
use taupe_uapi::network_set::{LINK_LOCAL, NetworkSet, everything, halves, host};
use taupe_uapi::networks::{self, is_special};

use super::{Plan, Snapshot, distinct};
use crate::change::{Change, InterfaceKey};
use crate::request::Options;
use taupe_config::plan_note::{PlanNote, Remedy};

/// The first mark and table that `wg-quick` tries.
const FIRST_TABLE: u32 = 51820;

/// The first table for hosts that need routes before the main table, such as name servers. It is
/// far from numbers that users write as FwMark or Table: a file with the same number would share
/// the table.
const FIRST_TABLE_BEFORE: u32 = 0x5441_5550;

/// The first and the last of the kernel's predefined tables (`rtnetlink(7)`); the main table is
/// between them.
const DEFAULT_TABLE: u32 = 253;
const LOCAL_TABLE: u32 = 255;

/// The input for routing decisions.
pub(super) struct Routing<'a> {
    pub(super) interface: &'a str,
    pub(super) file: &'a File,
    pub(super) snapshot: &'a Snapshot,
    pub(super) compatibility: Compatibility,
    pub(super) options: Options,
    /// The tunnel's own addresses.
    pub(super) addresses: &'a [IpNet],
    /// True if the tunnel's interface cannot have IPv6.
    pub(super) without_ipv6: bool,
}

/// The routes of one family that need a separate table.
#[derive(Default)]
pub(super) struct Policy {
    /// Networks to route into the tunnel.
    routes: Vec<IpNet>,
    /// Networks to reject when the tunnel's routes are gone.
    unreachable: Vec<IpNet>,
    /// Hosts to route through the tunnel regardless of the main table. Their routes are in a table
    /// before it.
    pub(super) hosts: Vec<IpNet>,
    /// True if the whole family is tunnelled or blocked.
    pub(super) full: bool,
    /// True if the tunnel's table has precedence over all other routes.
    first: bool,
}

impl Policy {
    fn has_table(&self) -> bool {
        !(self.routes.is_empty() && self.unreachable.is_empty())
    }
}

impl Routing<'_> {
    /// Returns the tunnel's addresses for the interface. The kernel adds a route to the network of
    /// each address, which could have precedence over that of another interface in the same
    /// network; such an address gets the maximum prefix length.
    pub(super) fn own_addresses(&self) -> Vec<IpNet> {
        let is_alone = |own: &IpNet| {
            self.compatibility == Compatibility::Taupe
                && self.file.interface.table == Table::Auto
                && self.options.chosen.is_none()
                && !self.options.override_routes
                && !LINK_LOCAL.contains(own)
                && self.is_others(&own.trunc())
        };
        let addresses = self.addresses.iter();
        addresses
            .map(|own| {
                if is_alone(own) {
                    host(own.addr())
                } else {
                    *own
                }
            })
            .collect()
    }

    /// Adds routes to a table that the file names, without further decisions.
    pub(super) fn add_routes(&self, table: u32, plan: &mut Plan) {
        let routes = sorted(self.wanted());
        let route = |destination| Change::Route { destination, table };
        plan.changes.extend(routes.into_iter().map(route));
    }

    /// Adds routes to the main table, and policy routing where that is not sufficient.
    pub(super) fn add_auto_routes(&self, plan: &mut Plan) {
        let wanted = sorted(self.wanted());
        let implied = self.implied();
        let contested = match self.compatibility {
            Compatibility::Taupe => self.contested(&implied),
            Compatibility::WgQuick => NetworkSet::default(),
        };
        let (defaults, others): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|net| net.prefix_len() == 0);
        let is_implied = |net: &IpNet| match implied.holding(net) {
            None => false,
            Some(holder) => {
                !contested.contains(&holder) || (holder == *net && !self.is_others(net))
            }
        };
        let mut main = others.clone();
        main.retain(|net| !is_implied(net));
        let mut policies: [(Family, Policy); 2] = Family::ALL.map(|f| (f, Policy::default()));
        for (family, policy) in &mut policies {
            let of_family = defaults
                .iter()
                .filter(|net| Family::of(net.addr()) == *family);
            policy.routes.extend(of_family);
            policy.full = !policy.routes.is_empty();
        }
        if self.compatibility == Compatibility::Taupe {
            self.adjust_for_taupe(&others, &mut main, &mut policies, plan);
        }
        let to_main = main.into_iter().map(|destination| Change::Route {
            destination,
            table: Route::MAIN_TABLE,
        });
        plan.changes.extend(to_main);
        self.add_policies(policies, plan);
    }

    /// Makes Taupe's changes to the routes of `wg-quick`.
    fn adjust_for_taupe(
        &self,
        wanted: &[IpNet],
        main: &mut Vec<IpNet>,
        policies: &mut [(Family, Policy); 2],
        plan: &mut Plan,
    ) {
        for (family, policy) in &mut *policies {
            policy.full = self.has(*family) && self.is_full(*family);
            policy.first = self.options.override_routes;
        }
        let full = policies
            .each_ref()
            .map(|(family, policy)| (*family, policy.full));
        let is_full = |net: &IpNet| full.contains(&(Family::of(net.addr()), true));
        let all = wanted.iter().copied().collect();
        *main = self.resolve_conflicts(std::mem::take(main), &all, &is_full, &mut plan.notes);
        for (family, policy) in &mut *policies {
            if policy.full {
                let of_family = main.iter().filter(|net| Family::of(net.addr()) == *family);
                let pieces: Vec<_> = of_family.copied().collect();
                if policy.routes.is_empty() {
                    // Parts of a default route belong to the same table as the default route: a
                    // peer may move to any public address.
                    let public = pieces.iter().filter(|net| !is_special(**net));
                    policy.routes.extend(public);
                    main.retain(|net| Family::of(net.addr()) != *family || is_special(*net));
                    policy.unreachable = pieces;
                } else {
                    policy.unreachable.clone_from(&policy.routes);
                }
            }
        }
        let carrying = self.carrying_itself(main);
        main.retain(|net| !carrying.contains_key(net));
        for (family, policy) in &mut *policies {
            let of_family = carrying
                .keys()
                .filter(|net| Family::of(net.addr()) == *family);
            policy.routes.extend(of_family);
        }
        plan.notes.extend(carrying.iter().map(|(net, endpoint)| {
            let sentence = format!(
                "the endpoint {endpoint} lies in {net}: policy routing keeps the tunnel's own \
                 packets out of the tunnel"
            );
            PlanNote::from(sentence)
        }));
        let [(_, v4), (_, v6)] = &mut *policies;
        if v4.full && !v6.full && self.snapshot.ipv6 {
            v6.unreachable.push(everything(Family::V6));
            v6.full = true;
            v6.first = false;
            let note = format!(
                "{} carries all of IPv4 but not of IPv6: IPv6 to anywhere but local networks is \
                 refused while it is up, so that nothing leaves beside the tunnel; \
                 AllowedIPs = ::/0 tunnels it",
                self.interface
            );
            // No note if IPv6 is disabled.
            plan.notes
                .extend((!self.without_ipv6).then(|| PlanNote::from(note)));
        }
        self.add_name_server_routes(main, policies, &is_full, &mut plan.notes);
    }

    /// Adds the rules, routes and firewall of policy routing, IPv6 first as in `wg-quick`.
    fn add_policies(&self, mut policies: [(Family, Policy); 2], plan: &mut Plan) {
        policies.reverse();
        let used = |policy: &Policy| policy.has_table() || !policy.hosts.is_empty();
        if !policies.iter().any(|(_, policy)| used(policy)) {
            return;
        }
        let given = self.file.interface.fwmark.filter(|mark| *mark != 0);
        let mark = given.unwrap_or_else(|| self.free_mark());
        if given.is_none() {
            plan.changes.push(Change::Mark(mark));
        }
        for (family, policy) in policies {
            if used(&policy) {
                self.add_policy(family, policy, mark, plan);
            }
        }
    }

    fn add_policy(&self, family: Family, mut policy: Policy, mark: u32, plan: &mut Plan) {
        let table = self.table_of(mark);
        let has_table = policy.has_table();
        let tunnelled = !(policy.routes.is_empty() && policy.hosts.is_empty());
        policy.routes = sorted(policy.routes);
        let shortest = policy.routes.last().map_or(0, IpNet::prefix_len);
        let routes = policy.routes.into_iter();
        plan.changes
            .extend(routes.map(|destination| Change::Route { destination, table }));
        let unreachable = sorted(policy.unreachable).into_iter();
        plan.changes
            .extend(unreachable.map(|destination| Change::Unreachable { destination, table }));
        let before = self.free_table(FIRST_TABLE_BEFORE);
        let hosts = sorted(policy.hosts);
        plan.changes
            .extend(hosts.iter().map(|&destination| Change::Route {
                destination,
                table: before,
            }));
        let refused = hosts.iter().filter(|_| policy.full);
        plan.changes
            .extend(refused.map(|&destination| Change::Unreachable {
                destination,
                table: before,
            }));
        let mut rules = self.snapshot.rules.clone();
        let mut add = |plan: &mut Plan, make: &dyn Fn(u32) -> Rule| {
            let rule = make(Rule::next_priority(&rules, family));
            rules.push(rule.clone());
            plan.changes.push(Change::Rule(rule));
        };
        // The rule that is added last has precedence.
        if has_table {
            add(plan, &|priority| {
                Rule::not_marked(family, priority, mark, table)
            });
        }
        if has_table && !policy.first {
            // From the main table, use only routes that are more specific than the tunnel's.
            let length = if policy.full {
                0
            } else {
                shortest.saturating_sub(1)
            };
            add(plan, &|priority| {
                Rule::suppressing(family, priority, length.into(), Route::MAIN_TABLE)
            });
        }
        if !hosts.is_empty() {
            // The tunnel's own datagrams have the mark and continue to the main table, also those
            // to a host that is both a name server and an endpoint. A rule `not fwmark M to HOST`
            // would not work, because `not` inverts all selectors.
            add(plan, &|priority| {
                Rule::not_marked(family, priority, mark, before)
            });
        }
        if !tunnelled {
            return;
        }
        if family == Family::V4 {
            let original = match self.compatibility {
                Compatibility::Taupe => self.snapshot.valid_mark,
                Compatibility::WgQuick => None,
            };
            plan.changes.push(Change::ValidMark { original });
        }
        if self.options.firewall {
            let own = self.addresses.iter().map(IpNet::addr);
            let addresses = own.filter(|a| Family::of(*a) == family).collect();
            let interface = match self.compatibility {
                Compatibility::Taupe => InterfaceKey::Index,
                Compatibility::WgQuick => InterfaceKey::Name,
            };
            plan.changes.push(Change::Firewall {
                family,
                interface,
                mark,
                addresses,
            });
        }
    }

    /// Returns the networks that the tunnel carries.
    pub(super) fn wanted(&self) -> Vec<IpNet> {
        let routed = self.file.peers.iter().flat_map(|peer| peer.routed());
        routed
            .filter(|net| self.has(Family::of(net.addr())))
            .collect()
    }

    /// Returns true if a whole family is tunnelled, except for networks that the file excludes.
    fn is_full(&self, family: Family) -> bool {
        let allowed = self.file.peers.iter().flat_map(|peer| &peer.allowed_ips);
        let allowed: Vec<_> = allowed.copied().collect();
        networks::covers_public(&allowed, family)
    }

    /// Returns true if the tunnel can carry a family.
    pub(super) fn has(&self, family: Family) -> bool {
        family == Family::V4 || !self.without_ipv6
    }

    /// Returns the networks that the kernel routes into the tunnel because of its addresses: the
    /// network of each address, except for a single IPv4 address, and the link-local network of
    /// every TUN.
    fn implied(&self) -> NetworkSet {
        let addresses = self.addresses.iter();
        let connected = addresses.filter(|net| net.prefix_len() != 32 || net.addr().is_ipv6());
        connected.copied().chain([LINK_LOCAL]).collect()
    }

    /// Returns the tunnel's own networks in which other interfaces have a route or an address, so
    /// that the kernel may route a part of them elsewhere.
    fn contested(&self, implied: &NetworkSet) -> NetworkSet {
        let routes = self.existing().into_keys();
        let local = self.local_networks().into_iter();
        let others = routes.chain(local.map(|address| address.network.trunc()));
        let within = others.filter(|net| !LINK_LOCAL.contains(net));
        within.filter_map(|net| implied.holding(&net)).collect()
    }

    /// Returns true if another interface has a route to exactly this network.
    fn is_others(&self, net: &IpNet) -> bool {
        self.existing().contains_key(net)
            || self
                .local_networks()
                .iter()
                .any(|local| local.network.trunc() == *net)
    }

    /// Omits networks that have a route already, or uses more specific routes for them.
    fn resolve_conflicts(
        &self,
        main: Vec<IpNet>,
        all: &NetworkSet,
        is_full: &dyn Fn(&IpNet) -> bool,
        notes: &mut Vec<PlanNote>,
    ) -> Vec<IpNet> {
        let existing = self.existing();
        let local = self.local_networks();
        let owned: HashMap<IpNet, &Address> = local
            .iter()
            .map(|address| (address.network.trunc(), *address))
            .collect();
        let mut settled = NetworkSet::default();
        let mut result = Vec::with_capacity(main.len());
        let mut keep = |net: IpNet, result: &mut Vec<IpNet>| {
            if !settled.contains(&net) {
                settled.insert(net);
                result.push(net);
            }
        };
        for net in main {
            let route = existing.get(&net);
            let what = match (route, owned.get(&net)) {
                (None, None) => {
                    keep(net, &mut result);
                    continue;
                }
                (_, Some(address)) => format!(
                    "it is the local network of {} on {}",
                    address.network.addr(),
                    self.name(Some(address.interface))
                ),
                (Some(route), None) => {
                    format!("there is a route already, `{}`", self.describe(route))
                }
            };
            match halves(&net).filter(|_| self.options.override_routes) {
                Some(halves) => {
                    notes.push(format!("{net} is tunnelled, although {what}").into());
                    halves.into_iter().for_each(|half| keep(half, &mut result));
                }
                None if self.options.override_routes => {
                    let sentence = format!(
                        "AllowedIPs {net} is not tunnelled: {what}, and no route is more specific; \
                         remove that one first"
                    );
                    notes.push(sentence.into());
                }
                None => notes.push(PlanNote {
                    sentence: format!("AllowedIPs {net} is not tunnelled: {what}"),
                    remedy: Some(Remedy::Override),
                }),
            }
        }
        for address in local {
            let net = address.network.trunc();
            let holder = all.holding(&net).filter(|holder| *holder != net);
            let Some(holder) = holder.filter(|holder| !is_full(holder)) else {
                continue;
            };
            let name = self.name(Some(address.interface));
            match halves(&net).filter(|_| self.options.override_routes) {
                Some(halves) => {
                    let sentence = format!(
                        "the local network {net} on {name} is tunnelled, since {holder} is"
                    );
                    notes.push(sentence.into());
                    halves.into_iter().for_each(|half| keep(half, &mut result));
                }
                None => notes.push(PlanNote {
                    sentence: format!(
                        "the local network {net} on {name} is not tunnelled, though AllowedIPs \
                         {holder} contains it"
                    ),
                    remedy: Some(Remedy::Override),
                }),
            }
        }
        sorted(result)
    }

    /// Returns the routes of the main table through other interfaces: for each destination the one
    /// that the kernel prefers.
    pub(super) fn existing(&self) -> HashMap<IpNet, &Route> {
        let mut existing = HashMap::new();
        for route in &self.snapshot.routes {
            if route.table == Route::MAIN_TABLE {
                let best = existing.entry(route.destination).or_insert(route);
                if route.metric < best.metric {
                    *best = route;
                }
            }
        }
        existing
    }

    /// Returns the networks with directly reachable hosts.
    pub(super) fn local_networks(&self) -> Vec<&Address> {
        let shared = |address: &&Address| {
            let network = &address.network;
            let alone = network.prefix_len() == network.max_prefix_len();
            let link_local = LINK_LOCAL.contains(network);
            let links = &self.snapshot.links;
            let link = links.iter().find(|link| link.index == address.interface);
            let usable = link.is_some_and(|link| link.up && link.name != "lo");
            !alone && !link_local && usable
        };
        self.snapshot.addresses.iter().filter(shared).collect()
    }

    /// Returns the tunnel's routes that would carry its own datagrams, each with an endpoint that
    /// it contains.
    fn carrying_itself(&self, main: &[IpNet]) -> BTreeMap<IpNet, IpAddr> {
        let mut ours: NetworkSet = main.iter().copied().collect();
        let theirs: NetworkSet = self
            .snapshot
            .routes
            .iter()
            .filter(|route| route.table == Route::MAIN_TABLE)
            .map(|route| route.destination)
            .collect();
        let mut carrying = BTreeMap::new();
        for endpoint in distinct(&self.snapshot.endpoints) {
            let alone = host(endpoint);
            let theirs = theirs.holding(&alone).map_or(0, |net| net.prefix_len());
            while let Some(net) = ours.holding(&alone) {
                if net.prefix_len() < theirs {
                    break;
                }
                ours.remove(&net);
                carrying.insert(net, endpoint);
            }
        }
        carrying
    }

    /// Returns the table of a mark. It has the same number, except for the kernel's predefined
    /// tables.
    fn table_of(&self, mark: u32) -> u32 {
        let kernels = (DEFAULT_TABLE..=LOCAL_TABLE).contains(&mark);
        if kernels && self.compatibility == Compatibility::Taupe {
            self.free_mark()
        } else {
            mark
        }
    }

    /// Returns this tunnel's mark, or the number of the first unused table.
    pub(super) fn free_mark(&self) -> u32 {
        let given = self.snapshot.mark;
        given.unwrap_or_else(|| self.free_table(FIRST_TABLE))
    }

    /// Returns the number of the first unused table, starting at `first`.
    fn free_table(&self, first: u32) -> u32 {
        let snapshot = self.snapshot;
        let taken = |table: u32| {
            snapshot.routes.iter().any(|route| route.table == table)
                || snapshot.rules.iter().any(|rule| rule.table == table)
        };
        let free = (first..).find(|table| !taken(*table));
        free.unwrap_or(first)
    }

    /// Formats a route as `ip` does.
    pub(super) fn describe(&self, route: &Route) -> String {
        let mut text = match route.kind {
            RouteKind::Unicast => String::new(),
            kind => format!("{kind} "),
        };
        text.push_str(&route.destination.to_string());
        if let Some(gateway) = route.gateway {
            text.push_str(&format!(" via {gateway}"));
        }
        if route.interface.is_some() {
            text.push_str(&format!(" dev {}", self.name(route.interface)));
        }
        if route.metric != 0 {
            text.push_str(&format!(" metric {}", route.metric));
        }
        text
    }

    pub(super) fn name(&self, index: Option<u32>) -> String {
        let links = self.snapshot.links.iter();
        let link = links.into_iter().find(|link| Some(link.index) == index);
        match (link, index) {
            (Some(link), _) => link.name.clone(),
            (None, Some(index)) => format!("interface {index}"),
            (None, None) => "no interface".to_owned(),
        }
    }
}

/// Sorts networks by prefix length, longest first, in the order that `sort -nr` produces in
/// `wg-quick`, and removes duplicates.
fn sorted(mut networks: Vec<IpNet>) -> Vec<IpNet> {
    networks.sort_by_cached_key(|net| Reverse((net.prefix_len(), net.to_string())));
    networks.dedup();
    networks
}
