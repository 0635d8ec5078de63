//! The state of the system, for comparison with changes.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use taupe_os_linux::netlink::{Address, FirewallState, Link, Route, RouteKind, Rule};
use taupe_packet::ip::Family;

use super::Deviation;
use crate::bypass::Bypass;
use crate::change::{Change, mark_in_effect};

/// The network settings of a system that tunnels change.
#[derive(Default)]
pub(crate) struct Observed {
    /// The tunnel's interface; `None` if it is in another network namespace.
    link: Option<Link>,
    addresses: Vec<Address>,
    routes: HashMap<(u32, IpNet), Vec<Route>>,
    rules: Vec<Rule>,
    /// All interfaces, for their names.
    pub(crate) links: Vec<Link>,
    /// The tunnel's firewall tables; empty if its interface is in another network namespace.
    pub(crate) firewalls: BTreeMap<Family, FirewallState>,
    /// `net.ipv4.conf.all.src_valid_mark`.
    pub(crate) valid_mark: Option<u32>,
    /// The foreign routes that bypass the tunnel.
    pub(crate) bypasses: Vec<Bypass>,
    /// The mark of the device's datagrams, if it is known.
    pub(crate) mark: Option<u32>,
}

impl Observed {
    pub(crate) fn new(
        link: Option<Link>,
        addresses: Vec<Address>,
        routes: Vec<Route>,
        rules: Vec<Rule>,
    ) -> Self {
        let mut by_network: HashMap<_, Vec<Route>> = HashMap::new();
        for route in routes {
            let place = (route.table, route.destination);
            by_network.entry(place).or_default().push(route);
        }
        Self {
            link,
            addresses,
            routes: by_network,
            rules,
            ..Self::default()
        }
    }

    /// Returns the name of the tunnel's interface.
    pub(crate) fn name(&self) -> Option<&str> {
        Some(&self.link.as_ref()?.name)
    }

    /// Compares all changes of a tunnel, and returns the deviations in the same order.
    pub(crate) fn deviations(&self, changes: &[&Change]) -> Vec<Option<Deviation>> {
        let has_mark = changes.iter().any(|c| matches!(c, Change::Mark(_)));
        let of_rules = mark_in_effect(changes.iter().copied()).filter(|_| !has_mark);
        changes
            .iter()
            .map(|change| self.deviation(change, of_rules))
            .collect()
    }

    /// Compares one change. Name servers are compared elsewhere, and the effect of a command is
    /// unknown.
    fn deviation(&self, change: &Change, of_rules: Option<u32>) -> Option<Deviation> {
        let removed = |is_there: bool| (!is_there).then_some(Deviation::Removed);
        match change {
            Change::Hook(_) | Change::Device | Change::Dns(_) => None,
            // The mark that the rules use was set from the file.
            Change::Configure => self.of_mark(of_rules?),
            Change::Mark(mark) => self.of_mark(*mark),
            Change::Address(network) => {
                let index = self.link.as_ref()?.index;
                let address = Address {
                    interface: index,
                    network: *network,
                };
                removed(self.addresses.contains(&address))
            }
            Change::Up { mtu } => match self.link.as_ref()? {
                link if !link.up => Some(Deviation::Down),
                link if link.mtu != *mtu => Some(Deviation::Mtu(link.mtu)),
                _ => None,
            },
            Change::Route { destination, table } => {
                self.of_route(destination, *table, self.link.as_ref()?.index)
            }
            Change::Unreachable { destination, table } => {
                removed(self.has_special(RouteKind::Unreachable, destination, *table))
            }
            Change::Special {
                kind,
                destination,
                table,
            } => removed(self.has_special(*kind, destination, *table)),
            Change::Rule(rule) => removed(self.rules.contains(rule)),
            Change::Firewall { family, .. } => match self.firewalls.get(family)? {
                FirewallState::Intact => None,
                FirewallState::Altered => Some(Deviation::Altered),
                FirewallState::Missing => Some(Deviation::Removed),
            },
            Change::ValidMark { .. } => match self.valid_mark? {
                1 => None,
                value => Some(Deviation::Setting(value)),
            },
        }
    }

