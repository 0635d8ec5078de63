//! Plans for the machines of the fixtures.

use taupe_config::file::{Compatibility, File};
use taupe_config::plan_note::{PlanNote, Remedy};

use super::{Options, Plan, PlanError, Step, plan};
use crate::fixtures::{
    address, by, file, foreign, freebsd_home, freebsd_server, mac_home, machines,
};
use crate::snapshot::Snapshot;

fn planned(snapshot: &Snapshot, file: &File) -> Plan {
    let options = Options::default();
    plan("wg0", file, snapshot, Compatibility::Taupe, options).expect("a plan")
}

fn overriding(snapshot: &Snapshot, file: &File) -> Plan {
    let options = Options {
        override_routes: true,
    };
    plan("wg0", file, snapshot, Compatibility::Taupe, options).expect("a plan")
}

/// Returns the commands that add the routes, without their common beginning.
fn routes(plan: &Plan) -> Vec<String> {
    let commands = plan
        .routes()
        .map(|route| route.command("add", "wg0").to_string());
    let words = |command: String| command.trim_start_matches("route -q -n add ").to_owned();
    commands.map(words).collect()
}

fn sentences(plan: &Plan) -> Vec<&str> {
    plan.notes.iter().map(|note| &*note.sentence).collect()
}

const ADDRESS: &str = "Address = 10.0.0.2/24";

/// A published report of 2022: the peer's networks include that of the machine's own DHCP. wg-quick
/// fails at the second route (`File exists`) and destroys the interface.
#[test]
fn the_home_network_stays_and_one_line_says_so() {
    let file = file(ADDRESS, "AllowedIPs = 10.0.0.0/24, 192.168.1.0/24");
    let plan = planned(&freebsd_home(), &file);
    assert_eq!(routes(&plan), [""; 0]);
    assert_eq!(
        plan.notes,
        [PlanNote {
            sentence: "AllowedIPs 192.168.1.0/24 is not tunnelled: it is the local network of \
                       192.168.1.7 on em0"
                .to_owned(),
            remedy: Some(Remedy::Override),
        }]
    );
    assert!(matches!(
        plan.steps.as_slice(),
        [
            Step::Device,
            Step::Configure { fwmark: None },
            Step::Address { .. },
            Step::Up { mtu: 1420 }
        ]
    ));
}

#[test]
fn with_the_option_halves_tunnel_the_home_network_and_its_router_stays_reachable() {
    let file = file(ADDRESS, "AllowedIPs = 10.0.0.0/24, 192.168.1.0/24");
    let plan = overriding(&freebsd_home(), &file);
    assert_eq!(
        routes(&plan),
        [
            "-inet 192.168.1.1 -interface em0",
            "-inet 192.168.1.0/25 -interface wg0",
            "-inet 192.168.1.128/25 -interface wg0",
        ]
    );
    assert_eq!(
        sentences(&plan),
        [
            "AllowedIPs 192.168.1.0/24 is tunnelled, although it is the local network of \
             192.168.1.7 on em0"
        ]
    );
}

#[test]
fn default_routes_are_halves_and_the_endpoint_has_its_own_route() {
    let both = file(
        "Address = 10.0.0.2/24, fd09::2/64",
        "AllowedIPs = 0.0.0.0/0, ::/0",
    );
    let [home, server, mac] = machines();
    let common = [
        "-inet 0.0.0.0/1 -interface wg0",
        "-inet 128.0.0.0/1 -interface wg0",
        "-inet6 ::/1 -interface wg0",
        "-inet6 8000::/1 -interface wg0",
    ];
    for (snapshot, router, mtu) in [
        (home, "192.168.1.1", 1420),
        (server, "172.31.1.1", 1370),
        (mac, "192.168.1.1", 1420),
    ] {
        let plan = planned(&snapshot, &both);
        let host = format!("-inet 198.51.100.9 -gateway {router}");
        let expected: Vec<&str> = std::iter::once(&*host).chain(common).collect();
        assert_eq!(routes(&plan), expected);
        assert_eq!(sentences(&plan), [""; 0]);
        assert!(plan.steps.contains(&Step::Up { mtu }));
    }
}

