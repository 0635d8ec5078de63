//! A packet by itself: a vector has a row of four words of each of four blocks of ChaCha20.
//!
//! Up to 24 blocks are made at once, one with the one-time keys and 23 for a text of up to
//! 1,472 bytes: as many as there are registers for, each step for all of them before the next.
//! A short text goes through Poly1305 with ordinary instructions, a longer one 128 bytes at a
//! time, a block in each lane.

use super::poly1305::{Chunk, Powers};
use super::vector::{LEN, Vector512, load, load_padded, store, store_cut, wipe, zero};
use crate::TAG_LEN;
use crate::avx2::at_once;
use crate::key::{CONSTANTS, nonce};
use crate::poly1305::{Poly1305, conclude};
use core::arch::x86_64::*;

/// The rows of four blocks.
type Rows = [Vector512; 4];

/// The most of them that there are registers for.
const MOST: usize = 6;

/// Bytes of text for which the first four blocks are enough.
const SHORT: usize = 3 * LEN;

/// Bytes of text from which on it is worth to compute powers.
const MANY: usize = 2 * size_of::<Chunk>();

/// Seals a packet, or with `OPEN` opens it and says whether it was authentic; the text is
/// zeros if not.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
pub(super) fn packet<const OPEN: bool>(
    key: &[u32; 8],
    counter: u64,
    text: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) -> bool {
    let nonce = nonce(counter);
    match text.len() {
        ..=SHORT => short::<OPEN>(key, nonce, text, tag),
        _ => long::<OPEN>(key, nonce, text, tag),
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
fn short<const OPEN: bool>(
    key: &[u32; 8],
    nonce: [u32; 3],
    text: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) -> bool {
    let mut stream = [zero(); 4];
    blocks::<1>(key, nonce, 0, &mut stream);
    let mut poly = Poly1305::new(words(stream[0]));
    let verdict = at_once::<OPEN>(&mut poly, text, tag, |text| apply(text, &stream[1..]));
    wipe(&mut stream);
    verdict
}

#[inline]
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
fn long<const OPEN: bool>(
    key: &[u32; 8],
    nonce: [u32; 3],
    text: &mut [u8],
    tag: &mut [u8; TAG_LEN],
) -> bool {
    let mut stream = [zero(); 4 * MOST];
    make(key, nonce, 0, 1 + text.len().div_ceil(LEN), &mut stream);
    let mut poly = Poly1305::new(words(stream[0]));
    let mut powers = (text.len() >= MANY).then(|| Powers::new(poly.r()));
    let mut number = 1;
    let mut rest = &mut *text;
    loop {
        let from = number as usize % stream.len();
        let room = (stream.len() - from) * LEN;
        let (now, later) = rest.split_at_mut(room.min(rest.len()));
        if !OPEN {
            apply(now, &stream[from..]);
        }
        authenticate(&mut poly, powers.as_ref(), now);
        if OPEN {
            apply(now, &stream[from..]);
        }
        if later.is_empty() {
            break;
        }
        number += (now.len() / LEN) as u32;
        make(key, nonce, number, later.len().div_ceil(LEN), &mut stream);
        rest = later;
    }
    let verdict = conclude::<OPEN>(&mut poly, text.len(), tag);
    if OPEN && !verdict {
        text.fill(0);
    }
    wipe(&mut stream);
    if let Some(powers) = &mut powers {
        powers.wipe();
    }
    verdict
}

/// So many blocks, or as many as there is room for, and at most three more.
#[inline]
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
fn make(
    key: &[u32; 8],
    nonce: [u32; 3],
    first: u32,
    count: usize,
    stream: &mut [Vector512; 4 * MOST],
) {
    match count.div_ceil(4) {
        0..=1 => blocks::<1>(key, nonce, first, stream),
        2 => blocks::<2>(key, nonce, first, stream),
        3 => blocks::<3>(key, nonce, first, stream),
        4 => blocks::<4>(key, nonce, first, stream),
        5 => blocks::<5>(key, nonce, first, stream),
        _ => blocks::<MOST>(key, nonce, first, stream),
    }
}

/// Writes `4 * N` blocks of key stream, from number `first` on.
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
pub(super) fn blocks<const N: usize>(
    key: &[u32; 8],
    nonce: [u32; 3],
    first: u32,
    stream: &mut [Vector512],
) {
    let row = |[a, b, c, d]: [u32; 4]| {
        let [a, b, c, d] = [a, b, c, d].map(u32::cast_signed);
        _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d))
    };
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let [n0, n1, n2] = nonce;
    let numbers = _mm512_setr_epi32(0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0);
    let four = _mm512_maskz_set1_epi32(0x1111, 4);
    let input = [
        row(CONSTANTS),
        row([k0, k1, k2, k3]),
        row([k4, k5, k6, k7]),
        _mm512_add_epi32(row([first, n0, n1, n2]), numbers),
    ];
    let mut x = [input; N];
    for i in 1..N {
        x[i][3] = _mm512_add_epi32(x[i - 1][3], four);
    }
    for _ in 0..10 {
        round(&mut x);
        // Diagonals become columns. The row that is ready last stays where it is.
        for [a, _, c, d] in &mut x {
            *a = _mm512_shuffle_epi32::<0b10_01_00_11>(*a);
            *c = _mm512_shuffle_epi32::<0b00_11_10_01>(*c);
            *d = _mm512_shuffle_epi32::<0b01_00_11_10>(*d);
        }
        round(&mut x);
        for [a, _, c, d] in &mut x {
            *a = _mm512_shuffle_epi32::<0b00_11_10_01>(*a);
            *c = _mm512_shuffle_epi32::<0b10_01_00_11>(*c);
            *d = _mm512_shuffle_epi32::<0b01_00_11_10>(*d);
        }
    }
    let mut last = input[3];
    for (x, stream) in x.into_iter().zip(stream.as_chunks_mut::<4>().0) {
        let a = _mm512_add_epi32(x[0], input[0]);
        let b = _mm512_add_epi32(x[1], input[1]);
        let c = _mm512_add_epi32(x[2], input[2]);
        let d = _mm512_add_epi32(x[3], last);
        last = _mm512_add_epi32(last, four);
        let (ab, cd) = (
            _mm512_shuffle_i32x4::<0x44>(a, b),
            _mm512_shuffle_i32x4::<0x44>(c, d),
        );
        stream[0] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        stream[1] = _mm512_shuffle_i32x4::<0xdd>(ab, cd);
        let (ab, cd) = (
            _mm512_shuffle_i32x4::<0xee>(a, b),
            _mm512_shuffle_i32x4::<0xee>(c, d),
        );
        stream[2] = _mm512_shuffle_i32x4::<0x88>(ab, cd);
        stream[3] = _mm512_shuffle_i32x4::<0xdd>(ab, cd);
    }
}

