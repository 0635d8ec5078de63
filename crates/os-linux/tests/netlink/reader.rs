//! Tests of the client that changes nothing.

use std::{net::UdpSocket, os::fd::OwnedFd};

use taupe_os_linux::netlink::{NetworkReader, RouteQuery};

use super::{
    Twins,
    common::{Namespace, eventually},
    ip, refused,
};

#[test]
fn a_reader_finds_the_route_and_source_of_datagrams() {
    let mut twins = Twins::new();
    let [first, second] = ["tun7", "tun8"].map(|name| twins.index(name));
    let place = &twins.ours;
    for command in [
        "address add 192.0.2.1/24 dev tun7",
        "address add 198.51.100.1/24 dev tun8",
        "address add fd00:7::1/64 dev tun7",
        "address add fd00:8::1/64 dev tun8",
        "address add fe80::7/64 dev tun7",
        "address add fe80::8/64 dev tun8",
        "route add default via 192.0.2.254",
        "-6 route add default dev tun7",
        "rule add ipproto udp dport 5000 table 77",
        "-6 rule add ipproto udp dport 5000 table 77",
        "route add default dev tun8 table 77",
        "-6 route add default dev tun8 table 77",
        "rule add fwmark 9 table 78",
        "route add unreachable default table 78",
    ] {
        place.ip(command);
    }
    place.settle();
    // The namespace of a reader is the one it was opened in, and its socket may change its owner.
    let reader = place.run(|| NetworkReader::open().unwrap());
    let reader = NetworkReader::from(OwnedFd::from(reader));
    let to = |remote: &str, mark| {
        let route = reader.route(&RouteQuery::of_datagrams(remote.parse().unwrap(), mark))?;
        Ok((route.interface, route.source.unwrap().to_string()))
    };
    let found = |interface, source: &str| (interface, source.to_owned());
    for (remote, expected) in [
        ("203.0.113.1:6000", found(first, "192.0.2.1")),
        ("203.0.113.1:5000", found(second, "198.51.100.1")),
        ("[2001:db8::1]:6000", found(first, "fd00:7::1")),
        ("[2001:db8::1]:5000", found(second, "fd00:8::1")),
        (&format!("[fe80::1%{first}]:6000"), found(first, "fe80::7")),
        (
            &format!("[fe80::1%{second}]:6000"),
            found(second, "fe80::8"),
        ),
    ] {
        assert_eq!(to(remote, 0).unwrap(), expected, "{remote}");
    }
    let text = refused(to("203.0.113.1:1", 9), libc::EHOSTUNREACH).to_string();
    assert!(
        text.starts_with("cannot find the route to 203.0.113.1 with the mark 0x9: "),
        "{text}"
    );

    let links = reader.links().unwrap();
    assert_eq!(links, twins.netlink.links().unwrap());
    assert!(links.contains(&reader.link("tun8").unwrap().unwrap()));
    assert_eq!(reader.link("tun9").unwrap(), None);
    assert_eq!(
        reader.addresses().unwrap(),
        twins.netlink.addresses().unwrap()
    );
}

#[test]
fn a_reader_distinguishes_addresses_that_a_socket_could_be_bound_to() {
    let place = Namespace::new();
    for command in [
        "link add name one type veth peer name other",
        "link set one up",
        "address add 192.0.2.1/24 dev one",
        "address add fd00:7::1/64 dev one nodad",
        "link add name two type bridge",
        "address add 198.51.100.1/24 dev two",
        "route add default dev one",
        "-6 route add default dev one",
    ] {
        place.ip(command);
    }
    // The peer is down, so the kernel cannot finish the detection of duplicates.
    place.ip("address add fd00:7::2/64 dev one");
    let reader = place.run(|| NetworkReader::open().unwrap());
    let is_local = |address| {
        let route = reader.route(&RouteQuery::to(ip(address), 0));
        route.is_ok_and(|route| route.is_local)
    };
    // The kernel adds the route of an IPv6 address later.
    eventually("the route", || is_local("fd00:7::1"));
    for (address, expected) in [
        ("192.0.2.1", true),
        ("fd00:7::1", true),
        ("198.51.100.1", true),
        ("fd00:7::2", false),
        ("192.0.2.2", false),
    ] {
        let is_bound = place.run(|| UdpSocket::bind((ip(address), 0)).is_ok());
        assert_eq!(
            (is_local(address), is_bound),
            (expected, expected),
            "{address}"
        );
    }
    let from = |source: &str| {
        reader.route(&RouteQuery {
            source: Some(ip(source)),
            ..RouteQuery::to(ip("203.0.113.1"), 0)
        })
    };
    from("192.0.2.1").unwrap();
    let text = from("203.0.113.2").unwrap_err().to_string();
    assert!(
        text.starts_with("cannot find the route to 203.0.113.1 from 203.0.113.2: "),
        "{text}"
    );
}
