//! Tests of the plan for a file and a system, as equivalent commands.

use taupe_config::file::File;
use taupe_os_linux::netlink::{Route, RouteKind, Rule};
use taupe_packet::ip::Family;

use super::{PlanError, Snapshot, plan};
use crate::change::Change;
use crate::fixtures::{file, host, net, route, taupe_file};
use crate::{Compatibility, Options, Remedy};

mod full_tunnels;

const INTERFACE: &str = "wg0";
const OVERRIDE: Options = Options {
    override_routes: true,
    firewall: true,
    chosen: None,
};

struct Outcome {
    changes: Vec<Change>,
    commands: Vec<String>,
    notes: Vec<String>,
    /// The remedy of each note.
    remedies: Vec<Option<Remedy>>,
}

impl Outcome {
    /// Returns the commands that concern routing.
    fn routing(&self) -> Vec<&str> {
        let commands = self.commands.iter().map(String::as_str);
        let of = |command: &&str| {
            !["ip link", "wg setconf"]
                .iter()
                .any(|w| command.starts_with(w))
                && !command.contains(" address ")
        };
        commands.filter(of).collect()
    }

    /// Returns the priorities of the rules, in the order of their addition.
    fn priorities(&self) -> Vec<u32> {
        let rules = self.changes.iter().filter_map(|change| match change {
            Change::Rule(rule) => Some(rule.priority),
            _ => None,
        });
        rules.collect()
    }
}

fn outcome(
    file: &File,
    host: &Snapshot,
    compatibility: Compatibility,
    options: Options,
) -> Outcome {
    let plan = plan(INTERFACE, file, host, compatibility, options).expect("a plan");
    let commands = plan.changes.iter();
    let commands = commands.map(|change| change.command(INTERFACE).to_string());
    Outcome {
        commands: commands.collect(),
        changes: plan.changes,
        remedies: plan.notes.iter().map(|note| note.remedy).collect(),
        notes: plan.notes.into_iter().map(|note| note.sentence).collect(),
    }
}

fn taupe(file: &File, host: &Snapshot) -> Outcome {
    outcome(file, host, Compatibility::Taupe, Options::default())
}

fn wg_quick(file: &File, host: &Snapshot) -> Outcome {
    outcome(file, host, Compatibility::WgQuick, Options::default())
}

fn overriding(file: &File, host: &Snapshot) -> Outcome {
    outcome(file, host, Compatibility::Taupe, OVERRIDE)
}

#[test]
fn a_plain_tunnel_is_the_same_for_both() {
    let file = file(
        "Address = 10.9.0.2/24, 10.8.0.1/32\nAddress = fd09::2/64\nPostUp = echo %i",
        "AllowedIPs = 10.9.0.0/24, 10.9.0.128/25, 10.8.0.1/32, 172.20.0.0/16, fd09::/80, \
         fe80::/64, fd10::/64",
    );
    let expected = [
        "ip link add wg0 type wireguard",
        "wg setconf wg0 /dev/fd/63",
        "ip -4 address add 10.9.0.2/24 dev wg0",
        "ip -4 address add 10.8.0.1/32 dev wg0",
        "ip -6 address add fd09::2/64 dev wg0",
        "ip link set mtu 1420 up dev wg0",
        // Networks implied by the addresses are omitted, but an IPv4 host address implies no route.
        "ip -6 route add fd10::/64 dev wg0",
        "ip -4 route add 10.8.0.1/32 dev wg0",
        "ip -4 route add 172.20.0.0/16 dev wg0",
        "echo wg0",
    ];
    for made in [taupe(&file, &host()), wg_quick(&file, &host())] {
        assert_eq!(made.commands, expected);
        assert_eq!(made.notes, [""; 0]);
    }
}

#[test]
fn a_table_that_anybody_uses_is_not_taken() {
    let file = file("", "AllowedIPs = 0.0.0.0/0");
    let mut host = host();
    host.routes.push(Route {
        table: 51820,
        ..route("10.0.0.0/8", 2)
    });
    assert!(
        wg_quick(&file, &host)
            .routing()
            .contains(&"wg set wg0 fwmark 51821")
    );
    host.rules
        .push(Rule::not_marked(Family::V6, 32765, 51821, 51821));
    let made = taupe(&file, &host);
    assert!(made.routing().contains(&"wg set wg0 fwmark 51822"));
    // Before the existing rules.
    assert_eq!(made.priorities(), [32764, 32763, 32765, 32764]);
    host.mark = Some(51820);
    assert!(
        taupe(&file, &host)
            .routing()
            .contains(&"wg set wg0 fwmark 51820")
    );
}

