//! The primitives by themselves, against `reference`. Batches are tested in `tests/`.
//!
//! On a processor without the instructions there is nothing to test.

use super::chacha20::{Blocks, Transpose};
use super::group::{Group, Lane, Place};
use super::poly1305::{LANES, Poly1305x8, Powers, halves};
use super::vector::{LEN, from_u64, load_padded, store, zero};
use super::{Avx512Key, single};
use crate::key::Words;
use crate::poly1305::Poly1305;
use crate::reference::{Message, check_poly1305, check_wycheproof};
use core::mem::MaybeUninit;

/// Poly1305 of a message in one lane, with others of the same length beside it.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
fn poly1305(lane: usize, key: &[u8; 32], message: &[u8]) -> [u8; 16] {
    let other_key = [0xa5; 32];
    let other = vec![0xff; message.len()];
    let of = |i: usize| if i == lane { message } else { &other[..] };
    let keys = core::array::from_fn(|i| load_padded(if i == lane { key } else { &other_key }));
    let [r, s, ..] = halves(keys);
    let mut place = MaybeUninit::uninit();
    let poly = Poly1305x8::start(&mut place, [r, s], 1, 2);

    let quads = message.len() / LEN;
    for at in 0..quads {
        let rows = core::array::from_fn(|i| load_padded(&of(i)[at * LEN..][..LEN]));
        poly.blocks(&halves(rows), u8::MAX);
    }
    for at in (quads * LEN..message.len()).step_by(16) {
        // Only whole blocks: the AEAD has no others.
        let block: [_; 2] = core::array::from_fn(|half| {
            from_u64(&core::array::from_fn(|i| {
                u64::from_le_bytes(of(i)[at + 8 * half..][..8].try_into().unwrap())
            }))
        });
        poly.blocks(&[block], u8::MAX);
    }
    poly.tags()[lane]
}

#[test]
fn poly1305_of_each_lane() {
    if !Avx512Key::is_supported() {
        return;
    }
    let lane = core::cell::Cell::new(0);
    check_poly1305(&|key, message| {
        lane.set((lane.get() + 1) % LANES);
        // SAFETY: the processor has the instructions.
        unsafe { poly1305(lane.get(), key, message) }
    });
}

/// Poly1305 of one packet: pairs of 64 bytes with a block in each lane, in two parts of which the
/// second continues the first, and the rest by words.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
fn poly1305_by_itself(key: &[u8; 32], message: &[u8]) -> [u8; 16] {
    let words = key.as_chunks().0;
    let mut poly = Poly1305::new(core::array::from_fn(|i| u64::from_le_bytes(words[i])));
    let powers = Powers::new(poly.r());
    let (pairs, odd) = message.as_chunks::<LEN>().0.as_chunks();
    let (first, second) = pairs.split_at(pairs.len() / 2);
    poly.accumulator.h = powers.absorb(poly.accumulator.h, first);
    poly.accumulator.h = powers.absorb(poly.accumulator.h, second);
    poly.padded(odd.as_flattened());
    poly.padded(message.as_chunks::<LEN>().1);
    poly.tag()
}

#[test]
fn poly1305_of_a_packet_by_itself() {
    if !Avx512Key::is_supported() {
        return;
    }
    check_poly1305(&|key, message| {
        // SAFETY: the processor has the instructions.
        unsafe { poly1305_by_itself(key, message) }
    });
}

/// Blocks of one packet, `4 * N` at a time, from block 5 on.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
fn blocks_by_itself<const N: usize>(key: &[u32; 8], nonce: [u32; 3]) -> Vec<[u8; LEN]> {
    let mut stream = [zero(); 24];
    single::blocks::<N>(key, nonce, 5, &mut stream);
    let block = |vector| {
        let mut bytes = [0; LEN];
        store(&mut bytes, vector);
        bytes
    };
    stream[..4 * N]
        .iter()
        .map(|vector| block(*vector))
        .collect()
}