    fn of_mark(&self, wanted: u32) -> Option<Deviation> {
        let mark = self.mark.filter(|mark| *mark != wanted);
        mark.map(Deviation::Mark)
    }

    fn routes_to(&self, destination: &IpNet, table: u32) -> &[Route] {
        let place = (table, destination.trunc());
        self.routes.get(&place).map_or(&[], Vec::as_slice)
    }

    fn of_route(&self, destination: &IpNet, table: u32, interface: u32) -> Option<Deviation> {
        let routes = self.routes_to(destination, table);
        let first = |is_ours: bool| {
            routes
                .iter()
                .filter(|route| (route.interface == Some(interface)) == is_ours)
                .min_by_key(|route| route.metric)
        };
        match (first(true), first(false)) {
            (None, _) => Some(Deviation::Removed),
            (Some(ours), Some(other)) if other.metric < ours.metric => {
                Some(Deviation::Overtaken(self.bypass(other)))
            }
            _ => None,
        }
    }

    fn bypass(&self, route: &Route) -> Bypass {
        let mut links = self.links.iter();
        let link = links.find(|link| Some(link.index) == route.interface);
        Bypass {
            destination: route.destination,
            gateway: route.gateway,
            // A route that rejects packets has no interface, or the loopback interface.
            interface: link.map_or("lo", |link| &link.name).to_owned(),
        }
    }

