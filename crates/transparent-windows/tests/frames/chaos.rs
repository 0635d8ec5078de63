//! Random frames in random order: nothing panics, and no payload of the selected application ever
//! leaves outside the tunnel.

use std::time::Duration;

use proptest::prelude::*;
use taupe_config::file::Forwarded;
use taupe_transparent_windows::{Protocol, Towards};

use crate::packets::{
    at, echo, in_fragments, left_to_the_card, loose_udp, received, sent, tcp, udp,
};
use crate::world::{
    CLIENTS, NAMES, OWN, OWN6, PORT, SERVER, SERVER6, Setup, TUNNEL, UPLINK, World,
};

/// Contained in every packet of mole.
const SECRET: &[u8] = b"what the mole says";
/// Contained in every packet of bird.
const PLAIN: &[u8] = b"what the bird says";

#[derive(Clone, Debug)]
enum Step {
    Says {
        mole: bool,
        tcp: bool,
        v6: bool,
        port: u16,
        flags: u8,
        to_names: bool,
        left: bool,
    },
    InPieces {
        mole: bool,
        first: bool,
    },
    Answer {
        tcp: bool,
        port: u16,
    },
    Clear {
        tcp: bool,
        port: u16,
    },
    Raw {
        adapter: u32,
        out: bool,
        bytes: Vec<u8>,
    },
    Bent {
        out: bool,
        at: usize,
        to: u8,
    },
    Wait(u64),
    Silence(bool),
    Opens {
        mole: bool,
        port: u16,
    },
    Closes {
        port: u16,
    },
    Adapters(u16),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let port = 0u16..4;
    prop_oneof![
        8 => (any::<[bool; 4]>(), port.clone(), 0u8..32, any::<bool>()).prop_map(
            |([mole, tcp, v6, to_names], port, flags, left)| Step::Says {
                mole, tcp, v6, port, flags, to_names, left,
            }
        ),
        2 => any::<[bool; 2]>().prop_map(|[mole, first]| Step::InPieces { mole, first }),
        3 => (any::<bool>(), port.clone()).prop_map(|(tcp, port)| Step::Answer { tcp, port }),
        2 => (any::<bool>(), port.clone()).prop_map(|(tcp, port)| Step::Clear { tcp, port }),
        3 => (6u32..10, any::<bool>(), prop::collection::vec(any::<u8>(), 0..120))
            .prop_map(|(adapter, out, bytes)| Step::Raw { adapter, out, bytes }),
        3 => (any::<bool>(), 0usize..80, any::<u8>())
            .prop_map(|(out, at, to)| Step::Bent { out, at, to }),
        3 => (0u64..40_000).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Silence),
        2 => (any::<bool>(), port.clone()).prop_map(|(mole, port)| Step::Opens { mole, port }),
        1 => port.prop_map(|port| Step::Closes { port }),
        1 => (500u16..1600).prop_map(Step::Adapters),
        1 => Just(Step::Close),
    ]
}