#[test]
fn blocks_of_a_packet_by_itself_are_those_of_a_group() {
    if !Avx512Key::is_supported() {
        return;
    }
    let key = Words::new(&core::array::from_fn(|i| i as u8 ^ 0xa5)).0;
    for nonce in [[0; 3], [1, 2, 3], [u32::MAX; 3], [0, u32::MAX, 0]] {
        // SAFETY: the processor has the instructions.
        let group: Vec<[u8; LEN]> = unsafe {
            let mut place = MaybeUninit::uninit();
            let blocks = Blocks::start::<4>(&mut place, &key, &[nonce; LANES]);
            let mut made = Vec::new();
            for _ in 0..8 {
                for block in
                    &Transpose::new(blocks.next::<4>(&mut MaybeUninit::uninit())).all()[..4]
                {
                    let mut bytes = [0; LEN];
                    store(&mut bytes, *block);
                    made.push(bytes);
                }
            }
            made
        };
        // SAFETY: as above.
        let made = unsafe {
            [
                blocks_by_itself::<1>(&key, nonce),
                blocks_by_itself::<2>(&key, nonce),
                blocks_by_itself::<3>(&key, nonce),
                blocks_by_itself::<4>(&key, nonce),
                blocks_by_itself::<5>(&key, nonce),
                blocks_by_itself::<6>(&key, nonce),
            ]
        };
        for made in made {
            assert_eq!(made, group[5..][..made.len()]);
        }
    }
}

/// The AEAD put together from the primitives, with any nonce and associated
/// data, in one of eight lanes.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
fn aead(
    lane: usize,
    Message {
        key,
        nonce,
        ad,
        text,
        seal,
    }: &Message<'_>,
) -> (Vec<u8>, [u8; 16]) {
    let word = |i: usize| u32::from_le_bytes(nonce[4 * i..][..4].try_into().unwrap());
    let nonces = core::array::from_fn(|i| match i {
        i if i == lane => [word(0), word(1), word(2)],
        i => [i as u32, u32::MAX, 0],
    });
    let mut place = MaybeUninit::uninit();
    let blocks = Blocks::start::<2>(&mut place, &Words::new(key).0, &nonces);
    let mut stream = Vec::new();
    while stream.len() < LEN + text.len() {
        for block in
            &Transpose::new(blocks.next::<2>(&mut MaybeUninit::uninit())).all()[2 * lane..][..2]
        {
            let mut bytes = [0; LEN];
            store(&mut bytes, *block);
            stream.extend(bytes);
        }
    }
    let key = stream[..32].try_into().unwrap();
    let other: Vec<u8> = text
        .iter()
        .zip(&stream[LEN..])
        .map(|(a, b)| a ^ b)
        .collect();

    let mut message = Vec::new();
    for part in [*ad, if *seal { &other[..] } else { *text }] {
        message.extend(part);
        message.resize(message.len().next_multiple_of(16), 0);
    }
    message.extend((ad.len() as u64).to_le_bytes());
    message.extend((text.len() as u64).to_le_bytes());
    (other, poly1305(lane, &key, &message))
}

#[test]
fn wycheproof() {
    if !Avx512Key::is_supported() {
        return;
    }
    let lane = core::cell::Cell::new(0);
    check_wycheproof(&|message| {
        lane.set((lane.get() + 1) % LANES);
        // SAFETY: the processor has the instructions.
        unsafe { aead(lane.get(), message) }
    });
}

/// With a packet missing, and with powers of `r` of both kinds.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2")]
fn group<const N: usize>(place: &mut Place) {
    let (mut texts, mut tags) = ([[0x5a; 500]; LANES], [[0; 16]; LANES]);
    let mut left = texts.iter_mut().zip(&mut tags).take(16 / N - 1);
    let lanes = core::array::from_fn(|i| {
        let lane = left.next();
        lane.map_or_else(Lane::default, |(text, tag)| Lane::new(i as u64, text, tag))
    });
    Group::<N>::seal(&[0xa5a5_a5a5; 8], lanes, place);
}

#[test]
fn no_key_or_key_stream_is_left() {
    if !Avx512Key::is_supported() {
        return;
    }
    let mut place = Place::new();
    // SAFETY: the processor has the instructions.
    unsafe {
        group::<2>(&mut place);
        group::<4>(&mut place);
        place.wipe();
    }
    // SAFETY: all of the place is initialised: what is wiped, and that in the place of text.
    let bytes =
        unsafe { core::slice::from_raw_parts((&raw const place).cast::<u8>(), size_of::<Place>()) };
    assert!(bytes.iter().all(|byte| *byte == 0));
}

/// The rest of a text is padded with zeros, and nothing beyond a slice is read or written.
#[test]
fn padding() {
    if !Avx512Key::is_supported() {
        return;
    }
    let bytes: [u8; LEN] = core::array::from_fn(|i| i as u8 + 1);
    for len in 0..=LEN {
        let mut padded = [0xaa; LEN];
        // SAFETY: the processor has the instructions.
        unsafe { store(&mut padded, load_padded(&bytes[..len])) };
        assert_eq!(padded[..len], bytes[..len]);
        assert_eq!(padded[len..], [0; LEN][len..]);
    }
    // SAFETY: as above.
    unsafe { store(&mut [0; LEN], zero()) };
}
