//! Properties that hold for any packets.

use proptest::prelude::*;

use super::*;
use crate::fuzzing;

/// Returns the packet with its ends exchanged, as the other end would send it. Every checksum stays
/// valid.
fn mirrored(mut packet: Vec<u8>) -> Vec<u8> {
    let view = View::parse(&packet).unwrap();
    let size = if packet[0] >> 4 == 4 { 4 } else { 16 };
    let at = if size == 4 { 12 } else { 8 };
    let (source, rest) = packet[at..].split_at_mut(size);
    source.swap_with_slice(&mut rest[..size]);
    let (source, rest) = packet[view.at..].split_at_mut(2);
    source.swap_with_slice(&mut rest[..2]);
    packet
}

/// Two threads share the table, and a third reads it.
#[test]
fn both_halves_at_once() {
    const PACKETS: usize = 20_000;
    let tunnel = Tunnel::new();
    let Tunnel {
        translator,
        mut outgoing,
        mut incoming,
        now,
    } = tunnel;
    let (there, back) = std::sync::mpsc::sync_channel::<(Vec<u8>, Vec<u8>)>(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for i in 0..PACKETS {
                // Runs of packets of one flow, from two addresses with the same ports.
                let local = [V4.local, V4.other][i / 3 % 2];
                let local = socket(local, 5000 + (i / 6 % 30) as u16);
                let packet = udp(local, socket(V4.server, 443), &i.to_be_bytes());
                let mut outer = packet.clone();
                let now = now + Duration::from_millis(i as u64);
                let outcome = outgoing.translate(now, VirtioHeader::default(), &mut outer);
                assert!(matches!(outcome, Outcome::Forward(_)));
                there.send((packet, outer)).unwrap();
            }
        });
        let reading = scope.spawn(move || {
            for (i, (packet, outer)) in back.iter().enumerate() {
                let mut answer = mirrored(outer);
                let now = now + Duration::from_millis(i as u64);
                incoming.batch(now).translate(&mut answer).unwrap();
                assert_eq!(answer, mirrored(packet));
            }
        });
        while !reading.is_finished() {
            assert!(translator.flow_count() <= 60);
        }
    });
    assert_eq!(translator.flow_count(), 60);
}

proptest! {
    #[test]
    fn out_and_in_again_is_the_packet(
        v6: bool,
        is_tcp: bool,
        ports in prop::collection::vec((any::<u16>(), 0u8..4, 0u8..2), 1..10),
        flags in 0u8..64,
        payload in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let family = if v6 { V6 } else { V4 };
        let mut tunnel = Tunnel::new();
        let mut sent = Vec::new();
        for (port, remote, local) in ports {
            let local = socket(if local == 0 { family.local } else { family.other }, port);
            let remote = match remote {
                0 => socket(family.public_dns, 53),
                1 => socket(family.server, 53),
                remote => socket(family.server, 440 + u16::from(remote)),
            };
            let packet = if is_tcp {
                tcp(local, remote, flags, &payload)
            } else {
                udp(local, remote, &payload)
            };
            let outer = tunnel.send(&packet);
            prop_assert_eq!(outer.len(), packet.len());
            prop_assert!(fuzzing::is_intact(&outer));
            sent.push((packet, outer));
        }
        for (packet, outer) in sent {
            prop_assert_eq!(tunnel.receive(&mirrored(outer)), mirrored(packet));
        }
    }

    #[test]
    fn any_bytes_are_carried_or_dropped(data in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzzing::translate(&data);
    }

    /// Packets with small errors, which pass more checks than random bytes.
    #[test]
    fn damaged_packets_are_carried_or_dropped(
        steps in prop::collection::vec(
            (any::<(bool, bool, bool, u8)>(), 0u8..64, 0usize..60, any::<(usize, u8)>()), 1..12,
        ),
    ) {
        let mut tunnel = Tunnel::new();
        for ((v6, out, is_error, kind), flags, len, (at, mask)) in steps {
            let family = if v6 { V6 } else { V4 };
            let (mut from, mut to) = (socket(family.local, 5000), socket(family.server, 443));
            if !out {
                (from, to) = (to, socket(family.tunnel, 5000));
            }
            let payload = vec![kind; len];
            let mut packet = match kind % 3 {
                0 => udp(from, to, &payload),
                1 => tcp(from, to, flags, &payload),
                _ => echo(from.ip(), to.ip(), 5000, out),
            };
            if is_error {
                let quoted = mirrored(packet);
                packet = icmp_error(from.ip(), to.ip(), &quoted);
            }
            let at = at % packet.len();
            packet[at] ^= mask & kind;
            let intact = fuzzing::is_intact(&packet);
            if out {
                let mut after = packet.clone();
                if let Outcome::Forward(_) = tunnel.outcome(VirtioHeader::default(), &mut after) {
                    prop_assert_eq!(fuzzing::is_intact(&after), intact);
                }
            } else if let Ok(Some(after)) = tunnel.arrive(&packet) {
                prop_assert_eq!(fuzzing::is_intact(&after), intact);
            }
        }
    }
}
