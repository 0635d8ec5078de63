//! Routes to the name servers of the file.
//!
//! Queries to a name server that a peer's AllowedIPs contain use the tunnel. A route to a network
//! that contains the server is not sufficient: this machine may be in a network with the same
//! addresses, now or after it has moved, and the kernel prefers the more specific route. Example:
//! the file of a home router at 192.168.178.1, used at home or in a network with the same
//! numbering. Therefore each server has its own route.
//!
//! In a full tunnel that route is not in the main table, for two reasons. It would end with the
//! device, and then the main table would route queries into the local network. It would also route
//! the device's own queries for names of endpoints into the tunnel, if the system's name server has
//! the same address as one of the file's. Instead, the route is in a table before the main one.
//! Packets with the tunnel's mark do not use this table, and it rejects queries once the device is
//! gone.

use std::net::IpAddr;

use ipnet::IpNet;
use taupe_packet::ip::Family;
use taupe_uapi::network_set::{LINK_LOCAL, NetworkSet, host};

use super::routing::{Policy, Routing};
use taupe_config::plan_note::PlanNote;

impl Routing<'_> {
    /// Adds a route for each name server inside the tunnel. Reports servers outside the tunnel
    /// although it carries all of their family.
    pub(super) fn add_name_server_routes(
        &self,
        main: &mut Vec<IpNet>,
        policies: &mut [(Family, Policy); 2],
        is_full: &dyn Fn(&IpNet) -> bool,
        notes: &mut Vec<PlanNote>,
    ) {
        let tunnelled: NetworkSet = self.wanted().into_iter().collect();
        let existing = self.existing();
        let is_endpoint = |server: IpAddr| {
            let mut endpoints = self.snapshot.endpoints.iter();
            endpoints.any(|endpoint| endpoint.ip() == server)
        };
        for server in self.servers() {
            let alone = host(server);
            if tunnelled.holding(&alone).is_none() {
                notes.extend(is_full(&alone).then(|| {
                    let sentence = format!(
                        "the name server {server} is not in AllowedIPs: names are asked outside of \
                         the tunnel"
                    );
                    PlanNote::from(sentence)
                }));
                continue;
            }
            let family = Family::of(server);
            let policy = policies.iter_mut().find(|(of, _)| *of == family);
            let policy = policy.map(|(_, policy)| policy);
            let route = existing.get(&alone);
            match policy.filter(|policy| policy.full || is_endpoint(server)) {
                Some(policy) => {
                    main.retain(|net| *net != alone);
                    policy.hosts.push(alone);
                }
                None => {
                    if main.contains(&alone) {
                        continue;
                    }
                    if let Some(route) = route {
                        let sentence = format!(
                            "queries to the name server {server} bypass the tunnel: there is a \
                             route to it already, `{}`; remove that route, or write another \
                             server in DNS",
                            self.describe(route)
                        );
                        notes.push(sentence.into());
                        continue;
                    }
                    main.push(alone);
                }
            }
            let local = self.local_networks();
            let near = local.iter().find(|near| near.network.contains(&server));
            let reason = match (near, route) {
                (Some(near), _) => {
                    let name = self.name(Some(near.interface));
                    let network = near.network.trunc();
                    format!("it is in the local network {network} on {name}")
                }
                (None, Some(route)) => {
                    format!("there is another route to it, `{}`", self.describe(route))
                }
                (None, None) => continue,
            };
            let sentence = format!(
                "the name server {server} is asked through the tunnel, though {reason}; to have \
                 queries to it bypass the tunnel, write DisallowedIPs = {server} under [Peer]"
            );
            notes.push(sentence.into());
        }
    }

    /// Returns the file's name servers on other hosts, without duplicates.
    fn servers(&self) -> Vec<IpAddr> {
        let own = |server: IpAddr| {
            let tunnels = self.addresses.iter().map(IpNet::addr);
            let others = self.snapshot.addresses.iter();
            let mut all = tunnels.chain(others.map(|address| address.network.addr()));
            server.is_loopback() || all.any(|own| own == server)
        };
        let mut servers = Vec::new();
        for &server in &self.file.interface.dns {
            let is_usable = self.has(Family::of(server)) && !LINK_LOCAL.contains(&server);
            if is_usable && !own(server) && !servers.contains(&server) {
                servers.push(server);
            }
        }
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, plan};
    use crate::fixtures::{file, host};
    use crate::{Compatibility, Options, Remedy};

    fn made(interface: &str, peer: &str, compatibility: Compatibility, options: Options) -> Plan {
        let file = file(interface, peer);
        plan("wg0", &file, &host(), compatibility, options).expect("a plan")
    }

    fn taupe(interface: &str, peer: &str) -> Plan {
        made(interface, peer, Compatibility::Taupe, Options::default())
    }

    fn commands(plan: &Plan, word: &str) -> Vec<String> {
        let commands = plan.changes.iter();
        let commands = commands.map(|change| change.command("wg0").to_string());
        commands.filter(|command| command.contains(word)).collect()
    }

    fn sentences(plan: &Plan) -> impl Iterator<Item = &str> {
        plan.notes.iter().map(|note| note.sentence.as_str())
    }

    const HOME: &str = "Address = 192.168.1.209/24\nDNS = 192.168.1.1";
    const HOME_AND_ALL: &str = "AllowedIPs = 192.168.1.0/24, 0.0.0.0/0";

    const TABLE: u32 = 1_413_567_824;

    /// Returns the commands for the routes before the main table, and the rule for that table.
    fn before_main(server: &str) -> [String; 3] {
        [
            format!("ip -4 route add {server}/32 dev wg0 table {TABLE}"),
            format!("ip -4 route add unreachable {server}/32 metric 4294967295 table {TABLE}"),
            format!("ip -4 rule add not fwmark 51820 table {TABLE}"),
        ]
    }

    #[test]
    fn a_name_server_with_the_address_of_the_local_router_is_in_the_tunnel() {
        let plan = taupe(HOME, HOME_AND_ALL);
        let server = before_main("192.168.1.1");
        assert_eq!(commands(&plan, &format!(" table {TABLE}")), server);
        assert_eq!(commands(&plan, " route add 192"), server[..1]);
        // This table is looked up before the main table.
        let rules = commands(&plan, " rule add ");
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        assert_eq!(
            rules[rules.len() - 3..],
            [
                "ip -4 rule add not fwmark 51820 table 51820",
                "ip -4 rule add table main suppress_prefixlength 0",
                &server[2]
            ]
        );
        // The local network's route stays, whatever its metric.
        let address = ["ip -4 address add 192.168.1.209/32 dev wg0"];
        assert_eq!(commands(&plan, "address add"), address);
        let starts = [
            "AllowedIPs 192.168.1.0/24 is not tunnelled: it is the local network of 192.168.1.7 on",
            "the name server 192.168.1.1 is asked through the tunnel, though it is in the local",
        ];
        for start in starts {
            let is_said = sentences(&plan).any(|note| note.starts_with(start));
            assert!(is_said, "{start}: {:?}", plan.notes);
        }

        let overriding = Options {
            override_routes: true,
            ..Options::default()
        };
        let plan = made(HOME, HOME_AND_ALL, Compatibility::Taupe, overriding);
        assert_eq!(
            commands(&plan, " route add 192"),
            [
                "ip -4 route add 192.168.1.128/25 dev wg0",
                "ip -4 route add 192.168.1.0/25 dev wg0",
                &server[0]
            ]
        );
        let plan = made(
            HOME,
            HOME_AND_ALL,
            Compatibility::WgQuick,
            Options::default(),
        );
        assert_eq!(commands(&plan, " route add 192"), [""; 0]);
        assert_eq!(plan.notes, []);
    }

    #[test]
    fn in_a_full_tunnel_no_route_of_the_main_table_leads_to_a_name_server() {
        let own = "Address = 10.9.0.2/24\nDNS = 10.8.0.1";
        let all = "AllowedIPs = 0.0.0.0/0";
        let plan = taupe(own, all);
        assert_eq!(
            commands(&plan, &format!(" table {TABLE}")),
            before_main("10.8.0.1")
        );
        assert_eq!(commands(&plan, " route add 10.8.0.1/32 dev wg0"), {
            let [server, ..] = before_main("10.8.0.1");
            [server]
        });
        assert!(
            sentences(&plan).all(|note| !note.contains("name server")),
            "{:?}",
            plan.notes
        );
        // Nor a server that is in AllowedIPs itself, nor one with a foreign route.
        let mut host = host();
        host.routes.push(crate::fixtures::route("10.8.0.1/32", 2));
        let all = "AllowedIPs = 0.0.0.0/0, 10.8.0.1/32";
        let options = Options::default();
        let plan = super::super::plan("wg0", &file(own, all), &host, Compatibility::Taupe, options)
            .expect("a plan");
        assert_eq!(
            commands(&plan, &format!(" table {TABLE}")),
            before_main("10.8.0.1")
        );
        assert_eq!(commands(&plan, "10.8.0.1/32 dev wg0").len(), 1);
        let note = "the name server 10.8.0.1 is asked through the tunnel, though there is another \
                    route to it, `10.8.0.1/32 dev eth0`";
        let is_said = sentences(&plan).any(|found| found.starts_with(note));
        assert!(is_said, "{:?}", plan.notes);
    }

    #[test]
    fn a_name_server_that_is_an_endpoint_is_asked_through_the_tunnel() {
        let mut host = host();
        host.endpoints = vec!["192.168.1.1:51820".parse().expect("an endpoint")];
        for (peer, routes) in [(HOME_AND_ALL, 2), ("AllowedIPs = 192.168.1.0/24", 1)] {
            let options = Options::default();
            let plan = super::super::plan(
                "wg0",
                &file(HOME, peer),
                &host,
                Compatibility::Taupe,
                options,
            )
            .expect("a plan");
            let found = commands(&plan, "192.168.1.1/32");
            assert_eq!(found.len(), routes, "{found:?}");
            assert!(found[0].starts_with("ip -4 route add 192.168.1.1/32 dev wg0 table"));
            let [.., last] = &commands(&plan, " rule add ")[..] else {
                panic!("no rule");
            };
            assert!(
                last.starts_with("ip -4 rule add not fwmark 51820"),
                "{last}"
            );
            let start = "the name server 192.168.1.1 is asked through the tunnel, though it is in";
            let is_said = sentences(&plan).any(|note| note.starts_with(start));
            assert!(is_said, "{peer}: {:?}", plan.notes);
        }
    }

    #[test]
    fn a_part_of_a_network_that_others_are_in_has_its_own_route() {
        let plan = taupe("Address = 192.168.1.209/24", "AllowedIPs = 192.168.1.77/32");
        let route = ["ip -4 route add 192.168.1.77/32 dev wg0"];
        assert_eq!(commands(&plan, " route add"), route);
        let plan = taupe("Address = 192.168.9.9/16", "AllowedIPs = 192.168.0.0/16");
        assert_eq!(commands(&plan, " route add"), [""; 0]);
        let start = "the local network 192.168.1.0/24 on eth0 is not tunnelled, though AllowedIPs";
        let [note, ..] = plan.notes.as_slice() else {
            panic!("no note");
        };
        assert!(note.sentence.starts_with(start), "{note:?}");
        assert_eq!(note.remedy, Some(Remedy::Override));
    }

    #[test]
    fn only_name_servers_that_a_peer_has_are_led_to() {
        let own = "Address = 10.9.0.2/24\nDNS = ";
        let routes = |servers: &str, peer: &str| {
            let plan = taupe(&format!("{own}{servers}"), peer);
            (commands(&plan, "/32 dev wg0"), plan.notes)
        };
        let (made, notes) = routes("10.1.1.1, 10.1.1.1", "AllowedIPs = 10.0.0.0/8");
        assert_eq!(made, ["ip -4 route add 10.1.1.1/32 dev wg0"]);
        assert_eq!(notes, []);
        for (servers, peer) in [
            ("10.9.0.1", "AllowedIPs = 10.8.0.0/16"),
            ("192.168.1.7, 127.0.0.1, 10.9.0.2", "AllowedIPs = 0.0.0.0/0"),
        ] {
            assert_eq!(routes(servers, peer).0, [""; 0], "{servers}");
        }
        let all_but = "AllowedIPs = 0.0.0.0/0\nDisallowedIPs = 192.168.1.1";
        let plan = super::super::plan(
            "wg0",
            &crate::fixtures::taupe_file(HOME, all_but),
            &host(),
            Compatibility::Taupe,
            Options::default(),
        );
        let notes = plan.expect("a plan").notes;
        let start = "the name server 192.168.1.1 is not in AllowedIPs";
        assert!(
            notes.iter().any(|note| note.sentence.starts_with(start)),
            "{notes:?}"
        );
    }
}
