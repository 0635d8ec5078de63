//! Tests of notifications of changed links and routes. They need root.

#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{Namespace, SOON, eventually, readable};
use taupe_os_linux::{
    tun::{Offloads, Read, Tun},
    watch::{LinkState, LinkWatch, RouteWatch},
};

fn up(mtu: u32) -> Option<LinkState> {
    Some(LinkState { up: true, mtu })
}

fn down(mtu: u32) -> Option<LinkState> {
    Some(LinkState { up: false, mtu })
}

const DELETED: Option<LinkState> = None;

/// Waits for a notification that leads to `state`.
fn expect(watch: &mut LinkWatch, tun: &Tun, state: Option<LinkState>) {
    eventually(&format!("{state:?}"), || {
        assert!(readable(watch.fd(), SOON), "no notice before {state:?}");
        watch.drain(tun).unwrap() == state
    });
}

fn quiet(watch: &LinkWatch) -> bool {
    !readable(watch.fd(), Duration::from_millis(50))
}

#[test]
fn a_link_is_watched_at_home_and_abroad() {
    let [home, abroad, further] = [(); 3].map(|()| Namespace::new());
    let tun = home.run(|| Tun::create("tun7", Offloads::default()).unwrap());
    let mut watch = home.run(|| LinkWatch::open(&tun).unwrap());
    assert!(watch.follows_moves());
    assert_eq!(watch.drain(&tun).unwrap(), down(1500));
    assert!(quiet(&watch));

    let exercise = |watch: &mut LinkWatch, place: &Namespace| {
        place.ip("link set tun7 up");
        expect(watch, &tun, up(1500));
        place.ip("link set tun7 mtu 1420");
        expect(watch, &tun, up(1420));
        place.ip("link set tun7 down");
        expect(watch, &tun, down(1420));
        place.ip("link set tun7 mtu 1500");
        expect(watch, &tun, down(1500));
    };
    exercise(&mut watch, &home);
    home.ip(&format!("link set tun7 netns {}", abroad.name()));
    expect(&mut watch, &tun, down(1500));
    exercise(&mut watch, &abroad);
    // An interface of the same name in the original namespace is a different one.
    home.ip("link add name tun7 type bridge");
    home.ip("link set tun7 up");
    expect(&mut watch, &tun, down(1500));
    abroad.ip(&format!("link set tun7 netns {}", further.name()));
    expect(&mut watch, &tun, down(1500));
    exercise(&mut watch, &further);
    further.ip("link set tun7 name tun9");
    further.ip("link set tun9 up");
    expect(&mut watch, &tun, up(1500));
    further.ip("link del tun9");
    expect(&mut watch, &tun, DELETED);
}

#[test]
fn deletion_at_home_is_noticed() {
    let home = Namespace::new();
    let tun = home.run(|| Tun::create("tun7", Offloads::default()).unwrap());
    let mut watch = home.run(|| LinkWatch::open(&tun).unwrap());
    home.ip("link del tun7");
    expect(&mut watch, &tun, DELETED);
}

#[test]
fn a_watch_opened_after_the_move_sees_as_much() {
    let [home, abroad] = [(); 2].map(|()| Namespace::new());
    let tun = home.run(|| Tun::create("tun7", Offloads::default()).unwrap());
    home.ip(&format!("link set tun7 netns {}", abroad.name()));
    let mut watch = home.run(|| LinkWatch::open(&tun).unwrap());
    assert_eq!(watch.drain(&tun).unwrap(), down(1500));
    abroad.ip("link set tun7 up mtu 1300");
    expect(&mut watch, &tun, up(1300));
}

#[test]
fn a_namespace_that_is_deleted_takes_the_link_with_it() {
    let [home, abroad] = [(); 2].map(|()| Namespace::new());
    let tun = home.run(|| Tun::create("tun7", Offloads::default()).unwrap());
    let mut watch = home.run(|| LinkWatch::open(&tun).unwrap());
    home.ip(&format!("link set tun7 netns {}", abroad.name()));
    expect(&mut watch, &tun, down(1500));
    drop(abroad);
    // No descriptor of the watch keeps the namespace alive.
    expect(&mut watch, &tun, DELETED);
    assert_eq!(tun.read(&mut [0; 100]).unwrap(), Read::Deleted);
}

#[test]
fn addresses_routes_and_links_are_watched() {
    let home = Namespace::new();
    home.ip("link add name va type veth peer name vb");
    let mut watch = home.run(|| RouteWatch::open().unwrap());
    assert!(!watch.drain().unwrap());
    for change in [
        "addr add 10.0.0.1/24 dev va",
        "link set va up",
        "link set vb up",
        "route add 10.1.0.0/16 dev va",
        "route del 10.1.0.0/16 dev va",
        "addr add fd00::1/64 dev va nodad",
        "route add fd01::/64 dev va",
        "addr del 10.0.0.1/24 dev va",
        "link set va down",
    ] {
        home.ip(change);
        assert!(readable(watch.fd(), SOON), "{change}");
        assert!(watch.drain().unwrap());
        // Discard late notifications.
        while readable(watch.fd(), Duration::from_millis(50)) {
            assert!(watch.drain().unwrap());
        }
    }
    assert!(!watch.drain().unwrap());
}

#[test]
fn more_notices_than_fit_are_still_a_notice() {
    let home = Namespace::new();
    let mut watch = home.run(|| RouteWatch::open().unwrap());
    rustix::net::sockopt::set_socket_recv_buffer_size(watch.fd(), 1).unwrap();
    for number in 1..50 {
        home.ip(&format!("addr add 10.0.0.{number}/32 dev lo"));
    }
    assert!(watch.drain().unwrap());
    assert!(!watch.drain().unwrap());
    home.ip("addr add 10.0.1.1/32 dev lo");
    assert!(watch.drain().unwrap());
}

#[test]
fn the_interface_to_an_address_is_the_routing_table_s() {
    let home = Namespace::new();
    home.ip("link add name one type bridge");
    home.ip("link add name two type bridge");
    for (name, address) in [("one", "192.0.2.1/24"), ("two", "198.51.100.1/24")] {
        home.ip(&format!("link set {name} up"));
        home.ip(&format!("address add {address} dev {name}"));
    }
    let mut watch = home.run(|| RouteWatch::open().unwrap());
    let mut from = |source: &str, address: &str, mark| {
        watch.interface_to(address.parse().unwrap(), source.parse().unwrap(), mark)
    };
    let mut to = |address: &str, mark| from("192.0.2.1", address, mark);
    let [one, two] = ["192.0.2.9", "198.51.100.9"].map(|address| to(address, 0).unwrap());
    assert_ne!(one, two);
    assert!(to("203.0.113.1", 0).is_err(), "no route");
    home.ip("route add 203.0.113.0/24 dev two");
    assert_eq!(to("203.0.113.1", 0).unwrap(), two);
    home.ip("rule add fwmark 7 table 77");
    home.ip("route add 203.0.113.0/24 dev one table 77");
    assert_eq!(to("203.0.113.1", 7).unwrap(), one, "with the mark");
    assert_eq!(to("203.0.113.1", 8).unwrap(), two, "with another");
    home.ip("rule add from 198.51.100.1 table 78");
    home.ip("route add 203.0.113.0/24 dev one table 78");
    let by_source = from("198.51.100.1", "203.0.113.1", 0);
    assert_eq!(by_source.unwrap(), one, "from the other address");
    assert!(from("192.0.2.2", "203.0.113.1", 0).is_err(), "not ours");
}
