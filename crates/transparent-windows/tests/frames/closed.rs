//! Ways in which a selected application's packets could bypass the tunnel.

use std::time::Duration;

use taupe_config::file::Forwarded;
use taupe_transparent_windows::{FrameDropReason, Medium, Protocol, Towards};

use crate::packets::{
    ACK, CARD, CLIENT, HOTSPOT, SYN, at, echo, ethernet, received, sent, tcp, udp,
};
use crate::world::{CLIENTS, OWN, OWN6, SERVER, SERVER6, Setup, TUNNEL, UPLINK, World};

/// The hardware address of a frame does not matter.
#[test]
fn what_is_for_a_group_is_told_by_the_address_of_the_packet() {
    for allowed in [&["mole"][..], &["system"], &[]] {
        for (own, server) in [(OWN, SERVER), (OWN6, SERVER6)] {
            let mut world = World::with(allowed);
            let (mole, server) = (at(own, 50_000), at(server, 5000));
            if allowed != ["system"] {
                world.mole(Protocol::Udp, mole, server);
            }
            for station in [[255; 6], [1, 0, 0x5e, 0, 0, 1]] {
                let frame = ethernet(CARD, station, &udp(mole, server, b"x"));
                world.give(UPLINK, Towards::Card, frame);
            }
            world.wait(Duration::from_millis(20));
            assert!(world.passed().is_empty(), "{allowed:?}");
            assert_eq!(world.take_got().len(), 2, "{allowed:?}");
        }
    }
}

#[test]
fn groups_are_not_in_the_tunnel_and_not_for_selected_programs() {
    for allowed in [&["mole"][..], &[]] {
        let mut world = World::with(allowed);
        let (mole, bird) = (at(OWN, 50_000), at(OWN, 50_001));
        world.mole(Protocol::Udp, mole, mole);
        world.bird(Protocol::Udp, bird, bird);
        let groups = [
            "224.0.0.251",
            "239.1.2.3",
            "255.255.255.255",
            "192.168.1.255",
        ];
        for group in groups {
            let frame = |from| ethernet(CARD, [255; 6], &udp(from, at(group, 5353), b"x"));
            world.give(UPLINK, Towards::Card, frame(mole));
            world.give(UPLINK, Towards::Card, frame(bird));
            // A packet of the system itself.
            world.give(UPLINK, Towards::Card, frame(at(OWN, 137)));
        }
        world.wait(Duration::from_millis(20));
        assert!(world.take_got().is_empty());
        let selected = if allowed.is_empty() { 2 } else { 1 };
        assert_eq!(world.passed().len(), (3 - selected) * groups.len());
        // The broadcast address of another network is an ordinary host here.
        let frame = ethernet(
            CARD,
            [255; 6],
            &udp(mole, at("192.168.137.255", 5353), b"x"),
        );
        world.give(UPLINK, Towards::Card, frame);
        assert_eq!(world.take_got().len(), 1);
    }
}

/// A reply goes where the request came from, or nowhere.
#[test]
fn calls_beside_the_tunnel_are_not_answered_by_the_selected_program() {
    for allowed in [&["mole"][..], &[]] {
        let mut world = World::new(&Setup {
            allowed: allowed.to_vec(),
            disallowed_ips: vec!["192.168.0.0/16"],
            ..Setup::default()
        });
        let (mole, bird, server) = (at(OWN, 7000), at(OWN, 7001), at(SERVER, 443));
        world
            .system
            .socket(Protocol::Tcp, 10, at("0.0.0.0", 7000), None);
        world
            .system
            .socket(Protocol::Tcp, 20, at("0.0.0.0", 7001), None);
        let before = world.pipeline.dropped().count(FrameDropReason::Rules);
        for local in [mole, bird] {
            world.receive(&tcp(server, local, SYN, b""));
            world.send(&tcp(local, server, SYN | ACK, b""));
        }
        let selected = if allowed.is_empty() { 2 } else { 1 };
        assert_eq!(world.passed().len(), 2 - selected);
        assert!(world.take_got().is_empty());
        let dropped = world.pipeline.dropped().count(FrameDropReason::Rules) - before;
        assert_eq!(dropped, selected as u64);
        // If the remote end is outside the tunnel for everybody, the connection is answered.
        let near = at("192.168.1.20", 5000);
        world.receive(&tcp(near, mole, SYN, b""));
        let answer = tcp(mole, near, SYN | ACK, b"");
        world.send(&answer);
        assert_eq!(world.passed().last(), Some(&sent(&answer)));
        // A connection that came from the tunnel is answered there.
        world.send(&tcp(at(OWN, 50_000), server, SYN, b""));
        world.mole(Protocol::Tcp, at(OWN, 50_000), server);
        world.wait(Duration::from_millis(20));
        world.take_got();
        let caller = at("198.51.100.9", 2);
        world.reply(&tcp(caller, at(TUNNEL, 7000), SYN, b""));
        world.send(&tcp(mole, caller, SYN | ACK, b""));
        assert_eq!(world.take_got().len(), 1);
    }
}

