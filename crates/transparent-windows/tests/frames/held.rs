//! Packets that arrive before their owner is known.

use std::time::Duration;

use taupe_transparent_windows::{FrameDropReason, Protocol};

use crate::packets::{ACK, SYN, at, in_fragments, loose_udp, sent, tcp, udp};
use crate::system::KERNEL;
use crate::world::{OWN, OWN6, SERVER, SERVER6, Setup, World};

const WAIT: Duration = Duration::from_millis(20);

/// Maximum age of a list that determines an owner.
const RECENT: Duration = Duration::from_millis(100);

#[test]
fn a_connections_first_packet_may_come_before_its_socket() {
    let mut world = World::with(&["mole"]);
    let (mole, bird, server) = (at(OWN, 50_000), at(OWN, 50_001), at(SERVER, 443));
    let open = tcp(bird, server, SYN, b"");
    world.send(&tcp(mole, server, SYN, b""));
    world.send(&open);
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    world.wait(WAIT / 2);
    world.mole(Protocol::Tcp, mole, server);
    world.bird(Protocol::Tcp, bird, server);
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    world.wait(WAIT);
    assert_eq!(world.passed(), [sent(&open)]);
    assert_eq!(world.take_got().len(), 1);
}

#[test]
fn what_nobody_owns_is_the_systems_in_the_end() {
    for (allowed, passes) in [(&["mole"][..], true), (&["system"], false)] {
        let mut world = World::with(allowed);
        let packet = udp(at(OWN, 137), at(SERVER, 137), b"kernel");
        world.send(&packet);
        assert!(world.passed().is_empty());
        world.wait(WAIT);
        assert_eq!(world.passed().len(), usize::from(passes));
        assert_eq!(world.take_got().len(), usize::from(!passes));
        // The next packets pass at once, without another reading.
        let reads = world.system.0.lock().unwrap().reads;
        for _ in 0..50 {
            world.send(&packet);
        }
        assert_eq!(world.system.0.lock().unwrap().reads, reads);
        assert_eq!(world.passed().len(), if passes { 51 } else { 0 });
    }
}

#[test]
fn a_port_that_was_nobodys_is_who_binds_it() {
    for silence in [Duration::from_millis(10), RECENT, 10 * RECENT] {
        let mut world = World::with(&["mole"]);
        let (local, server) = (at(OWN, 50_000), at(SERVER, 5000));
        let nobodys = udp(local, server, b"nobody's");
        world.send(&nobodys);
        world.wait(WAIT);
        world.send(&nobodys);
        assert_eq!(world.passed(), vec![sent(&nobodys); 2]);
        world.wait(silence);
        world.mole(Protocol::Udp, local, server);
        world.send(&udp(local, server, b"of the mole"));
        assert_eq!(world.passed().len(), 2, "{silence:?}");
        assert_eq!(world.take_got().len(), 1, "{silence:?}");
    }
}

#[test]
fn a_port_that_another_process_has_now_is_its() {
    let mut world = World::with(&["mole"]);
    let (local, server) = (at(OWN, 50_000), at(SERVER, 443));
    world.bird(Protocol::Tcp, local, server);
    world.send(&tcp(local, server, SYN, b""));
    world.send(&tcp(local, server, ACK, b"of the bird"));
    assert_eq!(world.passed().len(), 2);
    world.wait(Duration::from_secs(1));
    world.system.close(local);
    world.mole(Protocol::Tcp, local, server);
    world.send(&tcp(local, server, SYN, b""));
    world.send(&tcp(local, server, ACK, b"of the mole"));
    assert_eq!(world.passed().len(), 2);
    assert_eq!(world.take_got().len(), 2);
    // For UDP nothing signals a new socket. The list is read again after 100 ms, whatever else was
    // looked up.
    let local = at(OWN, 50_001);
    world.bird(Protocol::Udp, local, server);
    world.send(&udp(local, server, b"of the bird"));
    assert_eq!(world.passed().len(), 3);
    world.wait(RECENT - Duration::from_millis(1));
    let other = at(SERVER, 444);
    world.send(&udp(local, other, b"of the bird"));
    assert_eq!(world.passed().len(), 4);
    world.system.close(local);
    world.mole(Protocol::Udp, local, server);
    world.wait(Duration::from_millis(1));
    world.send(&udp(local, other, b"of the mole"));
    assert_eq!(world.passed().len(), 4);
    assert_eq!(world.take_got().len(), 1);
}

