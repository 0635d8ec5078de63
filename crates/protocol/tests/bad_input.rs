//! Bad input: no datagram causes a panic, a change of state or an answer, and exactly one drop
//! counter records it.

mod common;

use std::collections::BTreeMap;

use taupe_protocol::DropReason;
use taupe_protocol::message::{Kind, Malformed, classify};
use taupe_protocol::testing::write_data_header;

use common::packets::{ipv4, sized};
use common::random::{SharedNumbers, TestRandom};
use common::raw::{stamp_for, word};
use common::snapshot::{Snapshot, counts, raised};
use common::world::World;
use common::{RAW_INNER, label, secs, stranger};

/// Returns the drop reason of a datagram with random content. Random content never verifies.
fn expected(datagram: &[u8], session: u32) -> DropReason {
    if datagram.len() < 4 {
        return DropReason::Length;
    }
    match (word(datagram, 0), datagram.len()) {
        (1, 148) | (2, 92) => DropReason::Mac1,
        (3, 64) => DropReason::CookieRefused,
        (4, 32..) if word(datagram, 4) == session => DropReason::NotAuthentic,
        (4, 32..) => DropReason::UnknownSession,
        (1..=4, _) => DropReason::Length,
        _ => DropReason::Type,
    }
}

each_backend! {
    fn truncated_at_every_length(crypto) {
        let mut world = World::new(crypto);
        for message in world.messages() {
            for length in 0..message.len() {
                let data = message[0] == 4 && length >= 32;
                let cause = if data { DropReason::NotAuthentic } else { DropReason::Length };
                world.refuses(&message[..length], cause);
            }
        }
        world.still_works();
    }

    fn extended(crypto) {
        let mut world = World::new(crypto);
        for message in world.messages() {
            let data = message[0] == 4;
            let cause = if data { DropReason::NotAuthentic } else { DropReason::Length };
            for length in (message.len() + 1..message.len() + 70).chain([1500, 9000, 65_535]) {
                for byte in [0, 0xff] {
                    let mut extended = message.clone();
                    extended.resize(length, byte);
                    world.refuses(&extended, cause);
                }
            }
        }
        world.still_works();
    }

    fn each_bit_flipped(crypto) {
        let mut world = World::new(crypto);
        for message in world.messages() {
            // Without load, mac2 is not checked.
            let end = match message[0] {
                1 | 2 => message.len() - 16,
                _ => message.len(),
            };
            for bit in 0..end * 8 {
                let mut flipped = message.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let cause = match (message[0], bit / 8) {
                    (_, 0..4) if (1..=4).contains(&word(&flipped, 0)) => DropReason::Length,
                    (_, 0..4) => DropReason::Type,
                    (1 | 2, _) => DropReason::Mac1,
                    (3, _) => DropReason::CookieRefused,
                    (_, 4..8) => DropReason::UnknownSession,
                    _ => DropReason::NotAuthentic,
                };
                world.refuses(&flipped, cause);
            }
        }
        world.still_works();
    }

    fn each_bit_flipped_and_mac1_made_to_fit(crypto) {
        // Anyone who knows the public key can compute mac1. The sender's index is the only field
        // of both messages that mac1 alone protects.
        let mut world = World::new(crypto);
        for (message, fields) in [(world.initiation.clone(), 8..116), (world.response.clone(), 8..60)] {
            for bit in fields.start * 8..fields.end * 8 {
                let mut flipped = message.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                stamp_for(crypto, &world.peer.remote, &mut flipped);
                let cause = match (message[0], bit / 8) {
                    (1, _) => DropReason::InitiationNotAuthentic,
                    (_, 8..12) => DropReason::UnknownHandshake,
                    _ => DropReason::ResponseNotAuthentic,
                };
                world.refuses(&flipped, cause);
            }
        }
        world.still_works();
    }

    fn replayed(crypto) {
        let mut world = World::new(crypto);
        for (message, cause) in [
            (world.data.clone(), DropReason::Replayed),
            (world.cookie_reply.clone(), DropReason::CookieRefused),
            (world.response.clone(), DropReason::UnknownHandshake),
            (world.initiation.clone(), DropReason::InitiationReplayed),
        ] {
            let before = counts(&world.net.nodes[0]);
            world.net.inject(0, world.peer.address, &message);
            assert_eq!(raised(&world.net.nodes[0], &before), [], "the first is taken");
            for _ in 0..3 {
                world.refuses(&message, cause);
            }
        }
    }

    fn reflected(crypto) {
        let mut world = World::new(crypto);
        let packet = ipv4(world.net.nodes[0].inner, RAW_INNER, b"out");
        world.net.send(0, &packet);
        world.net.nodes[0].backlog = 512;
        world.net.inject(0, world.peer.address, &world.initiation);
        world.net.nodes[0].backlog = 0;
        world.net.advance(secs(2));
        for (kind, cause) in [
            (Kind::Initiation, DropReason::Mac1),
            (Kind::Response, DropReason::Mac1),
            (Kind::CookieReply, DropReason::CookieRefused),
            (Kind::Data, DropReason::UnknownSession),
        ] {
            let sent = world.net.last(0, kind).bytes;
            world.refuses(&sent, cause);
        }
        // The index of a session does not make the message authentic.
        let mut data = world.net.last(0, Kind::Data).bytes;
        data[4..8].copy_from_slice(&world.session.remote_index.to_le_bytes());
        world.refuses(&data, DropReason::NotAuthentic);
    }

    fn unknown_types_and_reserved_bytes(crypto) {
        let mut world = World::new(crypto);
        for message in world.messages() {
            for kind in (0..=255).filter(|kind| !(1..=4).contains(kind)) {
                let mut changed = message.clone();
                changed[0] = kind;
                world.refuses(&changed, DropReason::Type);
            }
            for at in 1..4 {
                for value in 1..=255 {
                    let mut changed = message.clone();
                    changed[at] = value;
                    world.refuses(&changed, DropReason::Type);
                }
            }
        }
        world.still_works();
    }

    fn nothing_and_the_most_there_can_be(crypto) {
        let mut world = World::new(crypto);
        world.refuses(&[], DropReason::Length);
        let mut most = vec![0; 65_535];
        for (kind, cause) in [
            (0, DropReason::Type),
            (1, DropReason::Length),
            (2, DropReason::Length),
            (3, DropReason::Length),
            (4, DropReason::UnknownSession),
            (5, DropReason::Type),
        ] {
            most[0] = kind;
            world.refuses(&most, cause);
        }
        write_data_header(&mut most, world.session.remote_index, 9);
        world.refuses(&most, DropReason::NotAuthentic);
        let packet = sized(RAW_INNER, world.net.nodes[0].inner, 65_535 - 32, 3);
        let whole = world.session.seal(2, &packet);
        assert_eq!(whole.len(), 65_535);
        world.net.inject(0, world.peer.address, &whole);
        assert_eq!(world.net.nodes[0].delivered, [packet]);
    }

    fn batches_of_garbage_in_odd_segments(crypto) {
        let mut world = World::new(crypto);
        let session = world.session.remote_index;
        let mut random = TestRandom::new(9, SharedNumbers::default());
        let before = Snapshot::of(&mut world.net.nodes[0]);
        let mut seen = BTreeMap::new();
        for round in 0..1500 {
            let segment = match round % 6 {
                0 => 148,
                1 => 92,
                2 => 64,
                _ => 1 + random.below(300) as usize,
            };
            let mut batch = vec![0; 1 + random.below(4000) as usize];
            taupe_protocol::Random::fill(&mut random, &mut batch);
            for datagram in batch.chunks_mut(segment) {
                let kind = random.below(7) as u8;
                if let (Some(first), 0..6) = (datagram.first_chunk_mut::<4>(), kind) {
                    *first = [kind, 0, 0, 0];
                }
                if let (Some(index), true) = (datagram.get_mut(4..8), random.below(2) == 0) {
                    index.copy_from_slice(&session.to_le_bytes());
                }
            }
            let counted = counts(&world.net.nodes[0]);
            let mut causes: Vec<DropReason> =
                batch.chunks(segment).map(|datagram| expected(datagram, session)).collect();
            causes.sort_by_key(|cause| *cause as usize);
            for cause in &causes {
                *seen.entry(*cause as usize).or_insert(0) += 1;
            }
            let mark = world.net.mark();
            world.net.inject_batch(0, stranger(), &batch, segment);
            assert_eq!(raised(&world.net.nodes[0], &counted), causes, "round {round}");
            assert_eq!(world.net.mark(), mark, "no answer");
        }
        assert_eq!(Snapshot::of(&mut world.net.nodes[0]), before);
        assert_eq!(seen.len(), 6, "every cause has been seen");
        assert!(seen.values().all(|count| *count > 50), "{seen:?}");
        world.still_works();
    }

    fn true_messages_among_garbage_are_taken(crypto) {
        let mut world = World::new(crypto);
        let packet = ipv4(RAW_INNER, world.net.nodes[0].inner, b"a packet");
        for segment in [64, 65, 100, 147, 149, 1501] {
            let length = segment - 32;
            let packet = sized(RAW_INNER, world.net.nodes[0].inner, length, 1);
            let garbage = |byte: u8| vec![byte; segment];
            let mut almost = world.session.seal(segment as u64, &packet);
            *almost.last_mut().expect("not empty") ^= 0x80;
            let batch = [
                garbage(0),
                world.session.seal(segment as u64, &packet),
                garbage(0xff),
                almost,
                world.session.seal(segment as u64 + 2000, &packet),
                world.session.seal(segment as u64 + 2000, &packet),
                vec![4; 3],
            ]
            .concat();
            let counted = counts(&world.net.nodes[0]);
            let delivered = world.net.nodes[0].delivered.len();
            world.net.inject_batch(0, world.peer.address, &batch, segment);
            let expected =
                [DropReason::Length, DropReason::Type, DropReason::Type, DropReason::NotAuthentic, DropReason::Replayed];
            assert_eq!(raised(&world.net.nodes[0], &counted), expected, "{segment}");
            assert_eq!(world.net.nodes[0].delivered[delivered..], [packet.clone(), packet]);
        }
        // If the segment size is wrong, no message of the batch is accepted.
        let batch = [world.session.seal(9000, &packet), world.session.seal(9001, &packet)].concat();
        let before = world.net.nodes[0].delivered.len();
        for segment in [1, 7, batch.len() / 2 - 1, batch.len() / 2 + 1, batch.len()] {
            world.net.inject_batch(0, world.peer.address, &batch, segment);
        }
        assert_eq!(world.net.nodes[0].delivered.len(), before);
    }

    fn more_than_one_call_of_the_aead_takes(crypto) {
        // Packets are opened in groups of 64; a batch has up to 2,047.
        let mut world = World::new(crypto);
        let packet = sized(RAW_INNER, world.net.nodes[0].inner, 32, 5);
        let batch: Vec<u8> = (10..1010).flat_map(|n| world.session.seal(n, &packet)).collect();
        world.net.inject_batch(0, world.peer.address, &batch, 64);
        assert_eq!(world.net.nodes[0].delivered.len(), 1000);
        let keepalives: Vec<u8> = (2000..4047).flat_map(|n| world.session.seal(n, &[])).collect();
        let counted = counts(&world.net.nodes[0]);
        world.net.inject_batch(0, world.peer.address, &keepalives, 32);
        assert_eq!(raised(&world.net.nodes[0], &counted), []);
        let rx_bytes = world.net.nodes[0].device.status().peers[0].rx_bytes;
        assert_eq!(rx_bytes, 148 + 32 + 64 * 1000 + 32 * 2047);
    }

    fn a_device_that_is_down_or_has_no_key_takes_nothing(crypto) {
        for down in [true, false] {
            let mut world = World::new(crypto);
            if down {
                world.net.set_down(0);
            } else {
                world.net.set_private_key(0, None, label(0));
            }
            for (message, cause) in [
                (world.initiation.clone(), DropReason::NotReady),
                (world.response.clone(), DropReason::NotReady),
                (world.cookie_reply.clone(), DropReason::CookieRefused),
            ] {
                world.refuses(&message, cause);
            }
            if down {
                let data = world.data.clone();
                world.refuses(&data, DropReason::UnknownSession);
            }
        }
    }

    fn handle_message_does_not_trust_its_caller(crypto) {
        let mut world = World::new(crypto);
        let before = Snapshot::of(&mut world.net.nodes[0]);
        let now = world.net.now_at(0);
        let from = stranger().into();
        for message in world.messages() {
            for length in 0..message.len() {
                let counted = counts(&world.net.nodes[0]);
                let device = &mut world.net.nodes[0].device;
                device.handle_message(now, from, &message[..length], 0);
                let data = message[0] == 4 && length >= 32;
                let cause = if data { DropReason::Type } else { DropReason::Length };
                assert_eq!(raised(&world.net.nodes[0], &counted), [cause]);
            }
        }
        let counted = counts(&world.net.nodes[0]);
        let data = world.data.clone();
        world.net.nodes[0].device.handle_message(now, from, &data, 0);
        assert_eq!(raised(&world.net.nodes[0], &counted), [DropReason::Type]);
        assert_eq!(Snapshot::of(&mut world.net.nodes[0]), before);
    }
}

#[test]
fn every_length_and_type_is_told_apart() {
    for length in 0..200 {
        for kind in 0..8 {
            let mut datagram = vec![0; length];
            if let Some(first) = datagram.first_mut() {
                *first = kind;
            }
            let result = match (length, kind) {
                (0..4, _) => Err(Malformed::Length),
                (148, 1) => Ok(Kind::Initiation),
                (92, 2) => Ok(Kind::Response),
                (64, 3) => Ok(Kind::CookieReply),
                (32.., 4) => Ok(Kind::Data),
                (_, 1..=4) => Err(Malformed::Length),
                _ => Err(Malformed::Type),
            };
            assert_eq!(classify(&datagram), result, "{length} bytes of type {kind}");
        }
    }
}