/// Another process may listen on the port than an hour ago.
#[test]
fn who_answers_is_looked_up_anew() {
    let mut world = World::with(&["mole"]);
    let (local, server) = (at(OWN, 7000), at(SERVER, 443));
    world.bird(Protocol::Tcp, at(OWN, 50_001), server);
    world
        .system
        .socket(Protocol::Tcp, 20, at("0.0.0.0", 7000), None);
    world.send(&tcp(at(OWN, 50_001), server, SYN, b""));
    world.system.close(at("0.0.0.0", 7000));
    world
        .system
        .socket(Protocol::Tcp, 10, at("0.0.0.0", 7000), None);
    world.wait(Duration::from_millis(100));
    world.send(&tcp(local, server, SYN | ACK, b""));
    assert_eq!(world.passed().len(), 1);
}

/// No router forwards a packet from a link-local address, but the packet would still leave.
#[test]
fn what_is_of_the_link_stays_there() {
    for (own, server) in [("fe80::10", SERVER6), ("169.254.7.7", SERVER)] {
        let mut world = World::with(&["mole"]);
        let addresses = &mut world.tap.adapters[0].addresses;
        addresses.push("169.254.7.7/16".parse().unwrap());
        world.look();
        let (mole, server) = (at(own, 50_000), at(server, 5000));
        world.mole(Protocol::Udp, mole, server);
        world.send(&udp(mole, server, b"x"));
        assert!(world.passed().is_empty(), "{own}");
        assert_eq!(world.take_got().len(), 1, "{own}");
        // A packet to a neighbour passes.
        let neighbour = if mole.is_ipv4() {
            "169.254.1.1"
        } else {
            "fe80::1"
        };
        let near = udp(mole, at(neighbour, 5000), b"x");
        world.send(&near);
        assert_eq!(world.passed(), [sent(&near)]);
        // A packet from a neighbour passes.
        let answer = udp(at(neighbour, 5000), mole, b"y");
        world.receive(&answer);
        assert_eq!(world.at_system(false).last(), Some(&received(&answer)));
    }
    // A packet that only resembles discovery counts as the system's, like all without a socket.
    let mut world = World::with(&["system"]);
    let mut discovery = echo(OWN, SERVER, 1, true);
    discovery[20] = 9;
    world.send(&discovery);
    assert!(world.passed().is_empty());
}

#[test]
fn of_a_medium_that_is_not_known_nothing_passes() {
    let mut world = World::with(&["mole"]);
    let (bird, server) = (at(OWN, 50_001), at(SERVER, 5000));
    world.bird(Protocol::Udp, bird, server);
    world.tap.adapters[1].medium = Medium::Unknown;
    world.tap.adapters[1].addresses = vec!["192.0.2.9/24".parse().unwrap()];
    world.look();
    let packet = udp(bird, server, b"x");
    for frame in [sent(&packet), packet.clone(), vec![0; 64], vec![]] {
        world.give(CLIENTS, Towards::Card, frame.clone());
        world.give(CLIENTS, Towards::System, frame);
    }
    assert!(world.tap.wire.is_empty() && world.tap.stack.is_empty());
    assert_eq!(
        world.pipeline.dropped().count(FrameDropReason::Malformed),
        8
    );
    // No frame is made for such an adapter either.
    let mole = at("192.0.2.9", 50_000);
    world.mole(Protocol::Udp, mole, server);
    world.pipeline.close(world.now);
    world.wait(Duration::from_millis(100));
    world.send(&udp(mole, server, b"x"));
    assert!(world.tap.wire.iter().all(|it| it.adapter == UPLINK));
    // By an adapter with known frames everything works as before.
    world.send(&packet);
    assert_eq!(world.passed(), [sent(&packet)]);
}