/// A quarter round of every column, each step for all blocks before the next.
#[inline]
#[target_feature(enable = "avx512f")]
fn round<const N: usize>(x: &mut [Rows; N]) {
    for [a, b, _, d] in x.iter_mut() {
        *a = _mm512_add_epi32(*a, *b);
        *d = _mm512_rol_epi32::<16>(_mm512_xor_si512(*d, *a));
    }
    for [_, b, c, d] in x.iter_mut() {
        *c = _mm512_add_epi32(*c, *d);
        *b = _mm512_rol_epi32::<12>(_mm512_xor_si512(*b, *c));
    }
    for [a, b, _, d] in x.iter_mut() {
        *a = _mm512_add_epi32(*a, *b);
        *d = _mm512_rol_epi32::<8>(_mm512_xor_si512(*d, *a));
    }
    for [_, b, c, d] in x.iter_mut() {
        *c = _mm512_add_epi32(*c, *d);
        *b = _mm512_rol_epi32::<7>(_mm512_xor_si512(*b, *c));
    }
}

/// Applies key stream, of which there is enough.
#[inline]
#[target_feature(enable = "avx512bw")]
fn apply(text: &mut [u8], stream: &[Vector512]) {
    let (whole, rest) = text.as_chunks_mut();
    for (text, stream) in whole.iter_mut().zip(stream) {
        store(text, _mm512_xor_si512(load(text), *stream));
    }
    if let Some(stream) = stream.get(whole.len()) {
        store_cut(rest, _mm512_xor_si512(load_padded(rest), *stream));
    }
}

/// Ciphertext through Poly1305: whole blocks, but for a text's end.
#[inline]
#[target_feature(enable = "avx512bw,avx512ifma,avx512vbmi2,bmi2")]
fn authenticate(poly: &mut Poly1305, powers: Option<&Powers>, text: &[u8]) {
    let rest = match powers {
        Some(powers) => {
            let (chunks, rest) = text.as_chunks();
            let (pairs, odd) = chunks.as_chunks();
            poly.accumulator.h = powers.absorb(poly.accumulator.h, pairs);
            poly.padded(odd.as_flattened());
            rest
        }
        None => text,
    };
    poly.padded(rest);
}

/// The one-time keys, as words.
#[inline]
#[target_feature(enable = "avx512f")]
fn words(keys: Vector512) -> [u64; 4] {
    let keys = _mm512_castsi512_si256(keys);
    [
        _mm256_extract_epi64::<0>(keys),
        _mm256_extract_epi64::<1>(keys),
        _mm256_extract_epi64::<2>(keys),
        _mm256_extract_epi64::<3>(keys),
    ]
    .map(i64::cast_unsigned)
}
