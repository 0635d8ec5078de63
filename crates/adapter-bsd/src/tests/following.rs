//! Tunnels that follow the network.

use proptest::prelude::*;
use taupe_config::file::File;
use taupe_os_bsd::routing::NextHop;

use super::model::{Fault, Listener, Model};
use super::world::{World, service};
use crate::fixtures::{address, by, file, foreign, freebsd_home, mac_home, machines, net};
use crate::plan::Options;
use crate::{Machine, SnapshotRequest, Tunnel, follow, keep_up};

const FULL: &str = "AllowedIPs = 0.0.0.0/0, ::/0";

fn full(lines: &str) -> File {
    file(&format!("Address = 10.9.0.2/24, fd09::2/64\n{lines}"), FULL)
}

fn up(model: &mut Model, file: &File) -> Tunnel {
    let up = model.up(file, Options::default(), &mut Listener::default());
    up.expect("alive").unwrap_or_else(|error| panic!("{error}"))
}

/// Follows, and checks that nothing is left to do.
fn keep(model: &mut Model, tunnel: &mut Tunnel) -> Listener {
    let mut report = Listener::default();
    let store = model.store.clone();
    keep_up(model, &store, "wg0", tunnel, &mut report).expect("followed");
    let request = SnapshotRequest {
        own: Some(tunnel.device.index),
        fib: None,
        services: true,
    };
    let snapshot = model.snapshot(request).expect("a snapshot");
    assert_eq!(follow(tunnel, &snapshot), [], "{:?}", report.notes);
    report
}

