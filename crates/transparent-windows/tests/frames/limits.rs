//! Bounded memory, and packets that must not be believed.

use taupe_transparent_windows::{FrameDropReason, Protocol, Towards};

use crate::packets::{SYN, at, received, sent, tcp, udp};
use crate::world::{OWN, PORT, SERVER, UPLINK, World};

#[test]
fn frames_of_an_unknown_adapter_and_what_is_no_packet_do_not_leave() {
    let mut world = World::with(&["mole"]);
    let packet = udp(at(OWN, 1), at(SERVER, 2), b"x");
    world.give(99, Towards::Card, sent(&packet));
    for cut in 14..sent(&packet).len() {
        world.give(UPLINK, Towards::Card, sent(&packet)[..cut].to_vec());
    }
    assert!(world.passed().is_empty());
    let dropped = world.pipeline.dropped();
    assert_eq!(dropped.count(FrameDropReason::Adapter), 1);
    let cuts = sent(&packet).len() - 14;
    assert_eq!(dropped.count(FrameDropReason::Malformed), cuts as u64);
    // The system decides about malformed packets that it receives.
    world.give(UPLINK, Towards::System, received(&packet)[..30].to_vec());
    assert_eq!(world.at_system(false).len(), 1);
}

#[test]
fn refusals_are_limited() {
    let mut world = World::with(&["mole"]);
    world.pipeline.close(world.now);
    let server = at(SERVER, 443);
    let mole = at(OWN, 50_000);
    world.mole(Protocol::Tcp, mole, server);
    for _ in 0..500 {
        world.send(&tcp(mole, server, SYN, b""));
    }
    assert_eq!(world.at_system(true).len(), 100);
    world.wait(std::time::Duration::from_secs(1));
    world.send(&tcp(mole, server, SYN, b""));
    assert_eq!(world.at_system(true).len(), 101);
    assert!(world.passed().is_empty());
}

#[test]
fn the_tunnels_port_is_nobody_elses() {
    let mut world = World::with(&["mole"]);
    for port in 1..2000 {
        world.receive(&udp(at("198.51.100.66", port), at(OWN, PORT), b"noise"));
    }
    assert!(world.at_system(false).is_empty());
    // Datagrams for another machine are not the tunnel's.
    let other = udp(at("198.51.100.66", 5), at("192.168.1.99", PORT), b"x");
    world.receive(&other);
    assert_eq!(world.at_system(false), [received(&other)]);
}

/// Another program that uses the tunnel's port gets none of its privileges.
#[test]
fn what_leaves_by_the_tunnels_port_is_the_tunnels_own() {
    for name in ["mole", "bird"] {
        let mut world = World::with(&["mole"]);
        let (local, server) = (at(OWN, PORT), at(SERVER, 5000));
        let pid = if name == "mole" { 10 } else { 20 };
        world.system.socket(Protocol::Udp, pid, local, None);
        world.send(&udp(local, server, b"\x04\0\0\0not the tunnel's"));
        let left = world.tap.wire.iter().filter(|it| !it.made);
        let left = left.filter(|it| it.frame.ends_with(b"not the tunnel's"));
        assert_eq!(left.count(), usize::from(name == "bird"));
    }
}

#[test]
fn a_flood_of_handshakes_is_asked_for_cookies() {
    let mut world = World::with(&["mole"]);
    // A valid initiation, sent repeatedly from another address.
    let initiation = world.initiation();
    let cookies = |world: &World| {
        let wire = world.tap.wire.iter();
        wire.filter(|it| it.frame.len() == 14 + 28 + 64).count()
    };
    for (count, port) in [(40, 1), (200, 1000)] {
        for each in 0..count {
            let packet = udp(at("198.51.100.66", port + each), at(OWN, PORT), &initiation);
            world
                .tap
                .to_come
                .push_back((UPLINK, Towards::System, received(&packet)));
        }
        world.run();
        assert_eq!(cookies(&world) > 0, count > 100, "{count}");
    }
}