#[test]
fn a_table_of_the_file_is_filled_as_it_is() {
    let peer = "AllowedIPs = 0.0.0.0/0, 192.168.1.0/24, 203.0.113.0/24";
    let expected = [
        "ip -4 route add 203.0.113.0/24 dev wg0 table 7",
        "ip -4 route add 192.168.1.0/24 dev wg0 table 7",
        "ip -4 route add 0.0.0.0/0 dev wg0 table 7",
    ];
    let mut host = host();
    host.table_names.insert("seven".to_owned(), 7);
    for table in ["Table = 7", "Table = seven"] {
        let file = file(table, peer);
        assert_eq!(taupe(&file, &host).routing(), expected);
        assert_eq!(wg_quick(&file, &host).routing(), expected);
    }
    assert_eq!(taupe(&file("Table = off", peer), &host).routing(), [""; 0]);
    let unknown = file("Table = eight", peer);
    let options = Options::default();
    assert_eq!(
        plan(INTERFACE, &unknown, &host, Compatibility::Taupe, options),
        Err(PlanError::UnknownTable("eight".to_owned()))
    );
}

#[test]
fn the_local_network_stays_local() {
    let equal = file("", "AllowedIPs = 192.168.1.0/24, 10.0.0.0/8");
    let made = taupe(&equal, &host());
    assert_eq!(made.routing(), ["ip -4 route add 10.0.0.0/8 dev wg0"]);
    assert_eq!(
        made.notes,
        [
            "AllowedIPs 192.168.1.0/24 is not tunnelled: it is the local network of 192.168.1.7 \
             on eth0"
        ]
    );
    assert_eq!(made.remedies, [Some(Remedy::Override)]);
    assert_eq!(
        overriding(&equal, &host()).routing(),
        [
            "ip -4 route add 192.168.1.128/25 dev wg0",
            "ip -4 route add 192.168.1.0/25 dev wg0",
            "ip -4 route add 10.0.0.0/8 dev wg0",
        ]
    );
    assert!(
        wg_quick(&equal, &host())
            .routing()
            .contains(&"ip -4 route add 192.168.1.0/24 dev wg0")
    );

    let containing = file("", "AllowedIPs = 192.168.0.0/16");
    let made = taupe(&containing, &host());
    assert_eq!(made.routing(), ["ip -4 route add 192.168.0.0/16 dev wg0"]);
    assert_eq!(
        made.notes,
        [
            "the local network 192.168.1.0/24 on eth0 is not tunnelled, though AllowedIPs \
             192.168.0.0/16 contains it"
        ]
    );
    assert_eq!(made.remedies, [Some(Remedy::Override)]);
    assert_eq!(
        overriding(&containing, &host()).routing(),
        [
            "ip -4 route add 192.168.1.128/25 dev wg0",
            "ip -4 route add 192.168.1.0/25 dev wg0",
            "ip -4 route add 192.168.0.0/16 dev wg0",
        ]
    );

    let contained = file("", "AllowedIPs = 192.168.1.64/26");
    let made = taupe(&contained, &host());
    assert_eq!(made.routing(), ["ip -4 route add 192.168.1.64/26 dev wg0"]);
    assert_eq!(made.notes, [""; 0]);
}