    fn has_special(&self, kind: RouteKind, destination: &IpNet, table: u32) -> bool {
        let routes = self.routes_to(destination, table);
        routes.iter().any(|route| route.kind == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::InterfaceKey;
    use taupe_os_linux::netlink::Medium;

    const INDEX: u32 = 7;
    const TABLE: u32 = 51820;
    const MARK: u32 = 51820;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    fn address(text: &str) -> Address {
        Address {
            interface: INDEX,
            network: net(text),
        }
    }

    /// One change of each kind whose effect is visible.
    fn changes() -> Vec<Change> {
        let (destination, table) = (net("0.0.0.0/0"), TABLE);
        vec![
            Change::Device,
            Change::Configure,
            Change::Address(net("10.9.0.2/24")),
            Change::Up { mtu: 1420 },
            Change::Mark(MARK),
            Change::Route { destination, table },
            Change::Unreachable { destination, table },
            Change::Special {
                kind: RouteKind::Throw,
                destination: net("192.168.0.0/16"),
                table,
            },
            Change::Rule(rule()),
            Change::Firewall {
                family: Family::V4,
                interface: InterfaceKey::Index,
                mark: MARK,
                addresses: vec![net("10.9.0.2/24").addr()],
            },
            Change::ValidMark { original: Some(0) },
        ]
    }

    fn rule() -> Rule {
        Rule::not_marked(Family::V4, 32764, MARK, TABLE)
    }

    /// The state of the system after all these changes.
    fn observed() -> Observed {
        let link = Link {
            index: INDEX,
            name: "wg0".into(),
            up: true,
            mtu: 1420,
            kind: None,
            medium: Medium::Other(65534),
            controller: None,
        };
        let routes = vec![
            Route::by_interface(net("0.0.0.0/0"), INDEX, TABLE),
            Route::unreachable(net("0.0.0.0/0"), u32::MAX, TABLE),
            Route::without_interface(RouteKind::Throw, net("192.168.0.0/16"), 9, TABLE),
        ];
        let addresses = vec![address("10.9.0.2/24")];
        let other = Link {
            index: 2,
            name: "eth0".into(),
            ..link.clone()
        };
        Observed {
            links: vec![other],
            firewalls: BTreeMap::from([(Family::V4, FirewallState::Intact)]),
            valid_mark: Some(1),
            mark: Some(MARK),
            ..Observed::new(Some(link), addresses, routes, vec![rule()])
        }
    }

    fn deviations(observed: &Observed) -> Vec<(Change, Deviation)> {
        let changes = changes();
        let found = observed.deviations(&changes.iter().collect::<Vec<_>>());
        let both = changes.into_iter().zip(found);
        both.filter_map(|(change, deviation)| Some((change, deviation?)))
            .collect()
    }

    type Meddling = fn(&mut Observed);

    #[test]
    fn every_kind_of_change_is_missed() {
        assert_eq!(deviations(&observed()), []);
        let cases: [(Meddling, &[Deviation]); 12] = [
            (|o| o.addresses.clear(), &[Deviation::Removed]),
            (
                |o| o.link.as_mut().expect("a link").mtu = 1280,
                &[Deviation::Mtu(1280)],
            ),
            (
                |o| o.link.as_mut().expect("a link").up = false,
                &[Deviation::Down],
            ),
            (|o| o.mark = Some(0), &[Deviation::Mark(0)]),
            (
                |o| retain(o, |route| route.kind != RouteKind::Unicast),
                &[Deviation::Removed],
            ),
            (
                |o| retain(o, |route| route.kind != RouteKind::Unreachable),
                &[Deviation::Removed],
            ),
            (
                |o| retain(o, |route| route.kind != RouteKind::Throw),
                &[Deviation::Removed],
            ),
            (|o| o.rules.clear(), &[Deviation::Removed]),
            (
                |o| o.rules.iter_mut().for_each(|rule| rule.priority = 40000),
                &[Deviation::Removed],
            ),
            (
                |o| o.firewalls = BTreeMap::from([(Family::V4, FirewallState::Missing)]),
                &[Deviation::Removed],
            ),
            (
                |o| o.firewalls = BTreeMap::from([(Family::V4, FirewallState::Altered)]),
                &[Deviation::Altered],
            ),
            (|o| o.valid_mark = Some(0), &[Deviation::Setting(0)]),
        ];
        for (number, (meddle, expected)) in cases.into_iter().enumerate() {
            let mut observed = observed();
            meddle(&mut observed);
            let found = deviations(&observed);
            let found: Vec<_> = found.into_iter().map(|(_, deviation)| deviation).collect();
            assert_eq!(found, expected, "case {number}");
        }
    }

    fn retain(observed: &mut Observed, keep: fn(&Route) -> bool) {
        observed
            .routes
            .values_mut()
            .for_each(|all| all.retain(keep));
    }

    #[test]
    fn the_mark_of_the_file_is_the_one_that_its_rules_know() {
        let rule = rule();
        let changes = [Change::Configure, Change::Rule(rule)];
        let found = |mark| {
            let observed = Observed {
                mark: Some(mark),
                ..observed()
            };
            observed.deviations(&changes.iter().collect::<Vec<_>>())
        };
        assert_eq!(found(MARK), [None, None]);
        assert_eq!(found(0), [Some(Deviation::Mark(0)), None]);
    }

    #[test]
    fn a_route_counts_while_it_is_the_first() {
        let mut observed = observed();
        let place = (TABLE, net("0.0.0.0/0"));
        let routes = observed.routes.get_mut(&place).expect("routes");
        let other = |metric| Route {
            metric,
            ..Route::by_interface(net("0.0.0.0/0"), 2, TABLE)
        };
        routes[0].metric = 10;
        routes.push(other(11));
        assert_eq!(deviations(&observed), []);
        observed
            .routes
            .get_mut(&place)
            .expect("routes")
            .push(other(9));
        let found = deviations(&observed);
        assert!(
            matches!(
                found.as_slice(),
                [(Change::Route { .. }, Deviation::Overtaken(by))]
                    if by.to_string() == "0.0.0.0/0 dev eth0"
            ),
            "{found:?}"
        );
    }

    #[test]
    fn an_interface_that_is_elsewhere_says_nothing_of_its_own_settings() {
        let mut observed = observed();
        observed.link = None;
        observed.addresses.clear();
        assert_eq!(deviations(&observed), []);
        observed.rules.clear();
        assert_eq!(deviations(&observed).len(), 1);
    }
}