fn down(model: &mut Model) {
    let down = model.down(None, &mut Listener::default());
    down.expect("alive")
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Replaces the default route of IPv4.
fn move_default(world: &mut World, router: Option<&str>) {
    let _ = world.delete_route(net("0.0.0.0/0"));
    if let Some(router) = router {
        world
            .add_route(None, net("0.0.0.0/0"), by(router))
            .expect("a route");
    }
}

fn next_hop(model: &Model, destination: &str) -> Option<NextHop> {
    let mut routes = model.world.snapshot.routes.iter();
    let found = routes.find(|it| it.route.destination == net(destination));
    found.map(|it| it.route.next_hop)
}

#[test]
fn the_route_to_the_endpoint_follows_the_default_route() {
    for snapshot in [freebsd_home(), mac_home()] {
        let mut model = Model::new(snapshot);
        let mut tunnel = up(&mut model, &full(""));
        assert!(keep(&mut model, &mut tunnel).steps.is_empty());
        move_default(&mut model.world, Some("192.168.1.66"));
        keep(&mut model, &mut tunnel);
        assert_eq!(
            next_hop(&model, "198.51.100.9/32"),
            Some(by("192.168.1.66"))
        );
        // Without a network, datagrams are refused instead of looping.
        move_default(&mut model.world, None);
        keep(&mut model, &mut tunnel);
        assert_eq!(next_hop(&model, "198.51.100.9/32"), Some(NextHop::Reject));
        move_default(&mut model.world, Some("192.168.1.1"));
        keep(&mut model, &mut tunnel);
        assert_eq!(next_hop(&model, "198.51.100.9/32"), Some(by("192.168.1.1")));
        down(&mut model);
        assert_eq!(next_hop(&model, "198.51.100.9/32"), None);
    }
}

/// In between, the tunnel's datagrams may enter the tunnel: the two calls follow each other without
/// waiting for the disk.
#[test]
fn the_next_hop_of_a_route_is_replaced_without_a_pause() {
    let mut model = Model::new(freebsd_home());
    let mut tunnel = up(&mut model, &full(""));
    move_default(&mut model.world, Some("192.168.1.66"));
    model.journal_lengths.clear();
    let report = keep(&mut model, &mut tunnel);
    assert_eq!(
        report.steps,
        [
            "route -q -n delete -inet 198.51.100.9 -gateway 192.168.1.1",
            "route -q -n add -inet 198.51.100.9 -gateway 192.168.1.66",
        ]
    );
    let [deleted, added] = *model.journal_lengths else {
        panic!("{:?}", model.journal_lengths);
    };
    assert!(deleted > 0);
    assert_eq!(deleted, added);
    down(&mut model);
    assert_eq!(next_hop(&model, "198.51.100.9/32"), None);
}

/// The process ends, and its other thread is notified first.
#[test]
fn the_end_of_the_interface_is_not_followed() {
    let mut model = Model::new(freebsd_home());
    let mut tunnel = up(&mut model, &file("Address = 10.9.0.2/24", FULL));
    model.kill_device();
    let mut report = Listener::default();
    let store = model.store.clone();
    keep_up(&mut model, &store, "wg0", &mut tunnel, &mut report).expect("followed");
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    assert!(report.steps.is_empty(), "{:?}", report.steps);
}

/// With `--override-routes`, the router has a route of its own.
#[test]
fn a_router_that_does_not_answer_on_macos_keeps_its_route() {
    let mut model = Model::new(mac_home());
    let file = file("Address = 10.9.0.2/24", "AllowedIPs = 172.31.0.0/16");
    let router = foreign("10.0.0.0/8", by("172.31.1.1"), 2);
    model.world.snapshot.routes.push(router);
    let mut tunnel = up(&mut model, &file);
    let host = "172.31.1.1/32";
    assert_eq!(next_hop(&model, host), Some(NextHop::Interface(2)));
    let mut routes = model.world.snapshot.routes.iter_mut();
    let entry = routes.find(|it| it.route.destination == net(host));
    let entry = entry.expect("a route");
    entry.route.next_hop = NextHop::Reject;
    entry.flags |= 0x400 | 0x8;
    let report = keep(&mut model, &mut tunnel);
    assert!(report.steps.is_empty(), "{:?}", report.steps);
    down(&mut model);
    assert_eq!(next_hop(&model, host), None);
}

#[test]
fn an_endpoint_that_roams_gets_its_own_route() {
    let mut model = Model::new(freebsd_home());
    let mut tunnel = up(&mut model, &full(""));
    model.world.snapshot.endpoints = vec![address("203.0.113.4"), address("2001:db8:77::1")];
    keep(&mut model, &mut tunnel);
    assert_eq!(next_hop(&model, "198.51.100.9/32"), None);
    assert_eq!(next_hop(&model, "203.0.113.4/32"), Some(by("192.168.1.1")));
    let v6 = next_hop(&model, "2001:db8:77::1/128");
    assert!(matches!(v6, Some(NextHop::Gateway(router)) if router.zone == 1));
    // Into the local network, which is more specific than the tunnel.
    model.world.snapshot.endpoints = vec![address("192.168.1.9")];
    keep(&mut model, &mut tunnel);
    assert_eq!(tunnel.hosts.len(), 0);
}

/// A peer roams into the network of the tunnel's address, and into one that a command of the file has
/// routed into the tunnel.
#[test]
fn an_endpoint_that_roams_into_any_route_of_the_interface_gets_its_own_route() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 203.0.113.2/24", "AllowedIPs = 203.0.113.0/24");
    let mut tunnel = up(&mut model, &file);
    let own = NextHop::Interface(tunnel.device.index);
    let world = &mut model.world;
    let added = world.add_route(None, net("192.0.2.0/24"), own);
    added.expect("a route");
    world.snapshot.endpoints = vec![address("203.0.113.4"), address("192.0.2.4")];
    keep(&mut model, &mut tunnel);
    for host in ["203.0.113.4/32", "192.0.2.4/32"] {
        assert_eq!(next_hop(&model, host), Some(by("192.168.1.1")));
    }
    down(&mut model);
    assert_eq!(next_hop(&model, "203.0.113.4/32"), None);
}

#[test]
fn without_a_table_no_route_is_added() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 198.51.100.2/24\nTable = off", FULL);
    let mut tunnel = up(&mut model, &file);
    let own = NextHop::Interface(tunnel.device.index);
    let added = model.world.add_route(None, net("0.0.0.0/1"), own);
    added.expect("a route");
    assert!(keep(&mut model, &mut tunnel).steps.is_empty());
    assert_eq!(next_hop(&model, "198.51.100.9/32"), None);
}