#[test]
fn a_route_that_exists_is_kept_whatever_its_metric() {
    let file = file("", "AllowedIPs = 10.1.0.0/16, 172.20.0.1/32, 172.21.0.0/16");
    let mut host = host();
    host.routes.push(Route {
        metric: 100,
        gateway: "192.168.1.1".parse().ok(),
        ..route("10.1.0.0/16", 2)
    });
    host.routes.push(Route {
        interface: None,
        kind: RouteKind::Unreachable,
        ..route("172.20.0.1/32", 2)
    });
    // A route in another table does not matter.
    host.routes.push(Route {
        table: 7,
        ..route("172.21.0.0/16", 2)
    });
    let made = taupe(&file, &host);
    assert_eq!(made.routing(), ["ip -4 route add 172.21.0.0/16 dev wg0"]);
    assert_eq!(
        made.notes,
        [
            "AllowedIPs 172.20.0.1/32 is not tunnelled: there is a route already, `unreachable \
             172.20.0.1/32`",
            "AllowedIPs 10.1.0.0/16 is not tunnelled: there is a route already, `10.1.0.0/16 via \
             192.168.1.1 dev eth0 metric 100`",
        ]
    );
    assert_eq!(made.remedies, [Some(Remedy::Override); 2]);
    let made = overriding(&file, &host);
    assert_eq!(
        made.routing(),
        [
            "ip -4 route add 10.1.128.0/17 dev wg0",
            "ip -4 route add 10.1.0.0/17 dev wg0",
            "ip -4 route add 172.21.0.0/16 dev wg0",
        ]
    );
    assert!(
        made.notes[0].contains("no route is more specific"),
        "{:?}",
        made.notes
    );
    assert_eq!(wg_quick(&file, &host).routing().len(), 3);
}

#[test]
fn an_endpoint_inside_the_tunnel_is_reached_beside_it() {
    let file = file("", "AllowedIPs = 203.0.113.0/24, 10.0.0.0/8");
    let made = taupe(&file, &host());
    assert_eq!(
        made.routing(),
        [
            "ip -4 route add 10.0.0.0/8 dev wg0",
            "wg set wg0 fwmark 51820",
            "ip -4 route add 203.0.113.0/24 dev wg0 table 51820",
            "ip -4 rule add not fwmark 51820 table 51820",
            // The tunnel's route has precedence over a shorter route of the main table.
            "ip -4 rule add table main suppress_prefixlength 23",
            "sysctl -q net.ipv4.conf.all.src_valid_mark=1",
            "nft -f /dev/fd/63 (table ip wg-quick-wg0)",
        ]
    );
    assert!(made.notes[0].starts_with("the endpoint 203.0.113.9 lies in 203.0.113.0/24"));

    // With a more specific route, such as a local network, the endpoint is outside.
    let mut near = host();
    near.routes.push(route("203.0.113.0/28", 2));
    assert_eq!(
        taupe(&file, &near).routing(),
        [
            "ip -4 route add 203.0.113.0/24 dev wg0",
            "ip -4 route add 10.0.0.0/8 dev wg0",
        ]
    );
    assert!(
        !wg_quick(&file, &host())
            .routing()
            .contains(&"wg set wg0 fwmark 51820")
    );
}

#[test]
fn two_halves_are_a_full_tunnel() {
    let file = file(
        "",
        "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1, ::/1, 8000::/1, 10.1.0.0/16",
    );
    let made = taupe(&file, &host());
    assert_eq!(
        made.routing(),
        [
            // Private networks, to which no peer roams and for which others may have longer routes.
            "ip -4 route add 10.1.0.0/16 dev wg0",
            "ip -6 route add 8000::/1 dev wg0",
            "wg set wg0 fwmark 51820",
            "ip -6 route add ::/1 dev wg0 table 51820",
            "ip -6 route add unreachable ::/1 metric 4294967295 table 51820",
            "ip -6 route add unreachable 8000::/1 metric 4294967295 table 51820",
            "ip -6 rule add not fwmark 51820 table 51820",
            "ip -6 rule add table main suppress_prefixlength 0",
            "nft -f /dev/fd/63 (table ip6 wg-quick-wg0)",
            "ip -4 route add 128.0.0.0/1 dev wg0 table 51820",
            "ip -4 route add 0.0.0.0/1 dev wg0 table 51820",
            "ip -4 route add unreachable 10.1.0.0/16 metric 4294967295 table 51820",
            "ip -4 route add unreachable 128.0.0.0/1 metric 4294967295 table 51820",
            "ip -4 route add unreachable 0.0.0.0/1 metric 4294967295 table 51820",
            "ip -4 rule add not fwmark 51820 table 51820",
            "ip -4 rule add table main suppress_prefixlength 0",
            "sysctl -q net.ipv4.conf.all.src_valid_mark=1",
            "nft -f /dev/fd/63 (table ip wg-quick-wg0)",
        ]
    );
    assert_eq!(made.notes, [""; 0]);
    assert_eq!(wg_quick(&file, &host()).routing().len(), 5);
}

