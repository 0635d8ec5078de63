//! Clients for which this machine is a router, and another tunnel that carries this one.

use taupe_config::file::Forwarded;
use taupe_transparent_windows::{Adapter, FrameDropReason, Medium, Protocol, Towards};

use crate::packets::{
    ACK, CLIENT, HOTSPOT, SYN, at, datagram, echo, ethernet, left_to_the_card, sent, tcp, udp,
};
use crate::system::KERNEL;
use crate::world::{CLIENTS, NAMES, OUTER, OWN, SERVER, Setup, TUNNEL, UPLINK, World};

const PHONE: &str = "192.168.137.55";

fn from_client(packet: &[u8]) -> Vec<u8> {
    ethernet(CLIENT, HOTSPOT, packet)
}

fn hotspot(forwarded: Forwarded) -> World {
    World::new(&Setup {
        forwarded,
        dns: vec![NAMES],
        ..Setup::default()
    })
}

#[test]
fn clients_go_through_the_tunnel_if_they_are_to() {
    let mut world = hotspot(Forwarded::Tunnel);
    let (phone, server) = (at(PHONE, 40_000), at(SERVER, 443));
    let open = tcp(phone, server, SYN, b"");
    world.give(CLIENTS, Towards::System, from_client(&open));
    assert!(world.at_system(false).is_empty());
    let outside = at(TUNNEL, 40_000);
    let [got] = &world.take_got()[..] else {
        panic!("one packet");
    };
    // The hop limit is lower by one.
    assert_eq!((got[8], &got[12..16]), (60, &[10, 66, 0, 2][..]));
    // The reply goes to the client, by its adapter.
    world.reply(&tcp(server, outside, SYN | ACK, b""));
    let last = world.tap.wire.last().unwrap();
    assert_eq!((last.adapter, last.made), (CLIENTS, true));
    assert_eq!(last.frame[..12], [CLIENT, HOTSPOT].concat()[..]);
    assert_eq!(&last.frame[14 + 16..14 + 20], &[192, 168, 137, 55]);
    // The client's DNS queries go into the tunnel, also those to this machine.
    for asked in ["192.168.137.1", "8.8.8.8"] {
        let question = udp(at(PHONE, 40_001), at(asked, 53), b"?");
        world.give(CLIENTS, Towards::System, from_client(&question));
        let got = world.take_got().pop().unwrap();
        let (_, to, _) = datagram(&got).unwrap();
        assert_eq!(to, at(NAMES, 53), "{asked}");
        world.reply(&udp(at(NAMES, 53), datagram(&got).unwrap().0, b"!"));
        let last = world.tap.wire.last().unwrap();
        let (from, to, _) = datagram(&last.frame[14..]).unwrap();
        assert_eq!((from, to), (at(asked, 53), at(PHONE, 40_001)));
    }
}

#[test]
fn clients_reach_this_machine_and_each_other() {
    let mut world = hotspot(Forwarded::Tunnel);
    for to in ["192.168.137.1", "192.168.137.77", OWN] {
        let frame = from_client(&udp(at(PHONE, 40_000), at(to, 445), b"x"));
        world.give(CLIENTS, Towards::System, frame.clone());
        assert_eq!(world.at_system(false).last(), Some(&frame), "{to}");
    }
    assert!(world.take_got().is_empty());
}

#[test]
fn clients_bypass_the_tunnel_by_default() {
    let mut world = hotspot(Forwarded::Direct);
    let packet = tcp(at(PHONE, 40_000), at(SERVER, 443), SYN, b"");
    world.give(CLIENTS, Towards::System, from_client(&packet));
    assert_eq!(world.at_system(false), [from_client(&packet)]);
    // The packets leave unmasqueraded, after the adapters have been listed.
    world.send(&packet);
    assert!(world.passed().is_empty());
    world.wait(std::time::Duration::from_millis(20));
    for _ in 0..5 {
        world.send(&packet);
    }
    assert_eq!(world.passed(), vec![sent(&packet); 6]);
    assert_eq!(world.looks, 1);
    assert!(world.take_got().is_empty());
}

#[test]
fn what_has_a_strange_source_is_forwarded_only_when_adapters_were_listed_after_it() {
    let mut world = hotspot(Forwarded::Direct);
    let wait = std::time::Duration::from_millis(20);
    // This machine has a new address, but the adapters cannot be listed.
    let new = "192.168.1.11";
    let of_mole = udp(at(new, 50_000), at(SERVER, 5000), b"of the mole");
    world.mole(Protocol::Udp, at(new, 50_000), at(SERVER, 5000));
    world.tap.fails = true;
    world.send(&of_mole);
    world.wait(wait);
    assert!(world.passed().is_empty());
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Owner), 1);
    // The address does not count as foreign afterwards.
    world.send(&of_mole);
    world.wait(wait);
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    // Packets that wait when the tap fails are dropped.
    world.send(&of_mole);
    world.pipeline.drop_waiting();
    world.wait(wait);
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Owner), 3);
    // Once the list can be read, it counts, although it is unchanged.
    world.tap.fails = false;
    world.send(&of_mole);
    world.wait(wait);
    assert_eq!(world.passed(), [sent(&of_mole)]);
}