#[test]
fn ipv6_is_refused_if_the_file_tunnels_all_of_ipv4_only() {
    for peer in [
        "AllowedIPs = 0.0.0.0/0",
        "AllowedIPs = 0.0.0.0/0, fd09::/64",
        "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1",
    ] {
        let plan = planned(&mac_home(), &file(ADDRESS, peer));
        let routes = routes(&plan);
        let ends_with =
            |routes: &[String], expected: [&str; 2]| routes.ends_with(&expected.map(str::to_owned));
        assert!(
            ends_with(
                &routes,
                ["-inet6 ::/1 ::1 -reject", "-inet6 8000::/1 ::1 -reject"]
            ),
            "{routes:?}"
        );
        assert!(
            sentences(&plan)
                .iter()
                .any(|it| it.contains("IPv6 to anywhere but local networks is refused"))
        );
        let options = Options::default();
        let quick = plan_as_quick(&mac_home(), &file(ADDRESS, peer), options);
        assert!(
            !quick
                .routes()
                .any(|route| route.destination.addr().is_ipv6() && route.hop == crate::Hop::Reject)
        );
    }
    // An endpoint in a refused network keeps its route.
    let mut snapshot = freebsd_home();
    snapshot.endpoints = vec![address("2001:db8:77::1")];
    let plan = planned(&snapshot, &file(ADDRESS, "AllowedIPs = 0.0.0.0/0"));
    assert_eq!(
        routes(&plan).first().map(String::as_str),
        Some("-inet6 2001:db8:77::1 -gateway fe80::ff:fe00:1")
    );
}

fn plan_as_quick(snapshot: &Snapshot, file: &File, options: Options) -> Plan {
    plan("wg0", file, snapshot, Compatibility::WgQuick, options).expect("a plan")
}

#[test]
fn an_endpoint_without_a_route_is_refused_and_reported() {
    let mut snapshot = freebsd_home();
    snapshot
        .routes
        .retain(|it| it.route.destination.prefix_len() != 0);
    let plan = planned(&snapshot, &file(ADDRESS, "AllowedIPs = 0.0.0.0/0, ::/0"));
    assert_eq!(
        routes(&plan).first().map(String::as_str),
        Some("-inet 198.51.100.9 127.0.0.1 -reject")
    );
    assert_eq!(
        sentences(&plan),
        [
            "there is no route to the endpoint 198.51.100.9: nothing gets through to it before \
             there is one"
        ]
    );
}

#[test]
fn an_endpoint_outside_the_tunnel_or_on_the_link_needs_no_route() {
    let mut snapshot = freebsd_home();
    let full = file(ADDRESS, "AllowedIPs = 0.0.0.0/0, ::/0");
    let part = file(ADDRESS, "AllowedIPs = 10.0.0.0/8");
    assert_eq!(
        routes(&planned(&snapshot, &part)),
        ["-inet 10.0.0.0/8 -interface wg0"]
    );
    snapshot.endpoints = vec![address("192.168.1.9")];
    let hosts = |plan: &Plan| routes(plan).iter().any(|it| it.contains("192.168.1.9"));
    assert!(!hosts(&planned(&snapshot, &full)));
    // The tunnel takes the local network.
    let plan = overriding(&snapshot, &full);
    assert_eq!(
        routes(&plan),
        [
            "-inet 192.168.1.1 -interface em0",
            "-inet 192.168.1.9 -interface em0",
            "-inet6 2001:db8:9::/65 -interface wg0",
            "-inet6 2001:db8:9:0:8000::/65 -interface wg0",
            "-inet 192.168.1.0/25 -interface wg0",
            "-inet 192.168.1.128/25 -interface wg0",
            "-inet 0.0.0.0/1 -interface wg0",
            "-inet 128.0.0.0/1 -interface wg0",
            "-inet6 ::/1 -interface wg0",
            "-inet6 8000::/1 -interface wg0",
        ]
    );
}

#[test]
fn networks_implied_by_addresses_are_omitted_as_in_wg_quick() {
    let own = file(
        "Address = 10.0.0.2/24, fd09::2/64",
        "AllowedIPs = 10.0.0.0/24, fd09::/64, 10.0.0.9/32",
    );
    assert_eq!(routes(&planned(&freebsd_home(), &own)), [""; 0]);
    // On macOS an IPv4 address implies no route to its network.
    assert_eq!(
        routes(&planned(&mac_home(), &own)),
        [
            "-inet 10.0.0.9 -interface wg0",
            "-inet 10.0.0.0/24 -interface wg0"
        ]
    );
}

