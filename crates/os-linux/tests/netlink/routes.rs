//! Tests of routes and route lookup.

use ipnet::IpNet;
use taupe_os_linux::netlink::{Netlink, Route, RouteKind};

use super::{Twins, common::Namespace, ip, net, output, refused};

#[test]
fn routes_are_those_of_ip() {
    let mut twins = Twins::new();
    let interface = twins.index("tun7");
    let by = |destination, table| Route::by_interface(net(destination), interface, table);
    let unreachable = |destination, metric| Route::unreachable(net(destination), metric, 51820);
    let special = |kind, destination| Route::without_interface(kind, net(destination), 7, 51820);
    let routes = [
        (by("10.0.0.0/8", 254), "10.0.0.0/8 dev tun7"),
        (by("0.0.0.0/0", 51820), "0.0.0.0/0 dev tun7 table 51820"),
        (by("0.0.0.0/1", 254), "0.0.0.0/1 dev tun7"),
        (by("192.0.2.1/32", 200), "192.0.2.1 dev tun7 table 200"),
        (by("::/0", 51820), "::/0 dev tun7 table 51820"),
        (by("2001:db8::/32", 254), "2001:db8::/32 dev tun7"),
        (
            by("fd00::1/128", 99_999),
            "fd00::1/128 dev tun7 table 99999",
        ),
        (
            unreachable("0.0.0.0/0", 4_278_198_272),
            "unreachable 0.0.0.0/0 metric 4278198272 table 51820",
        ),
        (
            unreachable("::/0", 4_278_198_272),
            "unreachable ::/0 metric 4278198272 table 51820",
        ),
        (
            special(RouteKind::Throw, "10.9.0.0/16"),
            "throw 10.9.0.0/16 metric 7 table 51820",
        ),
        (
            special(RouteKind::Prohibit, "10.9.0.0/24"),
            "prohibit 10.9.0.0/24 metric 7 table 51820",
        ),
        (
            special(RouteKind::Throw, "fd09::/32"),
            "throw fd09::/32 metric 7 table 51820",
        ),
        (
            special(RouteKind::Prohibit, "fd09::/64"),
            "prohibit fd09::/64 metric 7 table 51820",
        ),
        (
            Route {
                mtu: Some(1400),
                metric: 77,
                protocol: 186,
                ..by("198.51.100.0/24", 254)
            },
            "198.51.100.0/24 dev tun7 metric 77 mtu 1400 protocol 186",
        ),
        (
            Route {
                gateway: Some(ip("10.7.7.7")),
                scope: Route::SCOPE_UNIVERSE,
                ..by("198.51.100.0/25", 254)
            },
            "198.51.100.0/25 via 10.7.7.7 dev tun7",
        ),
        (
            Route {
                gateway: Some(ip("fe80::7")),
                ..by("fd00:7::/48", 254)
            },
            "fd00:7::/48 via fe80::7 dev tun7",
        ),
        (
            Route {
                gateway: Some(ip("fe80::7")),
                scope: Route::SCOPE_UNIVERSE,
                ..by("198.51.100.128/25", 254)
            },
            "198.51.100.128/25 via inet6 fe80::7 dev tun7",
        ),
    ];
    for (route, command) in &routes {
        twins.both(|s| s.add_route(route), &format!("route add {command}"));
        let text = refused(twins.netlink.add_route(route), libc::EEXIST).to_string();
        assert!(text.contains(&route.destination.to_string()), "{text}");
    }
    let listed = twins.netlink.routes().unwrap();
    for (route, _) in &routes {
        let same = listed.iter().filter(|listed| *listed == route).count();
        assert_eq!(same, 1, "{route:?} in {listed:#?}");
    }
    for (route, command) in &routes {
        twins.both(
            |s| s.remove_route(route),
            &format!("route delete {command}"),
        );
        refused(twins.netlink.remove_route(route), libc::ESRCH);
    }
    let elsewhere = Route::by_interface(net("10.0.0.0/8"), 9999, 254);
    refused(twins.netlink.add_route(&elsewhere), libc::ENODEV);
}

#[test]
fn an_unreachable_route_refuses_what_no_better_route_takes() {
    let mut twins = Twins::new();
    let interface = twins.index("tun7");
    let s = &mut twins.netlink;
    for (all, host) in [("0.0.0.0/0", "192.0.2.1"), ("::/0", "2001:db8::1")] {
        let refusal = Route::unreachable(net(all), 4_278_198_272, 254);
        let route = Route::by_interface(net(all), interface, 254);
        s.add_route(&route).unwrap();
        s.add_route(&refusal).unwrap();
        assert_eq!(s.route_to(ip(host), 0).unwrap().interface, interface);
        s.remove_route(&route).unwrap();
        refused(s.route_to(ip(host), 0), libc::EHOSTUNREACH);
        s.remove_route(&refusal).unwrap();
        refused(s.route_to(ip(host), 0), libc::ENETUNREACH);
    }
}

#[test]
fn routes_that_differ_in_metric_are_told_apart() {
    let mut twins = Twins::new();
    let interface = twins.index("tun7");
    let s = &mut twins.netlink;
    for destination in ["10.0.0.0/8", "fd00::/8"] {
        let usual = Route::by_interface(net(destination), interface, 254);
        let other = Route {
            metric: 5000,
            ..usual.clone()
        };
        s.add_route(&other).unwrap();
        s.add_route(&usual).unwrap();
        s.remove_route(&usual).unwrap();
        let left = s.routes().unwrap();
        assert!(left.contains(&other) && !left.contains(&usual));
        s.remove_route(&other).unwrap();
        refused(s.remove_route(&other), libc::ESRCH);
    }
    // A metric of 0 means 1024 in IPv6, so it does not match a route of another metric.
    let none = Route {
        metric: 0,
        ..Route::by_interface(net("fd00::/8"), interface, 254)
    };
    s.add_route(&Route {
        metric: 50,
        ..none.clone()
    })
    .unwrap();
    refused(s.remove_route(&none), libc::ESRCH);
    s.add_route(&none).unwrap();
    s.remove_route(&none).unwrap();
}