#[test]
fn what_a_client_has_damaged_or_sent_too_far_is_dropped() {
    let mut world = hotspot(Forwarded::Tunnel);
    let (phone, server) = (at(PHONE, 40_000), at(SERVER, 5000));
    let mut damaged = udp(phone, server, b"damaged");
    *damaged.last_mut().unwrap() ^= 1;
    world.give(CLIENTS, Towards::System, from_client(&damaged));
    let mut last_hop = udp(phone, server, b"far");
    last_hop[8] = 1;
    let header = etherparse::Ipv4Header::from_slice(&last_hop).unwrap().0;
    last_hop[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    world.give(CLIENTS, Towards::System, from_client(&last_hop));
    assert!(world.take_got().is_empty() && world.at_system(false).is_empty());
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Checksum), 1);
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::HopLimit), 1);
    // A card that has verified a checksum need not have written it.
    let left = left_to_the_card(udp(phone, server, b"left"));
    world.give(CLIENTS, Towards::System, from_client(&left));
    assert_eq!(world.take_got().len(), 1);
}

#[test]
fn one_port_of_two_machines_is_two_flows() {
    let mut world = hotspot(Forwarded::Tunnel);
    let server = at(SERVER, 5000);
    let (mole, phone) = (at(OWN, 40_000), at(PHONE, 40_000));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"of the mole"));
    world.give(
        CLIENTS,
        Towards::System,
        from_client(&udp(phone, server, b"of the phone")),
    );
    let got = world.take_got();
    let ports: Vec<_> = got
        .iter()
        .map(|packet| datagram(packet).unwrap().0)
        .collect();
    assert_eq!(ports[0], at(TUNNEL, 40_000));
    assert_ne!(ports[1], ports[0]);
    world.reply(&udp(server, ports[1], b"to the phone"));
    world.reply(&udp(server, ports[0], b"to the mole"));
    let last = world.tap.wire.last().unwrap();
    assert_eq!(datagram(&last.frame[14..]).unwrap().1, phone);
    let stack = world.at_system(true);
    assert_eq!(datagram(&stack[0][14..]).unwrap().1, mole);
}

/// A WireGuard data message.
const SEALED: [u8; 64] = {
    let mut message = [0x5a; 64];
    [message[0], message[1], message[2], message[3]] = [4, 0, 0, 0];
    message
};

fn outer_adapter(address: &str) -> Adapter {
    Adapter {
        index: OUTER,
        name: "Outer".into(),
        medium: Medium::Ip,
        mac: [0; 6],
        mtu: 1420,
        addresses: vec![address.parse::<std::net::IpAddr>().unwrap().into()],
        leads_out: true,
    }
}