#[test]
fn what_a_socket_leaves_behind_goes_where_it_went() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 443));
    world.mole(Protocol::Tcp, mole, server);
    world.send(&tcp(mole, server, SYN, b""));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"x"));
    assert_eq!(world.take_got().len(), 2);
    world.system.close(mole);
    world.system.0.lock().unwrap().processes.clear();
    world.wait(Duration::from_secs(5));
    world.send(&tcp(mole, server, 4, b""));
    world.send(&udp(mole, server, b"x"));
    world.wait(WAIT);
    assert!(world.passed().is_empty());
    assert_eq!(world.take_got().len(), 2);
}

/// An unknown program may be a selected one or not.
#[test]
fn a_program_that_is_not_known_is_held_where_it_matters() {
    for (allowed, disallowed, tunnelled) in [
        (&["mole"][..], &[][..], 0),
        (&[], &["bird"], 1),
        (&["system"], &[], 0),
    ] {
        let mut world = World::new(&Setup {
            allowed: allowed.to_vec(),
            disallowed: disallowed.to_vec(),
            disallowed_ips: vec!["198.51.100.200"],
            ..Setup::default()
        });
        // These sockets were created at time 100, by a process that has ended and whose PID was
        // reused.
        world.system.process(30, r"C:\x\mole.exe", 101);
        let (younger, hidden) = (at(OWN, 50_000), at(OWN, 50_001));
        world.system.socket(Protocol::Udp, 30, younger, None);
        world.system.socket(Protocol::Udp, 31, hidden, None);
        for local in [younger, hidden] {
            world.send(&udp(local, at(SERVER, 5000), b"x"));
            assert!(world.passed().is_empty(), "{allowed:?}");
            assert_eq!(world.take_got().len(), tunnelled, "{allowed:?}");
        }
        // A destination that everybody reaches outside the tunnel.
        let plain = udp(hidden, at("198.51.100.200", 5000), b"x");
        world.send(&plain);
        assert_eq!(world.passed(), [sent(&plain)]);
    }
    // Sockets of the kernel count as the system's.
    for (allowed, passes) in [(&["mole"][..], true), (&["system"], false)] {
        let mut world = World::with(allowed);
        let local = at(OWN, 50_000);
        world.system.socket(Protocol::Udp, KERNEL, local, None);
        world.send(&udp(local, at(SERVER, 5000), b"x"));
        assert_eq!(world.passed().len(), usize::from(passes));
        assert_eq!(world.take_got().len(), usize::from(!passes));
    }
}

/// If several sockets share a port, the sender of a packet is unknown.
#[test]
fn of_processes_that_share_a_port_a_selected_one_counts() {
    for (birds, moles) in [
        (OWN, "0.0.0.0"),
        (OWN, "::"),
        ("0.0.0.0", "::"),
        ("0.0.0.0", OWN),
        (OWN, OWN),
    ] {
        let mut world = World::with(&["mole"]);
        let server = at(SERVER, 5000);
        world.bird(Protocol::Udp, at(birds, 50_000), server);
        let alone = udp(at(OWN, 50_000), server, b"of the bird");
        world.send(&alone);
        assert_eq!(world.passed(), [sent(&alone)]);
        // The cached verdict holds for a moment.
        world.mole(Protocol::Udp, at(moles, 50_000), server);
        world.wait(RECENT);
        world.send(&udp(at(OWN, 50_000), server, b"of one of them"));
        assert_eq!(world.passed().len(), 1, "{birds} {moles}");
        assert_eq!(world.take_got().len(), 1, "{birds} {moles}");
    }
}