#[test]
fn an_address_in_the_home_network_does_not_take_it() {
    let file = file("Address = 192.168.1.50/24", "AllowedIPs = 10.8.0.0/16");
    for snapshot in [freebsd_home(), mac_home()] {
        let plan = planned(&snapshot, &file);
        let address = plan.steps.iter().find_map(|step| match step {
            Step::Address { network, .. } => Some(network.to_string()),
            _ => None,
        });
        assert_eq!(address.as_deref(), Some("192.168.1.50/32"));
    }
}

#[test]
fn a_router_and_an_endpoint_among_the_allowed_ips_stay_outside() {
    let peer = "AllowedIPs = 192.168.1.1/32, 198.51.100.9/32, 10.0.0.0/8";
    let file = file("Address = 10.9.0.2/32", peer);
    for plan in [
        planned(&freebsd_home(), &file),
        overriding(&freebsd_home(), &file),
    ] {
        assert_eq!(routes(&plan), ["-inet 10.0.0.0/8 -interface wg0"]);
        assert_eq!(
            sentences(&plan),
            [
                "AllowedIPs 192.168.1.1/32 is not tunnelled: it is a router of this network",
                "AllowedIPs 198.51.100.9/32 is not tunnelled: it is an endpoint of the tunnel",
            ]
        );
    }
}

#[test]
fn another_tunnel_with_the_same_halves_is_left_alone() {
    let mut snapshot = freebsd_home();
    snapshot.interfaces.push(taupe_os_bsd::routing::Interface {
        index: 3,
        name: Some("tun1".to_owned()),
        mtu: 1500,
        medium: 0,
        ethernet: None,
        flags: 0x8051,
    });
    let through = taupe_os_bsd::routing::NextHop::Interface(3);
    snapshot.routes.push(foreign("0.0.0.0/1", through, 3));
    let full = file(ADDRESS, "AllowedIPs = 0.0.0.0/0, ::/0");
    let plan = planned(&snapshot, &full);
    assert_eq!(
        sentences(&plan),
        [
            "0.0.0.0/1, half of 0.0.0.0/0, is not tunnelled: there is a route already, `0.0.0.0/1 on tun1`"
        ]
    );
    let plan = overriding(&snapshot, &file(ADDRESS, "AllowedIPs = 0.0.0.0/1"));
    assert!(routes(&plan).contains(&"-inet 64.0.0.0/2 -interface wg0".to_owned()));
}

#[test]
fn foreign_routes_to_public_destinations_are_reported() {
    let mut snapshot = freebsd_home();
    snapshot
        .routes
        .push(foreign("8.8.8.0/24", by("192.168.1.66"), 1));
    snapshot
        .routes
        .push(foreign("10.9.0.0/16", by("192.168.1.66"), 1));
    let plan = planned(&snapshot, &file(ADDRESS, "AllowedIPs = 0.0.0.0/0, ::/0"));
    assert_eq!(
        plan.notes,
        [PlanNote {
            sentence: "traffic to the destinations of the route `8.8.8.0/24 via 192.168.1.66 on \
                       em0` bypasses wg0, whose routes are less specific"
                .to_owned(),
            remedy: Some(Remedy::Exclude),
        }]
    );
}

#[test]
fn tables_are_fibs_on_freebsd_and_main_only_on_macos() {
    let with = |table: &str| {
        file(
            &format!("{ADDRESS}\nTable = {table}"),
            "AllowedIPs = 0.0.0.0/0",
        )
    };
    let failure = |snapshot: &Snapshot, table: &str| -> PlanError {
        let options = Options::default();
        plan("wg0", &with(table), snapshot, Compatibility::Taupe, options).unwrap_err()
    };
    let mut freebsd = freebsd_home();
    assert_eq!(routes(&planned(&freebsd, &with("off"))), [""; 0]);
    assert_eq!(
        failure(&freebsd, "2").to_string(),
        "Table = 2: there are 1 routing tables (FIBs), the last of which is 0; use one of them, or \
         raise net.fibs in loader.conf(5)"
    );
    freebsd.fibs.count = 4;
    assert_eq!(
        routes(&planned(&freebsd, &with("2"))),
        ["-inet -fib 2 0.0.0.0/0 -interface wg0"]
    );
    // The process's own table: as without the key.
    freebsd.fibs.own = 2;
    assert_eq!(
        planned(&freebsd, &with("2")),
        planned(&freebsd, &with("auto"))
    );
    assert_eq!(
        failure(&freebsd, "main").to_string(),
        "Table = main: FreeBSD has no routing table of this name; use auto, off or the number of a \
         FIB"
    );
    let mac = mac_home();
    assert_eq!(planned(&mac, &with("main")), planned(&mac, &with("auto")));
    assert_eq!(
        failure(&mac, "7").to_string(),
        "Table = 7: macOS has one routing table only; use auto, main or off"
    );
}