#[test]
fn another_network_with_other_routes_and_another_mtu() {
    let mut model = Model::new(freebsd_home());
    let mut tunnel = up(&mut model, &full(""));
    model.world.delete_interface(1);
    keep(&mut model, &mut tunnel);
    let wlan = model.world.add_interface("wlan0", 0x8843);
    model
        .world
        .snapshot
        .interfaces
        .last_mut()
        .expect("wlan0")
        .mtu = 1400;
    model.world.add_address(wlan, net("10.77.0.5/16"));
    model
        .world
        .add_route(None, net("0.0.0.0/0"), by("10.77.0.1"))
        .expect("a route");
    keep(&mut model, &mut tunnel);
    assert_eq!(next_hop(&model, "198.51.100.9/32"), Some(by("10.77.0.1")));
    let own = model
        .world
        .snapshot
        .interface(tunnel.device.index)
        .expect("wg0");
    assert_eq!(own.mtu, 1320);
    // Nobody fights about an MTU that an administrator sets.
    let mut interfaces = model.world.snapshot.interfaces.iter_mut();
    interfaces
        .find(|it| it.index == tunnel.device.index)
        .expect("wg0")
        .mtu = 1300;
    assert!(keep(&mut model, &mut tunnel).steps.is_empty());
}

#[test]
fn a_deleted_route_into_the_tunnel_is_reported_once() {
    let mut model = Model::new(mac_home());
    let mut tunnel = up(&mut model, &full(""));
    model
        .world
        .delete_route(net("128.0.0.0/1"))
        .expect("our route");
    let report = keep(&mut model, &mut tunnel);
    let [note] = report.notes.as_slice() else {
        panic!("{:?}", report.notes);
    };
    assert_eq!(
        note.sentence,
        "the route to 128.0.0.0/1 through utun4 was deleted by another program: its traffic \
         bypasses the tunnel"
    );
    assert!(report.steps.is_empty());
    assert!(keep(&mut model, &mut tunnel).notes.is_empty());
    // An administrator adds it again, and later it is deleted again.
    let own = NextHop::Interface(tunnel.device.index);
    let half = net("128.0.0.0/1");
    model.world.add_route(None, half, own).expect("a route");
    assert!(keep(&mut model, &mut tunnel).notes.is_empty());
    model.world.delete_route(half).expect("a route");
    assert_eq!(keep(&mut model, &mut tunnel).notes.len(), 1);
}

#[test]
fn a_route_that_a_new_local_network_replaces_returns_when_that_network_is_left() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 10.9.0.2/24", "AllowedIPs = 10.77.0.0/16");
    let mut tunnel = up(&mut model, &file);
    let wlan = model.world.add_interface("wlan0", 0x8843);
    model.world.add_address(wlan, net("10.77.0.5/16"));
    let report = keep(&mut model, &mut tunnel);
    let [note] = report.notes.as_slice() else {
        panic!("{:?}", report.notes);
    };
    assert_eq!(
        note.sentence,
        "10.77.0.0/16 is not tunnelled by wg0 any more: there is another route, `10.77.0.0/16 on \
         wlan0`"
    );
    assert_eq!(model.world.interface_to(address("10.77.0.9")), Some(wlan));
    assert!(keep(&mut model, &mut tunnel).notes.is_empty());
    model.world.delete_interface(wlan);
    let report = keep(&mut model, &mut tunnel);
    assert_eq!(
        report.steps,
        ["route -q -n add -inet 10.77.0.0/16 -interface wg0"]
    );
    let own = tunnel.device.index;
    assert_eq!(model.world.interface_to(address("10.77.0.9")), Some(own));
    down(&mut model);
}