/// The system itself sends none of these encapsulations.
#[test]
fn packets_that_are_wrapped_in_another_way_do_not_leave() {
    let mut world = World::with(&["mole"]);
    let packet = udp(at(OWN, 50_000), at(SERVER, 5000), b"x");
    let whole = sent(&packet);
    let (stations, kind) = (&whole[..12], &whole[12..14]);
    let tag = [0x81, 0, 0, 5];
    let snap = [0xaa, 0xaa, 3, 0, 0, 0];
    let length = ((packet.len() + 8) as u16).to_be_bytes();
    let wrapped = [
        [stations, &tag, &tag, &tag, kind, &packet].concat(),
        [stations, &[0x91, 0, 0, 5], kind, &packet].concat(),
        [stations, &length, &snap, kind, &packet].concat(),
        [stations, &tag, &length, &snap, kind, &packet].concat(),
        stations.to_vec(),
        vec![],
    ];
    for frame in &wrapped {
        world.give(UPLINK, Towards::Card, frame.clone());
    }
    assert!(world.passed().is_empty());
    let dropped = world.pipeline.dropped().count(FrameDropReason::Malformed);
    assert_eq!(dropped, wrapped.len() as u64);
    // Other LLC frames pass, for example spanning tree.
    let tree = [stations, &[0, 4], &[0x42, 0x42, 3, 0]].concat();
    world.give(UPLINK, Towards::Card, tree.clone());
    assert_eq!(world.passed(), [tree]);
    // The system decides about received frames of this kind.
    for frame in &wrapped {
        world.give(UPLINK, Towards::System, frame.clone());
    }
    assert_eq!(world.at_system(false), wrapped);
}

/// An application that floods with packets of unknown owners does not displace the frames of
/// others.
#[test]
fn those_that_wait_share_the_room() {
    let mut world = World::with(&["mole"]);
    let server = at(SERVER, 5000);
    let one = |port| udp(at(OWN, port), server, b"x");
    for _ in 0..1000 {
        world.send(&one(40_000));
    }
    for port in 0..100 {
        world.send(&one(50_000 + port));
        world.bird(Protocol::Udp, at(OWN, 50_000 + port), server);
    }
    world.bird(Protocol::Udp, at(OWN, 40_000), server);
    assert_eq!(
        world.pipeline.dropped().count(FrameDropReason::Owner),
        1100 - 256
    );
    world.wait(Duration::from_millis(20));
    let passed = world.passed();
    assert_eq!(passed.len(), 256);
    for port in 0..100 {
        assert!(passed.contains(&sent(&one(50_000 + port))), "{port}");
    }
}

/// Only this machine itself sends from its addresses.
#[test]
fn what_seems_to_come_from_this_machine_is_no_clients() {
    let mut world = World::new(&Setup {
        forwarded: Forwarded::Tunnel,
        ..Setup::default()
    });
    world.tap.adapters[1]
        .addresses
        .push("192.168.1.77/24".parse().unwrap());
    world.look();
    for own in ["192.168.137.1", OWN] {
        let frame = ethernet(CLIENT, HOTSPOT, &udp(at(own, 5), at(SERVER, 6), b"x"));
        world.give(CLIENTS, Towards::System, frame.clone());
        assert!(world.take_got().is_empty(), "{own}");
        assert_eq!(world.at_system(false).last(), Some(&frame));
    }
}

/// If the numbers were predictable, an attacker's fragments could be reassembled with these.
#[test]
fn numbers_of_packets_do_not_follow_each_other() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    for _ in 0..10 {
        world.send(&udp(mole, server, b"x"));
    }
    let made = world.tap.wire.iter().filter(|it| it.made);
    let numbers: Vec<_> = made
        .map(|it| u16::from_be_bytes([it.frame[18], it.frame[19]]))
        .collect();
    assert!(numbers.len() >= 8, "{numbers:?}");
    let follow = numbers
        .windows(2)
        .filter(|two| two[1] == two[0].wrapping_add(1));
    assert!(follow.count() < 2, "{numbers:?}");
}

/// As with 6to4 or ISATAP, whose adapters are not intercepted.
#[test]
fn what_the_system_wraps_is_judged_by_what_is_in_it() {
    let mut world = World::with(&["mole"]);
    let (mole, bird) = (
        at("2002:c0a8:10a::1", 50_000),
        at("2002:c0a8:10a::1", 50_001),
    );
    let server = at(SERVER6, 443);
    world.mole(Protocol::Udp, at("::", 50_000), server);
    world.bird(Protocol::Udp, at("::", 50_001), server);
    let wrap = |inner: &[u8]| {
        let mut packet = udp(at(OWN, 0), at("192.88.99.1", 0), &inner[8..]);
        packet[9] = 41;
        packet[20..28].copy_from_slice(&inner[..8]);
        packet
    };
    world.send(&wrap(&udp(mole, server, b"of the mole")));
    let plain = wrap(&udp(bird, server, b"of the bird"));
    world.send(&plain);
    world.send(&wrap(&wrap(&udp(bird, server, b"of the bird"))));
    world.wait(Duration::from_millis(20));
    assert_eq!(world.passed(), [sent(&plain)]);
    assert!(world.take_got().is_empty());
}