#[test]
fn a_mark_is_reported_on_macos_and_set_on_freebsd() {
    let file = file(
        &format!("{ADDRESS}\nFwMark = 9"),
        "AllowedIPs = 10.8.0.0/16",
    );
    let plan = planned(&freebsd_home(), &file);
    assert!(plan.steps.contains(&Step::Configure { fwmark: Some(9) }));
    let plan = planned(&mac_home(), &file);
    assert!(plan.steps.contains(&Step::Configure { fwmark: None }));
    assert_eq!(
        sentences(&plan),
        ["FwMark = 9 has no effect: macOS has no firewall marks"]
    );
}

#[test]
fn name_servers_in_the_home_network_are_asked_through_the_tunnel_but_not_its_router() {
    let with = |servers: &str| {
        file(
            &format!("{ADDRESS}\nDNS = {servers}"),
            "AllowedIPs = 0.0.0.0/0, ::/0",
        )
    };
    let plan = planned(&freebsd_home(), &with("192.168.1.53"));
    assert_eq!(
        routes(&plan).get(1).map(String::as_str),
        Some("-inet 192.168.1.53 -interface wg0")
    );
    assert!(
        sentences(&plan)
            .iter()
            .any(|it| it.contains("192.168.1.53 is asked through the tunnel"))
    );
    let plan = planned(&freebsd_home(), &with("192.168.1.1"));
    assert!(
        sentences(&plan)
            .iter()
            .any(|it| it.contains("it is a router of this network"))
    );
    let plan = planned(&freebsd_home(), &with("10.0.0.53"));
    assert_eq!(sentences(&plan), [""; 0]);
    let mut without = freebsd_home();
    without.resolvconf = false;
    let options = Options::default();
    let error = super::plan(
        "wg0",
        &with("10.0.0.53"),
        &without,
        Compatibility::Taupe,
        options,
    );
    assert_eq!(
        error,
        Err(PlanError::NoResolvconf(Some(address("10.0.0.53"))))
    );
}

#[test]
fn a_name_that_the_system_forbids_is_an_error_of_one_line() {
    let file = file(ADDRESS, "AllowedIPs = 10.8.0.0/16");
    let options = Options::default();
    let error = plan("a/b", &file, &freebsd_home(), Compatibility::Taupe, options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "FreeBSD cannot name a TUN device \"a/b\": use 1 to 15 bytes without '/', ':', '%' or blanks"
    );
    // On macOS the kernel names the device.
    assert!(plan("wg0", &file, &mac_home(), Compatibility::Taupe, options).is_ok());
}

#[test]
fn the_server_with_an_address_of_32_bits_keeps_its_router() {
    let plan = overriding(
        &freebsd_server(),
        &file(ADDRESS, "AllowedIPs = 0.0.0.0/0, ::/0, 172.31.0.0/16"),
    );
    let routes = routes(&plan);
    assert!(
        !routes
            .iter()
            .any(|it| it.contains(" 172.31.1.1 -interface")),
        "{routes:?}"
    );
    assert!(routes.contains(&"-inet 198.51.100.9 -gateway 172.31.1.1".to_owned()));
}

#[test]
fn without_ipv6_on_the_system_the_ipv6_part_is_left_out() {
    let mut snapshot = freebsd_home();
    snapshot.ipv6 = false;
    let file = file(
        "Address = 10.0.0.2/24, fd09::2/64",
        "AllowedIPs = 10.8.0.0/16, fd08::/16",
    );
    let plan = planned(&snapshot, &file);
    assert_eq!(routes(&plan), ["-inet 10.8.0.0/16 -interface wg0"]);
    let addresses = plan.steps.iter();
    let addresses = addresses.filter(|step| matches!(step, Step::Address { .. }));
    assert_eq!(addresses.count(), 1);
    assert_eq!(
        sentences(&plan),
        [
            "IPv6 is switched off on this system: the IPv6 addresses and networks of wg0 are left out"
        ]
    );
}