#[test]
fn routes_follow_the_network_if_services_cannot_be_listed() {
    let mut model = Model::new(mac_home());
    let mut tunnel = up(&mut model, &full("DNS = 10.9.0.1"));
    move_default(&mut model.world, Some("192.168.1.66"));
    model.hides_services = true;
    let store = model.store.clone();
    let mut report = Listener::default();
    let followed = keep_up(&mut model, &store, "wg0", &mut tunnel, &mut report);
    assert!(followed.is_err());
    let host = next_hop(&model, "198.51.100.9/32");
    assert_eq!(host, Some(by("192.168.1.66")));
    // The same at the end.
    let undone = model.down(None, &mut Listener::default());
    let error = undone.expect("alive").expect_err("not restored");
    assert!(error.to_string().contains("networksetup is not there"));
    assert_eq!(next_hop(&model, "198.51.100.9/32"), None);
    model.hides_services = false;
    down(&mut model);
}

/// networksetup(8) prints errors, and its exit status is 0.
#[test]
fn name_servers_that_cannot_be_restored_stay_in_the_journal() {
    let mut model = Model::new(mac_home());
    let before = model.world.snapshot.services.clone();
    up(&mut model, &full("DNS = 10.9.0.1"));
    model.refuses_services = true;
    let down_again = model.down(None, &mut Listener::default());
    let error = down_again.expect("alive").expect_err("not restored");
    let text = error.to_string();
    assert!(
        text.contains("networksetup -setdnsservers Wi-Fi 192.0.2.53"),
        "{text}"
    );
    assert!(text.contains("Unable to find item"), "{text}");
    model.refuses_services = false;
    down(&mut model);
    assert_eq!(model.world.snapshot.services, before);
}

#[test]
fn network_services_keep_the_name_servers_and_get_their_own_back() {
    let mut model = Model::new(mac_home());
    let before = model.world.snapshot.services.clone();
    let mut tunnel = up(&mut model, &full("DNS = 10.9.0.1, example.org"));
    // The system sets one again, and another one is new.
    let services = &mut model.world.snapshot.services;
    *services.first_mut().expect("Wi-Fi") = service("Wi-Fi", &["198.51.100.53"]);
    services.push(service("iPhone USB", &["172.20.10.1"]));
    keep(&mut model, &mut tunnel);
    let services = &model.world.snapshot.services;
    assert!(
        services
            .iter()
            .all(|it| it.servers == ["10.9.0.1"] && it.search == ["example.org"])
    );
    down(&mut model);
    let mut expected = before;
    expected.push(service("iPhone USB", &["172.20.10.1"]));
    assert_eq!(model.world.snapshot.services, expected);
}

/// An event in the life of a machine.
#[derive(Clone, Debug)]
enum Event {
    Default(Option<u8>),
    Endpoints(Vec<u8>),
    LoseInterface,
    Join(u8),
    Leave,
    DeleteHost,
    Foreign(u8),
    Service,
    Fail(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        proptest::option::of(1..5_u8).prop_map(Event::Default),
        proptest::collection::vec(0..8_u8, 0..3).prop_map(Event::Endpoints),
        Just(Event::LoseInterface),
        (0..3_u8).prop_map(Event::Join),
        Just(Event::Leave),
        Just(Event::DeleteHost),
        (0..4_u8).prop_map(Event::Foreign),
        Just(Event::Service),
        (0..6_usize).prop_map(Event::Fail),
    ];
    proptest::collection::vec(event, 1..8)
}

/// Addresses of endpoints: public ones of both families, and one in the home network.
const ENDPOINTS: [&str; 8] = [
    "198.51.100.9",
    "203.0.113.4",
    "192.168.1.9",
    "192.168.1.1",
    "2001:db8:77::1",
    "2001:db8:9::5",
    "172.31.1.1",
    "8.8.8.8",
];