#[test]
fn what_a_program_sends_last_is_still_its() {
    let mut world = World::with(&["mole"]);
    let (mole, bird) = (at(OWN, 50_000), at(OWN, 50_001));
    world.mole(Protocol::Udp, mole, mole);
    world.bird(Protocol::Udp, bird, bird);
    world.bird(Protocol::Udp, at(OWN, 50_002), bird);
    // Any look-up reads the list and finds them.
    world.send(&udp(at(OWN, 50_002), at(SERVER, 1), b"x"));
    assert_eq!(world.passed().len(), 1);
    // A datagram to a new host, then the end of the program.
    world.wait(RECENT);
    for local in [mole, bird] {
        world.system.close(local);
    }
    world.system.0.lock().unwrap().processes.clear();
    world.send(&udp(mole, at(SERVER, 5000), b"last words"));
    let plain = udp(bird, at(SERVER, 5000), b"last words");
    world.send(&plain);
    assert_eq!(world.take_got().len(), 1);
    assert_eq!(world.passed().len(), 2);
    assert_eq!(world.passed()[1], sent(&plain));
    // Only for a while: after that another process may have the port.
    world.wait(Duration::from_secs(10));
    world.send(&udp(mole, at(SERVER, 5001), b"not its"));
    world.wait(WAIT);
    assert_eq!(world.passed().len(), 3);
}

#[test]
fn sockets_for_all_addresses_and_both_families_are_found() {
    for (bound, own, server) in [
        ("0.0.0.0", OWN, SERVER),
        ("::", OWN, SERVER),
        ("::", OWN6, SERVER6),
        ("::ffff:192.168.1.10", OWN, SERVER),
    ] {
        let mut world = World::with(&["mole"]);
        world.mole(Protocol::Udp, at(bound, 50_000), at(server, 1));
        world.send(&udp(at(own, 50_000), at(server, 5000), b"x"));
        assert_eq!(world.take_got().len(), 1, "{bound}");
    }
    // A socket bound to this address takes precedence over one bound to all.
    let mut world = World::with(&["mole"]);
    world.bird(Protocol::Udp, at("0.0.0.0", 50_000), at(SERVER, 1));
    world.mole(Protocol::Udp, at(OWN, 50_000), at(SERVER, 1));
    world.send(&udp(at(OWN, 50_000), at(SERVER, 5000), b"x"));
    assert_eq!(world.take_got().len(), 1);
}

#[test]
fn without_a_list_nothing_passes_and_little_waits() {
    let mut world = World::with(&["mole"]);
    world.system.0.lock().unwrap().fails = true;
    let server = at(SERVER, 443);
    for port in 0..1000 {
        world.send(&tcp(at(OWN, 40_000 + port), server, SYN, b""));
    }
    let dropped = world.pipeline.dropped().count(FrameDropReason::Owner);
    assert_eq!(dropped, 1000 - 256);
    world.wait(Duration::from_secs(1));
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Owner), 1000);
    assert!(world.pipeline.next_deadline().is_none());
    world.system.0.lock().unwrap().fails = false;
    let bird = at(OWN, 40_000);
    world.bird(Protocol::Tcp, bird, server);
    world.send(&tcp(bird, server, SYN, b""));
    assert_eq!(world.passed().len(), 1);
}

#[test]
fn fragments_wait_with_their_first() {
    let mut world = World::with(&["mole"]);
    let (mole, bird, server) = (at(OWN, 50_000), at(OWN, 50_001), at(SERVER, 5000));
    let pieces = |local| in_fragments(&loose_udp(local, server, &[7; 3000]), 1200);
    let plain = pieces(bird);
    for piece in &plain {
        world.send(piece);
    }
    world.bird(Protocol::Udp, bird, server);
    world.wait(WAIT);
    let frames: Vec<_> = plain.iter().map(|piece| sent(piece)).collect();
    assert_eq!(world.passed(), frames);
    world.wait(Duration::from_secs(3));
    for piece in pieces(mole) {
        world.send(&piece);
    }
    world.mole(Protocol::Udp, mole, server);
    world.wait(WAIT);
    assert_eq!(world.take_got().len(), 3);
    assert_eq!(world.passed().len(), 3);
}
