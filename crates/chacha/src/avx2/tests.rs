//! The primitives by themselves, against `reference`. Batches are tested in `tests/`.
//!
//! On a processor without the instructions there is nothing to test.

use super::columns::{Columns, Stream, WOVEN};
use super::vector::{LEN, Vector, store, zero};
use super::{Avx2Key, BLOCK_LEN, rows};
use crate::key::Words;
use crate::packet::erase_beyond;
use crate::poly1305::{BLOCK_LEN as POLY_LEN, Poly1305};
use crate::reference::{Message, check_poly1305, check_wycheproof};
use crate::{Packet, TAG_LEN};

fn poly1305_with(key: &[u8; 32]) -> Poly1305 {
    let words = key.as_chunks().0;
    Poly1305::new(core::array::from_fn(|i| u64::from_le_bytes(words[i])))
}

#[test]
fn poly1305_block_by_block() {
    check_poly1305(&|key, message| {
        assert_eq!(message.len() % POLY_LEN, 0);
        let mut poly = poly1305_with(key);
        poly.padded(message);
        poly.tag()
    });
}

/// As many chunks as possible during passes, the rest by itself.
#[test]
fn poly1305_woven_into_rounds() {
    if !Avx2Key::is_supported() {
        return;
    }
    for at_a_time in [1, 3, WOVEN] {
        check_poly1305(&|key, message| {
            let mut poly = poly1305_with(key);
            // SAFETY: the processor has the instructions.
            let mut columns = unsafe { Columns::new(&[5; 8], [0; 3]) };
            let (chunks, rest) = message.as_chunks();
            for chunks in chunks.chunks(at_a_time) {
                // SAFETY: as above.
                unsafe { columns.next(&mut poly, chunks, &mut zeros()) };
            }
            poly.padded(rest);
            poly.tag()
        });
    }
}

#[target_feature(enable = "avx2")]
fn bytes(stream: &[Vector]) -> Vec<u8> {
    let mut bytes = vec![0; stream.len() * LEN];
    for (bytes, vector) in bytes.as_chunks_mut().0.iter_mut().zip(stream) {
        store(bytes, *vector);
    }
    bytes
}

#[target_feature(enable = "avx2,bmi2")]
fn zeros() -> Stream {
    [zero(); 16]
}

#[target_feature(enable = "avx2,bmi2")]
fn pass(columns: &mut Columns) -> Vec<u8> {
    let mut stream = zeros();
    columns.next(&mut Poly1305::default(), &[], &mut stream);
    bytes(&stream)
}

/// The AEAD put together from the primitives, with any nonce and associated data.
fn aead(
    Message {
        key,
        nonce,
        ad,
        text,
        seal,
    }: &Message<'_>,
    blocks: fn(&[u32; 8], [u32; 3], usize) -> Vec<u8>,
) -> (Vec<u8>, [u8; 16]) {
    let nonce = nonce.as_chunks().0;
    let nonce = core::array::from_fn(|i| u32::from_le_bytes(nonce[i]));
    let stream = blocks(
        &Words::new(key).0,
        nonce,
        1 + text.len().div_ceil(BLOCK_LEN),
    );
    let other: Vec<u8> = (text.iter().zip(&stream[BLOCK_LEN..]))
        .map(|(a, b)| a ^ b)
        .collect();
    let mut poly = poly1305_with(stream.first_chunk().unwrap());
    for part in [*ad, if *seal { &other[..] } else { *text }] {
        poly.padded(part);
    }
    poly.block([ad.len() as u64, text.len() as u64]);
    (other, poly.tag())
}

#[test]
fn wycheproof_in_columns() {
    if !Avx2Key::is_supported() {
        return;
    }
    check_wycheproof(&|message| {
        aead(message, |key, nonce, blocks| {
            // SAFETY: the processor has the instructions.
            let mut columns = unsafe { Columns::new(key, nonce) };
            let mut stream = Vec::new();
            while stream.len() < blocks * BLOCK_LEN {
                // SAFETY: as above.
                stream.extend(unsafe { pass(&mut columns) });
            }
            stream
        })
    });
}

#[test]
fn blocks_of_four_packets_and_side_by_side_are_those_of_columns() {
    if !Avx2Key::is_supported() {
        return;
    }
    let key = Words::new(&core::array::from_fn(|i| i as u8 ^ 0xa5)).0;
    let nonces = [[0; 3], [1, 2, 3], [u32::MAX; 3], [0, u32::MAX, 0]];
    // SAFETY: the processor has the instructions.
    let four = unsafe { pass(&mut Columns::of_four(&key, nonces)) };
    for (nonce, two) in nonces.into_iter().zip(four.chunks(2 * BLOCK_LEN)) {
        // SAFETY: as above.
        let eight = unsafe { pass(&mut Columns::new(&key, nonce)) };
        assert_eq!(eight[..2 * BLOCK_LEN], *two);
        // SAFETY: as above.
        let rows = unsafe {
            [
                bytes(rows::blocks::<1>(&key, nonce).as_flattened()),
                bytes(rows::blocks::<2>(&key, nonce).as_flattened()),
                bytes(rows::blocks::<3>(&key, nonce).as_flattened()),
            ]
        };
        for rows in rows {
            assert_eq!(eight[..rows.len()], rows);
        }
    }
}

#[test]
fn what_the_cipher_has_no_blocks_for_is_erased() {
    assert_eq!(crate::packet::MAX_TEXT_LEN / 64, u64::from(u32::MAX));
    let erased = |len: usize| {
        let mut data = vec![7; len + TAG_LEN];
        let mut packet = Packet {
            counter: 0,
            data: &mut data,
        };
        let erased = erase_beyond(&mut packet, 100);
        assert!(data.iter().all(|byte| *byte == if erased { 0 } else { 7 }));
        erased
    };
    assert!(!erased(0) && !erased(100));
    assert!(erased(101) && erased(200));
}