#[test]
fn what_is_disallowed_is_neither_tunnelled_nor_refused() {
    let file = file(
        "",
        "AllowedIPs = 0.0.0.0/0\nDisallowedIPs = 198.51.100.0/24, 10.0.0.0/8",
    );
    let made = taupe(&file, &host());
    let holds = |change: &Change, address: &str| match change {
        Change::Route { destination, .. } | Change::Unreachable { destination, .. } => {
            destination.contains(&net(address))
        }
        _ => false,
    };
    for outside in ["198.51.100.1/32", "10.0.0.1/32"] {
        assert!(!made.changes.iter().any(|change| holds(change, outside)));
    }
    for inside in [
        "198.51.101.1/32",
        "9.255.255.255/32",
        "203.0.113.9/32",
        "172.20.0.1/32",
    ] {
        let holders = made.changes.iter().filter(|change| holds(change, inside));
        let holders: Vec<_> = holders.collect();
        let routed = |change: &&&Change| matches!(change, Change::Route { .. });
        assert_eq!(holders.len(), 2, "{inside}: {holders:?}");
        assert_eq!(holders.iter().filter(routed).count(), 1);
    }
    let routing = made.routing();
    assert!(routing.contains(&"ip -4 rule add table main suppress_prefixlength 0"));
}

#[test]
fn marked_packets_have_a_table_that_knows_every_destination() {
    let chosen = Options {
        chosen: Some(0x100_0000),
        ..Options::default()
    };
    let lines = "AllowedIPs = 0.0.0.0/0\nDisallowedIPs = 192.168.1.0/24";
    let file = taupe_file("Address = 10.9.0.2/24", lines);
    let made = outcome(&file, &host(), Compatibility::Taupe, chosen);
    let (last, past) = (
        "metric 4294967295 table 51820",
        "metric 4294967294 table 51820",
    );
    let expected = [
        format!("ip -4 route add throw 169.254.0.0/16 {past}"),
        format!("ip -6 route add throw fe80::/10 {past}"),
        format!("ip -4 route add throw 192.168.1.0/24 {past}"),
        format!("ip -4 route add prohibit 224.0.0.0/4 {last}"),
        format!("ip -4 route add prohibit 255.255.255.255/32 {last}"),
        format!("ip -6 route add prohibit ff00::/8 {last}"),
        "ip -4 route add 0.0.0.0/0 dev wg0 table 51820".into(),
        format!("ip -4 route add prohibit 0.0.0.0/0 {last}"),
        // The tunnel carries all of the other family.
        format!("ip -6 route add prohibit ::/0 {last}"),
        "ip -4 rule add from 10.9.0.2/32 table 51820".into(),
        "ip -4 rule add fwmark 0x1000000/0x1000000 table 51820".into(),
        "ip -6 rule add fwmark 0x1000000/0x1000000 table 51820".into(),
    ];
    assert_eq!(made.routing(), expected);
    assert_eq!(made.priorities(), [32765, 32764, 32765]);

    // Without a kill switch no route is left when the device is gone.
    let file = taupe_file("Address = 10.9.0.2/24\nKillSwitch = off", lines);
    let open = outcome(&file, &host(), Compatibility::Taupe, chosen);
    let default = |command: &&&str| command.contains("0.0.0.0/0");
    let routing = open.routing();
    let defaults: Vec<_> = routing.iter().filter(default).collect();
    assert_eq!(defaults, [&expected[6]]);

    // A family that the interface cannot have is blocked. A family that the kernel does not have
    // needs no routes.
    let mut old = host();
    old.ipv6_on_interfaces = false;
    let file = taupe_file("Address = 10.9.0.2/24, fd09::2/64", "AllowedIPs = ::/0");
    let made = outcome(&file, &old, Compatibility::Taupe, chosen);
    let routing = made.routing();
    let everything: Vec<_> = routing.iter().filter(|c| c.contains(" ::/0")).collect();
    assert_eq!(everything, [&expected[8]]);
    old.ipv6 = false;
    let made = outcome(&file, &old, Compatibility::Taupe, chosen);
    assert!(!made.routing().iter().any(|command| command.contains("-6")));
}