fn happen(model: &mut Model, own: u16, event: &Event) {
    let world = &mut model.world;
    match event {
        Event::Default(router) => {
            let _ = world.delete_route(net("0.0.0.0/0"));
            // A router behind the tunnel would be the administrator's own loop.
            let link = world.interface_to(address("192.168.1.66"));
            if let Some(router) = router.filter(|_| link != Some(own)) {
                let router = by(&format!("192.168.1.{router}"));
                let _ = world.add_route(None, net("0.0.0.0/0"), router);
            }
        }
        Event::Endpoints(numbers) => {
            let mut endpoints: Vec<_> = numbers
                .iter()
                .filter_map(|number| ENDPOINTS.get(usize::from(*number)))
                .map(|it| address(it))
                .collect();
            endpoints.sort_unstable();
            endpoints.dedup();
            world.snapshot.endpoints = endpoints;
        }
        Event::LoseInterface => world.delete_interface(1),
        Event::Join(number) => {
            let networks = ["198.51.0.5/16", "192.168.1.9/24", "172.31.0.5/16"];
            if let Some(network) = networks.get(usize::from(*number)) {
                let wlan = world.add_interface("wlan0", 0x8843);
                world.add_address(wlan, net(network));
            }
        }
        Event::Leave => {
            let mut interfaces = world.snapshot.interfaces.iter();
            let wlan = interfaces.find(|it| it.name.as_deref() == Some("wlan0"));
            if let Some(index) = wlan.map(|it| it.index) {
                world.delete_interface(index);
            }
        }
        Event::DeleteHost => {
            let _ = world.delete_route(net("198.51.100.9/32"));
        }
        Event::Foreign(number) => {
            let routes = [
                "198.51.100.0/24",
                "203.0.113.4/32",
                "8.8.8.8/32",
                "0.0.0.0/2",
            ];
            let link = world.interface_to(address("192.168.1.66"));
            let is_foreign = link.is_some_and(|it| it != own);
            if let Some(destination) = routes.get(usize::from(*number)).filter(|_| is_foreign) {
                let _ = world.add_route(None, net(destination), by("192.168.1.66"));
            }
        }
        Event::Service => {
            if let Some(first) = world.snapshot.services.first_mut() {
                first.servers = vec!["192.0.2.99".to_owned()];
            }
        }
        Event::Fail(number) => model.strike(*number, Fault::Fail),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever happens, following reaches a state with nothing to do, in which no endpoint is
    /// reached through the tunnel; and `down` leaves no route of the tunnel.
    #[test]
    fn following_is_complete_and_leaves_nothing(
        machine in 0..3_usize,
        override_routes: bool,
        peer in prop_oneof![
            Just(FULL),
            Just("AllowedIPs = 0.0.0.0/0"),
            Just("AllowedIPs = 198.51.0.0/16, 192.168.1.0/24, 172.31.0.0/16"),
        ],
        events in events(),
    ) {
        let snapshot = machines().into_iter().nth(machine).expect("a machine");
        let mut model = Model::new(snapshot);
        let file = file("Address = 10.9.0.2/24, fd09::2/64\nDNS = 10.9.0.1", peer);
        let up = model.up(&file, Options { override_routes }, &mut Listener::default());
        let mut tunnel = up.expect("alive").expect("up");
        let store = model.store.clone();
        for event in &events {
            happen(&mut model, tunnel.device.index, event);
            // A fault may let this fail, or a part of it.
            let _ = keep_up(&mut model, &store, "wg0", &mut tunnel, &mut Listener::default());
            model.calm();
            keep(&mut model, &mut tunnel);
            for endpoint in &model.world.snapshot.endpoints {
                let interface = model.world.interface_to(*endpoint);
                prop_assert_ne!(interface, Some(tunnel.device.index), "{}", endpoint);
            }
        }
        let present: Vec<_> = tunnel.hosts.keys().copied().collect();
        down(&mut model);
        for address in present {
            let route = next_hop(&model, &format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 }));
            let is_foreign = route.is_none() || route == Some(by("192.168.1.66"))
                || model.world.snapshot.addresses.iter().any(|it| it.network.addr() == address)
                || address.to_string() == "172.31.1.1" || address.to_string() == "192.168.1.1";
            prop_assert!(is_foreign, "{}: {:?}", address, route);
        }
        prop_assert!(!model.has_journal());
    }
}