#[test]
fn routes_of_several_next_hops_are_listed_once_for_each() {
    let place = Namespace::new();
    for link in ["tun7", "tun8"] {
        place.ip(&format!("tuntap add {link} mode tun"));
        place.ip(&format!("link set {link} up"));
    }
    place.ip("route add 10.0.0.0/8 nexthop via inet6 fe80::2 dev tun7 nexthop via inet6 fe80::1 dev tun8");
    place.ip("route add fd00::/16 nexthop via fe80::2 dev tun7 nexthop via fe80::1 dev tun8");
    place.ip("route add blackhole 10.9.0.0/16");
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let [first, second] = ["tun7", "tun8"].map(|name| netlink.link(name).unwrap().unwrap().index);
    let routes = netlink.routes().unwrap();
    for destination in ["10.0.0.0/8", "fd00::/16"] {
        let hops: Vec<_> = routes
            .iter()
            .filter(|route| route.destination == net(destination))
            .map(|route| (route.interface, route.gateway))
            .collect();
        assert_eq!(
            hops,
            [
                (Some(first), Some(ip("fe80::2"))),
                (Some(second), Some(ip("fe80::1"))),
            ],
            "{destination}"
        );
    }
    let blackhole = routes
        .iter()
        .find(|route| route.destination == net("10.9.0.0/16"))
        .unwrap();
    assert_eq!(blackhole.kind, RouteKind::Other(6));
    let own = routes
        .iter()
        .find(|route| route.destination == net("127.0.0.1/32"))
        .unwrap();
    assert_eq!(
        (own.kind, own.table),
        (RouteKind::Other(2), Route::LOCAL_TABLE)
    );
}

#[test]
fn ten_thousand_routes_are_listed() {
    let place = Namespace::new();
    place.ip("tuntap add tun7 mode tun");
    place.ip("link set tun7 up");
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let interface = netlink.link("tun7").unwrap().unwrap().index;
    let mut wanted = Vec::new();
    for number in 0..10_000u32 {
        let destination = if number % 2 == 0 {
            let address = std::net::Ipv4Addr::from((10 << 24) + number * 256);
            IpNet::new(address.into(), 24).unwrap()
        } else {
            let address =
                std::net::Ipv6Addr::from((0xfd00_u128 << 112) + (u128::from(number) << 64));
            IpNet::new(address.into(), 64).unwrap()
        };
        wanted.push(Route::by_interface(destination, interface, 51820));
    }
    for route in &wanted {
        netlink.add_route(route).unwrap();
    }
    let mut listed = netlink.routes().unwrap();
    listed.retain(|route| route.table == 51820);
    let key = |route: &Route| route.destination;
    listed.sort_by_key(key);
    wanted.sort_by_key(key);
    assert_eq!(listed, wanted);
}

#[test]
fn the_route_to_an_address_is_that_of_ip() {
    let mut twins = Twins::new();
    let [first, second] = ["tun7", "tun8"].map(|name| twins.index(name));
    let place = &twins.ours;
    for command in [
        "address add 192.0.2.1/24 dev tun7",
        "address add fd00:7::1/64 dev tun7",
        "address add 198.51.100.1/24 dev tun8",
        "route add default via 192.0.2.254",
        "route add default via fd00:7::254",
        "route add 203.0.113.0/24 via 198.51.100.254 mtu 1400",
        "route add default dev tun8 table 77",
        "rule add fwmark 7 table 77",
        "-6 route add default dev tun8 mtu 1300 table 77",
        "-6 rule add fwmark 7 table 77",
        "rule add fwmark 9 table 78",
        "route add unreachable default table 78",
    ] {
        place.ip(command);
    }
    let s = &mut twins.netlink;
    let mut check = |destination: &str, mark: u32| {
        let found = s.route_to(ip(destination), mark).unwrap();
        let said = output(place, "ip", &format!("route get {destination} mark {mark}"));
        let said: Vec<_> = said.split_whitespace().collect();
        let after = |word| {
            let at = said.iter().position(|&said| said == word)?;
            said.get(at + 1).copied()
        };
        let name = after("dev").unwrap();
        let index = [("tun7", first), ("tun8", second), ("lo", 1)]
            .into_iter()
            .find(|(link, _)| *link == name);
        assert_eq!(found.interface, index.unwrap().1, "{said:?}");
        assert_eq!(found.gateway, after("via").map(ip), "{said:?}");
        assert_eq!(found.source, after("src").map(ip), "{said:?}");
        let mtu = after("mtu").map(|mtu| mtu.parse().unwrap());
        assert_eq!(found.mtu, mtu, "{said:?}");
        found
    };
    assert_eq!(check("203.0.113.1", 0).mtu, Some(1400));
    assert_eq!(check("203.0.114.1", 0).gateway, Some(ip("192.0.2.254")));
    assert_eq!(check("203.0.114.1", 7).interface, second);
    assert_eq!(check("192.0.2.1", 0).interface, 1, "ourselves");
    assert_eq!(check("2001:db8::1", 0).gateway, Some(ip("fd00:7::254")));
    assert_eq!(check("2001:db8::1", 7).mtu, Some(1300));
    let text = refused(s.route_to(ip("203.0.113.1"), 9), libc::EHOSTUNREACH).to_string();
    assert!(
        text.starts_with("cannot find the route to 203.0.113.1 with the mark 0x9: "),
        "{text}"
    );
}