/// Another tunnel has the default route, by an adapter without Ethernet, and its driver in the
/// kernel sends its datagrams by the card.
#[test]
fn another_tunnel_carries_this_one() {
    for allowed in [&["mole"][..], &[]] {
        let mut world = World::new(&Setup {
            allowed: allowed.to_vec(),
            route: OUTER,
            ..Setup::default()
        });
        let inner = "10.99.0.5";
        world.tap.adapters.push(outer_adapter(inner));
        world.look();
        let (mole, server) = (at(inner, 50_000), at(SERVER, 5000));
        world.mole(Protocol::Udp, mole, server);
        world.give(OUTER, Towards::Card, udp(mole, server, b"hello"));
        let outside = at(TUNNEL, 50_000);
        assert_eq!(world.take_got(), [udp(outside, server, b"hello")]);
        assert_eq!(world.pipeline.mtu(), 1340);
        // The frame is a packet without a link header.
        world.give(OUTER, Towards::Card, udp(mole, server, b"again"));
        let last = world.tap.wire.last().unwrap().clone();
        assert!(last.made && last.adapter == OUTER && last.frame[0] == 0x45);
        world.reply(&udp(server, outside, b"hello"));
        assert_eq!(world.at_system(true), [udp(server, mole, b"hello")]);
        // The outer tunnel's own datagrams leave by the card unchanged.
        let outer = |port, message: &[u8]| udp(at(OWN, port), at("203.0.113.200", 51_820), message);
        world.send(&outer(60_000, &SEALED));
        world.wait(std::time::Duration::from_millis(20));
        world
            .system
            .socket(Protocol::Udp, KERNEL, at(OWN, 60_001), None);
        world.send(&outer(60_001, &SEALED));
        world.wait(std::time::Duration::from_millis(20));
        let wire = &world.tap.wire;
        let left = wire.iter().filter(|it| it.adapter == UPLINK);
        let left: Vec<_> = left.map(|it| it.frame.clone()).collect();
        let expected = [60_000, 60_001].map(|port| sent(&outer(port, &SEALED)));
        assert_eq!(left, expected, "{allowed:?}");
        world.take_got();
        // No other packet of selected applications leaves by the card; without rules every
        // application is selected.
        world.mole(Protocol::Udp, at(OWN, 50_000), server);
        world.mole(Protocol::Tcp, at(OWN, 50_000), server);
        world.wait(std::time::Duration::from_millis(100));
        world.send(&outer(50_000, &SEALED));
        world.send(&outer(50_000, b"of the mole"));
        world.send(&tcp(at(OWN, 50_000), server, SYN, b""));
        assert_eq!(world.take_got().len(), 3, "{allowed:?}");
        if allowed.is_empty() {
            world.send(&outer(60_002, b"of the system, and not sealed"));
            world.send(&echo(OWN, SERVER, 9, true));
            world.wait(std::time::Duration::from_millis(20));
            assert_eq!(world.take_got().len(), 2);
        }
        let wire = &world.tap.wire;
        let left = wire.iter().filter(|it| it.adapter == UPLINK);
        assert_eq!(left.count(), 2, "{allowed:?}");
    }
}

/// The outer tunnel sends before it is known that it carries this one.
#[test]
fn another_tunnel_is_let_out_as_soon_as_it_is_known() {
    let mut world = World::new(&Setup {
        allowed: vec![],
        route: OUTER,
        ..Setup::default()
    });
    let outer = udp(at(OWN, 60_000), at("203.0.113.200", 51_820), &SEALED);
    world
        .system
        .socket(Protocol::Udp, KERNEL, at(OWN, 60_000), None);
    let inner = "10.99.0.5";
    world.tap.adapters.push(outer_adapter(inner));
    world.peer.is_silent = true;
    world.look();
    let by_card = |world: &World| {
        let wire = world.tap.wire.iter();
        wire.filter(|it| it.adapter == UPLINK).count()
    };
    // The packet goes into this tunnel, whose first message leaves by the outer tunnel's adapter.
    world.send(&outer);
    assert_eq!(by_card(&world), 0);
    assert_eq!(world.tap.wire.len(), 1);
    world.wait(std::time::Duration::from_millis(100));
    world.send(&outer);
    world.wait(std::time::Duration::from_millis(20));
    assert_eq!(by_card(&world), 1);
}

/// DHCP has assigned another address, and no notification has come yet.
#[test]
fn a_new_address_is_this_machines_as_soon_as_it_sends() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at("192.168.1.77", 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    let addresses = &mut world.tap.adapters[0].addresses;
    addresses.push(ipnet::IpNet::new(mole.ip(), 24).unwrap());
    world.send(&udp(mole, server, b"hello"));
    world.wait(std::time::Duration::from_millis(20));
    assert!(world.passed().is_empty());
    assert_eq!(
        world.take_got(),
        [udp(at(TUNNEL, 50_000), server, b"hello")]
    );
}

/// As with dial-up adapters.
#[test]
fn an_adapter_whose_addresses_are_not_known_lets_nothing_by() {
    let mut world = World::with(&["mole"]);
    world.tap.adapters[0].addresses.clear();
    world.tap.adapters.push(Adapter {
        index: OUTER,
        name: "Other".into(),
        medium: Medium::Ethernet,
        mac: [2; 6],
        mtu: 1500,
        addresses: vec![format!("{OWN}/24").parse().unwrap()],
        leads_out: false,
    });
    world.route = OUTER;
    world.look();
    world.tap.adapters[0].leads_out = true;
    let (mole, bird) = (at("100.64.0.5", 50_000), at("100.64.0.5", 50_001));
    let server = at(SERVER, 5000);
    world.mole(Protocol::Udp, mole, server);
    world.bird(Protocol::Udp, bird, server);
    world.send(&udp(mole, server, b"x"));
    let plain = udp(bird, server, b"x");
    world.send(&plain);
    assert_eq!(world.passed(), [sent(&plain)]);
    assert_eq!(world.take_got().len(), 1);
    world.reply(&udp(server, at(TUNNEL, 50_000), b"y"));
    assert_eq!(world.at_system(true).len(), 1);
}