/// Even ports are mole's. A packet from such a port carries mole's payload.
fn ends(mole: bool, v6: bool, port: u16) -> (std::net::SocketAddr, std::net::SocketAddr) {
    let port = 50_000 + 2 * port + u16::from(!mole);
    let (own, server) = if v6 { (OWN6, SERVER6) } else { (OWN, SERVER) };
    (at(own, port), at(server, 443))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_selected_program_is_seen(steps in prop::collection::vec(step(), 0..60), tunnel: bool) {
        let mut world = World::new(&Setup {
            dns: vec![NAMES],
            forwarded: if tunnel { Forwarded::Tunnel } else { Forwarded::Direct },
            ..Setup::default()
        });
        let mut said = 0;
        // Sockets exist from the start, or appear within the time that a packet waits.
        for port in 0..2 {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for v6 in [false, true] {
                    let (mole, server) = ends(true, v6, port);
                    world.mole(protocol, mole, server);
                    let (bird, server) = ends(false, v6, port);
                    world.bird(protocol, bird, server);
                }
            }
        }
        for step in steps {
            match step {
                Step::Says { mole, tcp: is_tcp, v6, port, flags, to_names, left } => {
                    let (from, mut to) = ends(mole, v6, port);
                    if mole && port >= 2 {
                        // The socket appears late in the list.
                        let protocol = if is_tcp { Protocol::Tcp } else { Protocol::Udp };
                        world.mole(protocol, from, to);
                    }
                    if to_names && !is_tcp {
                        to.set_port(53);
                    }
                    let words = if mole { SECRET } else { PLAIN };
                    let packet = match is_tcp {
                        true => tcp(from, to, flags, words),
                        false => udp(from, to, words),
                    };
                    let packet = if left { left_to_the_card(packet) } else { packet };
                    said += usize::from(!mole);
                    world.send(&packet);
                }
                Step::InPieces { mole, first } => {
                    let (from, to) = ends(mole, false, 0);
                    let words = if mole { SECRET } else { PLAIN };
                    let whole = loose_udp(from, to, &words.repeat(100));
                    let mut pieces = in_fragments(&whole, 1024);
                    // Fragments of the two applications have different identifications.
                    for piece in &mut pieces {
                        piece[4] = u8::from(mole);
                        let header = etherparse::Ipv4Header::from_slice(piece).unwrap().0;
                        piece[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
                    }
                    for piece in pieces.iter().skip(usize::from(!first)) {
                        world.send(piece);
                    }
                }
                Step::Answer { tcp: is_tcp, port } => {
                    let (from, to) = (at(SERVER, 443), at(TUNNEL, 50_000 + 2 * port));
                    let knows_us = !world.peer.heard.is_empty();
                    if knows_us {
                        world.reply(&match is_tcp {
                            true => tcp(from, to, 16, b"answer"),
                            false => udp(from, to, b"answer"),
                        });
                    }
                }
                Step::Clear { tcp: is_tcp, port } => {
                    let (local, remote) = ends(true, false, port);
                    world.receive(&match is_tcp {
                        true => tcp(remote, local, 16, b"clear"),
                        false => udp(remote, local, b"clear"),
                    });
                }
                Step::Raw { adapter, out, bytes } => {
                    let towards = if out { Towards::Card } else { Towards::System };
                    world.give(adapter, towards, bytes);
                }
                Step::Bent { out, at: place, to } => {
                    let (from, server) = ends(false, false, 1);
                    let (mut frame, towards) = match out {
                        true => (sent(&udp(from, server, PLAIN)), Towards::Card),
                        false => (received(&udp(server, at(OWN, PORT), PLAIN)), Towards::System),
                    };
                    if let Some(byte) = frame.get_mut(place) {
                        *byte = to;
                    }
                    let adapter = if to % 4 == 0 { CLIENTS } else { UPLINK };
                    world.give(adapter, towards, frame);
                }
                Step::Wait(milliseconds) => world.wait(Duration::from_millis(milliseconds)),
                Step::Silence(silent) => world.peer.is_silent = silent,
                Step::Opens { mole, port } => {
                    let (from, to) = ends(mole, false, port);
                    let socket = if mole { World::mole } else { World::bird };
                    socket(&world, Protocol::Tcp, from, to);
                }
                // Only sockets of mole by which nothing is sent. Its process continues.
                Step::Closes { port } => world.system.close(ends(false, true, port).0),
                Step::Adapters(mtu) => {
                    world.tap.adapters[0].mtu = mtu;
                    world.tap.changed = true;
                    world.run();
                }
                Step::Close => {
                    world.pipeline.close(world.now);
                    let now = world.now;
                    world.pipeline.set_up(now);
                    world.give(UPLINK, Towards::Card, sent(&echo(OWN, SERVER, 1, true)));
                }
            }
            for arrived in &world.tap.wire {
                let secret = arrived.frame.windows(SECRET.len()).any(|part| part == SECRET);
                prop_assert!(!secret, "in the clear: {:02x?}", arrived.frame);
            }
        }
        // Bird's packets pass, perhaps after a while.
        world.wait(Duration::from_secs(1));
        let birds = world.passed().into_iter();
        let whole = birds.filter(|frame| frame.ends_with(PLAIN) && frame.len() < 200).count();
        prop_assert!(whole >= said, "{whole} of {said}");
    }
}
