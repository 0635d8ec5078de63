use super::*;

fn link(index: u32, name: &str, medium: Medium) -> Link {
    Link {
        index,
        name: name.to_owned(),
        up: true,
        mtu: 1500,
        kind: None,
        medium,
        controller: None,
    }
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn ethernet(index: u32, name: &str) -> Link {
    link(index, name, Medium::Ethernet(MAC))
}

fn address(interface: u32, network: &str) -> Address {
    Address {
        interface,
        network: network.parse().unwrap(),
    }
}

fn route(destination: &str, interface: u32, metric: u32) -> Route {
    Route {
        metric,
        ..Route::by_interface(destination.parse().unwrap(), interface, Route::MAIN_TABLE)
    }
}

fn names(survey: &Survey) -> Vec<&str> {
    survey
        .guarded
        .iter()
        .map(|link| link.name.as_str())
        .collect()
}

#[test]
fn all_links_are_guarded_but_loopback_and_the_tunnel() {
    let mut down = ethernet(4, "eth1");
    down.up = false;
    let links = [
        down,
        link(1, "lo", Medium::Loopback),
        ethernet(2, "eth0"),
        link(3, "ppp0", Medium::Other(libc::ARPHRD_PPP)),
        link(5, "home", Medium::Other(libc::ARPHRD_NONE)),
        link(6, "wg0", Medium::Other(libc::ARPHRD_NONE)),
        link(7, "ib0", Medium::Other(libc::ARPHRD_INFINIBAND)),
    ];
    let survey = survey(&links, &[], &[], 5);
    assert_eq!(names(&survey), ["eth0", "ppp0", "eth1", "wg0", "ib0"]);
    let headers: Vec<_> = survey.guarded.iter().map(|link| link.header).collect();
    assert_eq!(
        headers,
        [
            LinkHeader::Ethernet(MAC),
            LinkHeader::None,
            LinkHeader::Ethernet(MAC),
            LinkHeader::None,
            LinkHeader::Unknown
        ]
    );
}

#[test]
fn ports_are_not_guarded_unless_packets_are_routed_to_them() {
    let port = |index, name: &str, controller| Link {
        controller: Some(controller),
        ..ethernet(index, name)
    };
    let bundle = |index, name: &str, kind: &str| Link {
        kind: Some(kind.to_owned()),
        ..ethernet(index, name)
    };
    let links = [
        bundle(2, "br0", "bridge"),
        port(3, "veth0", 2),
        bundle(4, "bond0", "bond"),
        port(5, "eth0", 4),
        bundle(6, "team0", "team"),
        port(7, "eth1", 6),
        bundle(8, "ovs-system", "openvswitch"),
        port(9, "eth2", 8),
        bundle(10, "blue", "vrf"),
        port(11, "eth3", 10),
        // The controller is in another network namespace.
        port(12, "eth4", 99),
    ];
    let survey = survey(&links, &[], &[], 1);
    let guarded = [
        "br0",
        "bond0",
        "team0",
        "ovs-system",
        "blue",
        "eth3",
        "eth4",
    ];
    assert_eq!(names(&survey), guarded);
}

#[test]
fn a_default_route_in_any_table_counts() {
    let names = ["v4", "v6", "other-table", "network", "unreachable", "none"];
    let links: Vec<Link> = (2..)
        .zip(names)
        .map(|(i, name)| ethernet(i, name))
        .collect();
    let mut other_table = route("0.0.0.0/0", 4, 0);
    other_table.table = 100;
    let mut unreachable = route("0.0.0.0/0", 6, 0);
    unreachable.kind = RouteKind::Unreachable;
    let routes = [
        route("0.0.0.0/0", 2, 0),
        route("::/0", 3, 0),
        other_table,
        route("0.0.0.0/1", 5, 0),
        unreachable,
    ];
    let survey = survey(&links, &[], &routes, 9);
    let has_default_route: Vec<bool> = survey
        .guarded
        .iter()
        .map(|link| link.has_default_route)
        .collect();
    assert_eq!(has_default_route, [true, true, true, false, false, false]);
}

#[test]
fn new_connections_come_in_by_the_best_default_route_with_an_address() {
    let links = [
        link(1, "lo", Medium::Loopback),
        ethernet(2, "eth0"),
        ethernet(3, "wlan0"),
        ethernet(4, "usb0"),
    ];
    let addresses = [
        address(1, "127.0.0.1/8"),
        address(2, "192.168.1.7/24"),
        address(2, "192.168.1.8/24"),
        address(2, "fe80::7/64"),
        address(3, "10.0.0.7/8"),
        address(3, "fe80::8/64"),
        address(3, "2001:db8::8/64"),
    ];
    let mut unreachable = route("0.0.0.0/0", 3, 1);
    unreachable.kind = RouteKind::Unreachable;
    let mut elsewhere = route("0.0.0.0/0", 3, 2);
    elsewhere.table = 51820;
    let routes = [
        unreachable,
        elsewhere,
        route("10.0.0.0/8", 3, 0),
        route("0.0.0.0/0", 3, 600),
        route("0.0.0.0/0", 2, 100),
        route("0.0.0.0/0", 4, 50),
        // The best IPv6 route is on a link with only a link-local address.
        route("::/0", 2, 100),
        route("::/0", 3, 600),
    ];
    let survey = survey(&links, &addresses, &routes, 9);
    assert_eq!(
        survey.main_v4,
        Some(Main {
            link: 2,
            address: Ipv4Addr::new(192, 168, 1, 7)
        })
    );
    assert_eq!(
        survey.main_v6,
        Some(Main {
            link: 3,
            address: "2001:db8::8".parse().unwrap()
        })
    );
    let on_loopback = survey.addresses.iter().filter(|own| own.interface == 1);
    assert_eq!((survey.addresses.len(), on_loopback.count()), (6, 0));
}

#[test]
fn further_loopback_addresses_are_listed() {
    let links = [link(1, "lo", Medium::Loopback), ethernet(2, "eth0")];
    let alias = [address(1, "10.9.9.9/32"), address(1, "2001:db8::9/128")];
    let addresses = [
        address(1, "127.0.0.1/8"),
        address(1, "127.0.0.53/8"),
        address(1, "::1/128"),
        alias[0].clone(),
        address(2, "192.168.1.7/24"),
        alias[1].clone(),
    ];
    let survey = survey(&links, &addresses, &[], 9);
    assert_eq!(survey.on_loopback, alias);
    assert_eq!(survey.addresses, [address(2, "192.168.1.7/24")]);
}

#[test]
fn no_main_uplink_without_a_default_route() {
    let links = [ethernet(2, "eth0")];
    let addresses = [address(2, "192.168.1.7/24")];
    let routes = [route("192.168.1.0/24", 2, 0)];
    let survey = survey(&links, &addresses, &routes, 9);
    assert_eq!((survey.main_v4, survey.main_v6), (None, None));
}
