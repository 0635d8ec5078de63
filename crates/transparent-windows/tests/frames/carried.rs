//! Packets in the tunnel: the longest, fragments, incomplete checksums, and their paths.

use std::time::Duration;

use taupe_transparent_windows::{FrameDropReason, Protocol, Towards};

use crate::packets::{
    ACK, CARD, GATEWAY, at, datagram, in_fragments, left_to_the_card, loose_udp, received, sent,
    tcp, udp,
};
use crate::world::{
    ENDPOINT, OWN, OWN6, PORT, SERVER, SERVER6, Setup, TUNNEL, TUNNEL6, UPLINK, World,
};

#[test]
fn the_longest_fits_the_card_and_longer_is_told() {
    for (endpoint, mtu, expected) in [
        (ENDPOINT, None, 1420),
        ("2001:db8:5::5", None, 1420),
        (ENDPOINT, Some(1440), 1440),
        (ENDPOINT, Some(1500), 1440),
        ("2001:db8:5::5", Some(1500), 1420),
        (ENDPOINT, Some(1300), 1300),
    ] {
        let mut world = World::new(&Setup {
            mtu,
            endpoint,
            ..Setup::default()
        });
        let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
        world.mole(Protocol::Udp, mole, server);
        world.send(&udp(mole, server, b"first"));
        assert_eq!(world.pipeline.mtu(), expected);
        world.take_got();
        let mtu = usize::from(expected);
        world.send(&udp(mole, server, &vec![1; mtu - 28]));
        assert_eq!(world.take_got().pop().map(|packet| packet.len()), Some(mtu));
        let answers = world.at_system(true).len();
        world.send(&udp(mole, server, &vec![1; mtu - 27]));
        assert!(world.take_got().is_empty());
        let told = world.at_system(true).split_off(answers);
        assert_eq!(told.len(), 1);
        // "Fragmentation needed" with the MTU (RFC 1191).
        assert_eq!(told[0][14 + 20..14 + 22], [3, 4]);
        assert_eq!(told[0][14 + 26..14 + 28], expected.to_be_bytes());
        // A packet without "don't fragment" is fragmented.
        world.send(&loose_udp(mole, server, &vec![1; mtu]));
        assert_eq!(world.take_got().len(), 2);
        assert!(world.passed().is_empty());
    }
}

#[test]
fn a_card_with_less_room_makes_the_tunnel_smaller() {
    let mut world = World::with(&["mole"]);
    assert_eq!((world.pipeline.mtu(), world.tap.decrement), (1420, 80));
    world.tap.adapters[0].mtu = 1400;
    world.tap.changed = true;
    world.run();
    assert_eq!((world.pipeline.mtu(), world.tap.decrement), (1320, 80));
}

#[test]
fn checksums_that_were_left_to_the_card_are_completed() {
    for (own, server, tunnel) in [(OWN, SERVER, TUNNEL), (OWN6, SERVER6, TUNNEL6)] {
        let mut world = World::with(&["mole"]);
        let (mole, server) = (at(own, 50_000), at(server, 443));
        world.mole(Protocol::Tcp, mole, server);
        world.mole(Protocol::Udp, mole, server);
        world.send(&left_to_the_card(tcp(mole, server, ACK, b"data")));
        world.send(&left_to_the_card(udp(mole, server, b"data")));
        let outside = at(tunnel, 50_000);
        let expected = [
            tcp(outside, server, ACK, b"data"),
            udp(outside, server, b"data"),
        ];
        assert_eq!(world.take_got(), expected);
    }
    // Packets of unselected applications stay unchanged.
    let mut world = World::with(&["mole"]);
    let (bird, server) = (at(OWN, 50_000), at(SERVER, 443));
    world.bird(Protocol::Tcp, bird, server);
    let packet = left_to_the_card(tcp(bird, server, ACK, b"data"));
    world.send(&packet);
    assert_eq!(world.passed(), [sent(&packet)]);
}

#[test]
fn fragments_follow_their_first() {
    let mut world = World::with(&["mole"]);
    let (mole, bird, server) = (at(OWN, 50_000), at(OWN, 50_001), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.bird(Protocol::Udp, bird, server);
    let payload = vec![7; 3000];
    let mut second = in_fragments(&loose_udp(bird, server, &payload), 1200);
    // Another packet between the same hosts.
    for fragment in &mut second {
        fragment[4..6].copy_from_slice(&[0, 9]);
        fragment[10..12].fill(0);
        let header = etherparse::Ipv4Header::from_slice(fragment).unwrap().0;
        fragment[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    }
    let first = in_fragments(&loose_udp(mole, server, &payload), 1200);
    world.send(&first[1]);
    for (mole, bird) in first.iter().zip(&second) {
        world.send(mole);
        world.send(bird);
    }
    let frames: Vec<_> = second.iter().map(|packet| sent(packet)).collect();
    assert_eq!(world.passed(), frames);
    assert_eq!(world.take_got().len(), first.len());
    // Fragments from the tunnel are reassembled,
    let outside = at(TUNNEL, 50_000);
    for fragment in in_fragments(&loose_udp(server, outside, &payload), 1200) {
        world.reply(&fragment);
    }
    // and fragmented again for the card.
    let pieces = world.at_system(true);
    assert_eq!(pieces.len(), 3);
    let whole: Vec<u8> = pieces
        .iter()
        .flat_map(|piece| piece[34..].to_vec())
        .collect();
    assert_eq!(whole, udp(server, mole, &payload)[20..]);
}

#[test]
fn frames_go_by_the_way_that_the_system_goes() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"x"));
    world.send(&udp(mole, server, b"y"));
    let made: Vec<_> = world.tap.wire.iter().filter(|it| it.made).collect();
    assert!(!made.is_empty());
    for arrived in made {
        let frame = &arrived.frame;
        assert_eq!(frame[..12], [GATEWAY, CARD].concat()[..]);
        let (from, to, _) = datagram(&frame[14..]).unwrap();
        assert_eq!((from, to), (at(OWN, PORT), at(ENDPOINT, 443)));
        // The hop limit is the one the system uses.
        assert_eq!(frame[14 + 8], 61);
    }
    // Another gateway is used after half a minute, or at once when adapters have changed.
    let asked = |world: &World| world.tap.wire.iter().filter(|it| !it.made).count();
    let before = asked(&world);
    world.send(&udp(mole, server, b"z"));
    assert_eq!(asked(&world), before);
    world.wait(Duration::from_secs(31));
    world.send(&udp(mole, server, b"z"));
    assert!(asked(&world) > before);
    let before = asked(&world);
    world.tap.adapters[0]
        .addresses
        .push("192.168.1.11/24".parse().unwrap());
    world.tap.changed = true;
    world.send(&udp(mole, server, b"z"));
    assert!(asked(&world) > before);
}