#[test]
fn the_mtu_is_that_of_the_narrowest_path() {
    let up = |file: &File, host: &Snapshot| {
        let made = taupe(file, host);
        made.changes.into_iter().find_map(|change| match change {
            Change::Up { mtu } => Some(mtu),
            _ => None,
        })
    };
    let automatic = file("", "AllowedIPs = 10.0.0.0/8");
    let mut host = host();
    host.path_mtus = vec![9000, 1400, 1500];
    assert_eq!(up(&automatic, &host), Some(1320));
    assert_eq!(
        up(&file("MTU = 1280", "AllowedIPs = 10.0.0.0/8"), &host),
        Some(1280)
    );
    host.path_mtus.clear();
    host.links[1].mtu = 1492;
    assert_eq!(up(&automatic, &host), Some(1412));
    host.routes[0].mtu = Some(1300);
    assert_eq!(up(&automatic, &host), Some(1220));
    host.routes.clear();
    assert_eq!(up(&automatic, &host), Some(1420));
}

#[test]
fn no_mtu_takes_ipv6_from_the_interface() {
    let mtu = |file: &File, path: u32, compatibility| {
        let narrow = Snapshot {
            path_mtus: vec![path],
            ..host()
        };
        let made = outcome(file, &narrow, compatibility, Options::default());
        let mtu = made.changes.iter().find_map(|change| match change {
            Change::Up { mtu } => Some(*mtu),
            _ => None,
        });
        (mtu.expect("an MTU"), made.notes.len())
    };
    let v4 = file("Address = 10.9.0.2/24", "AllowedIPs = 10.0.0.0/8");
    assert_eq!(mtu(&v4, 1340, Compatibility::Taupe), (1260, 0));
    let by_address = file("Address = fd09::2/64", "AllowedIPs = fd09::/64");
    let by_network = file("Address = 10.9.0.2/24", "AllowedIPs = fd10::/16");
    for file in [&by_address, &by_network] {
        assert_eq!(mtu(file, 1361, Compatibility::Taupe), (1281, 0));
        assert_eq!(mtu(file, 1360, Compatibility::Taupe), (1280, 0));
        assert_eq!(mtu(file, 1340, Compatibility::Taupe), (1280, 1));
        assert_eq!(mtu(file, 576, Compatibility::Taupe), (1280, 1));
        assert_eq!(mtu(file, 1340, Compatibility::WgQuick), (1260, 0));
    }
}

#[test]
fn very_many_networks_are_planned_at_once() {
    let networks: Vec<String> = (0..130_000_u32)
        .map(|index| {
            format!(
                "AllowedIPs = {}/32",
                std::net::Ipv4Addr::from(0x2000_0000 + 2 * index)
            )
        })
        .collect();
    let file = file("", &networks.join("\n"));
    let mut host = host();
    host.endpoints = (0..1000_u32)
        .map(|index| (std::net::Ipv4Addr::from(0x2000_0000 + 4 * index), 1).into())
        .collect();
    let made = taupe(&file, &host);
    let routes = made
        .changes
        .iter()
        .filter(|c| matches!(c, Change::Route { .. }));
    assert_eq!(routes.count(), 130_000);
}

#[test]
fn endpoints_without_a_route_are_told() {
    let file = file("Address = 10.9.0.2/24", "AllowedIPs = 10.0.0.0/8");
    let cut_off = |addresses: &[&str]| Snapshot {
        unreachable: addresses.iter().map(|a| a.parse().expect(a)).collect(),
        ..host()
    };
    let told = |addresses: &[&str]| taupe(&file, &cut_off(addresses)).notes;
    assert_eq!(told(&[]), [""; 0]);
    let (one, two) = (&told(&["2001:db8::1"])[0], &told(&["192.0.2.1", "::2"])[0]);
    assert!(one.starts_with("there is no route to the endpoint 2001:db8::1:"));
    assert!(two.contains("192.0.2.1 and 1 others"), "{two}");
    let quick = outcome(
        &file,
        &cut_off(&["::2"]),
        Compatibility::WgQuick,
        Options::default(),
    );
    assert_eq!(quick.notes, [""; 0]);
}

#[test]
fn a_mark_of_the_kernels_tables_has_another_table() {
    for (mark, table) in [(252, 252), (253, 51820), (254, 51820), (255, 51820)] {
        let file = file(&format!("FwMark = {mark}"), "AllowedIPs = 0.0.0.0/0");
        let routing = taupe(&file, &host());
        let expected = [
            format!("ip -4 route add 0.0.0.0/0 dev wg0 table {table}"),
            format!("ip -4 rule add not fwmark {mark} table {table}"),
        ];
        for command in &expected {
            assert!(routing.commands.contains(command), "{:?}", routing.commands);
        }
    }
}
