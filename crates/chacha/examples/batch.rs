//! Encrypts one batch between two calls of `mark`, so that a trace of the executed instructions
//! shows where the batch begins and ends. `scripts/cycles` reads such traces.
//!
//! `batch neon|aws-lc PACKETS LENGTH`: LENGTH is of each plaintext, in bytes.

use std::hint::black_box;
use std::process::ExitCode;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use taupe_chacha::TAG_LEN;

const KEY: [u8; 32] = [9; 32];

#[inline(never)]
fn mark() {
    black_box(());
}

/// Encrypts the batch once before, since the first time differs: symbols are bound, and caches
/// are filled.
fn twice(mut batch: impl FnMut()) {
    batch();
    mark();
    batch();
    mark();
}

#[cfg(target_arch = "aarch64")]
fn neon(buffers: &mut [Vec<u8>]) -> Option<()> {
    let key = taupe_chacha::NeonKey::new(&KEY)?;
    let mut packets: Vec<taupe_chacha::Packet<'_>> = buffers
        .iter_mut()
        .zip(0..)
        .map(|(data, counter)| taupe_chacha::Packet { counter, data })
        .collect();
    twice(|| key.seal(black_box(&mut packets)));
    Some(())
}

#[cfg(not(target_arch = "aarch64"))]
fn neon(_: &mut [Vec<u8>]) -> Option<()> {
    None
}

fn aws_lc(buffers: &mut [Vec<u8>]) -> Option<()> {
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &KEY).ok()?);
    twice(|| {
        for (data, counter) in buffers.iter_mut().zip(0_u64..) {
            let mut nonce = [0; 12];
            nonce[4..].copy_from_slice(&counter.to_le_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let length = data.len() - TAG_LEN;
            let (text, place) = data.split_at_mut(length);
            let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), black_box(text));
            place.copy_from_slice(tag.expect("a packet is shorter than the limit").as_ref());
        }
    });
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place)?.parse::<usize>().ok();
    let (Some(packets), Some(length)) = (number(1), number(2)) else {
        eprintln!("batch: neon|aws-lc PACKETS LENGTH");
        return ExitCode::from(2);
    };
    let mut buffers = vec![vec![7; length + TAG_LEN]; packets];
    let done = match arguments[0].as_str() {
        "neon" => neon(&mut buffers),
        "aws-lc" => aws_lc(&mut buffers),
        _ => None,
    };
    black_box(&buffers);
    if done.is_none() {
        eprintln!("batch: there is no \"{}\" on this processor", arguments[0]);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