#[test]
fn vlan_tags_are_kept() {
    let mut world = World::with(&["mole"]);
    let (mole, bird, server) = (at(OWN, 50_000), at(OWN, 50_001), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.bird(Protocol::Udp, bird, server);
    let tagged = |frame: Vec<u8>| {
        let tags = [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6];
        [&frame[..12], &tags, &frame[12..]].concat()
    };
    let plain = tagged(sent(&udp(bird, server, b"x")));
    world.give(UPLINK, Towards::Card, plain.clone());
    world.give(
        UPLINK,
        Towards::Card,
        tagged(sent(&udp(mole, server, b"x"))),
    );
    assert_eq!(world.passed(), [plain]);
    assert_eq!(world.take_got().len(), 1);
    world.reply(&udp(server, at(TUNNEL, 50_000), b"y"));
    assert_eq!(
        world.at_system(true),
        [tagged(received(&udp(server, mole, b"y")))]
    );
}

#[test]
fn a_peer_that_moves_is_followed() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"x"));
    world.take_got();
    world.peer.address = at("203.0.113.99", 4444);
    world.reply(&udp(server, at(TUNNEL, 50_000), b"from elsewhere"));
    assert_eq!(world.at_system(true).len(), 1);
    world.send(&udp(mole, server, b"there"));
    world.send(&udp(mole, server, b"again"));
    assert_eq!(world.take_got().len(), 2);
    // An unauthenticated sender does not become the endpoint.
    let noise = udp(at("203.0.113.66", 1), at(OWN, PORT), &[4; 64]);
    world.receive(&noise);
    world.send(&udp(mole, server, b"still"));
    assert_eq!(world.take_got().len(), 1);
}

#[test]
fn what_is_damaged_is_not_opened() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"x"));
    let mut damaged = received(&udp(at(ENDPOINT, 443), at(OWN, PORT), &[1; 148]));
    *damaged.last_mut().unwrap() ^= 1;
    world.give(UPLINK, Towards::System, damaged);
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Checksum), 1);
    assert!(world.at_system(false).is_empty(), "nobody else gets it");
}

#[test]
fn sessions_are_renewed_and_go_on() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    let outside = at(TUNNEL, 50_000);
    for second in 0..400 {
        world.send(&udp(mole, server, &[second as u8]));
        world.reply(&udp(server, outside, &[second as u8]));
        world.wait(Duration::from_secs(1));
    }
    assert_eq!(world.take_got().len(), 400);
    assert_eq!(world.at_system(true).len(), 400);
    assert!(world.passed().is_empty());
}

#[test]
fn datagrams_that_come_in_pieces_are_the_sockets() {
    let mut world = World::with(&["mole"]);
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"x"));
    let answer = udp(server, at(TUNNEL, 50_000), &[7; 900]);
    let message = world.sealed(&answer);
    let datagram = loose_udp(at(ENDPOINT, 443), at(OWN, PORT), &message);
    let pieces = in_fragments(&datagram, 512);
    for piece in &pieces {
        world.receive(piece);
    }
    let frames: Vec<_> = pieces.iter().map(|piece| received(piece)).collect();
    assert_eq!(world.at_system(false), frames);
    let from = at(ENDPOINT, 443);
    world.pipeline.handle_datagram(from, 0, &message);
    world.run();
    assert_eq!(
        world.at_system(true),
        [received(&udp(server, mole, &[7; 900]))]
    );
}

/// The peer refuses the reply to any other initiation.
#[test]
fn of_initiations_that_come_at_once_the_newest_is_answered() {
    let mut world = World::with(&["mole"]);
    let from = at(ENDPOINT, 443);
    let first = world.initiation();
    world.pipeline.handle_datagram(from, 0, &first);
    for _ in 0..2 {
        let next = world.next_initiation();
        world.pipeline.handle_datagram(from, 0, &next);
    }
    world.run();
    assert_eq!(world.peer.heard, [at(OWN, PORT)]);
}
