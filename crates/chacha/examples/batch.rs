//! Encrypts or decrypts one batch between two calls of `mark`, so that a trace of the executed
//! instructions shows where the batch begins and ends. `scripts/cycles` reads such traces.
//!
//! `batch neon|aws-lc seal|open PACKETS LENGTH`: LENGTH is of each plaintext, in bytes.

use std::hint::black_box;
use std::process::ExitCode;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use taupe_chacha::TAG_LEN;

const KEY: [u8; 32] = [9; 32];

#[inline(never)]
fn mark() {
    black_box(());
}

/// Runs another batch before this one, since the first differs: symbols are bound, and caches are
/// filled.
fn second(mut batch: impl FnMut(&mut [Vec<u8>]), sets: &mut [Vec<Vec<u8>>; 2]) {
    let [first, second] = sets;
    batch(black_box(first));
    mark();
    batch(black_box(second));
    mark();
}

/// Seals both batches, and with `open` measures the opening of one instead.
#[cfg(target_arch = "aarch64")]
fn neon(sets: &mut [Vec<Vec<u8>>; 2], open: bool) -> Option<()> {
    use taupe_chacha::Packet;
    fn packets(data: &mut [Vec<u8>]) -> Vec<Packet<'_>> {
        let data = data.iter_mut().zip(0..);
        data.map(|(data, counter)| Packet { counter, data })
            .collect()
    }
    let key = taupe_chacha::NeonKey::new(&KEY)?;
    if !open {
        second(|data| key.seal(&mut packets(data)), sets);
        return Some(());
    }
    for data in &mut *sets {
        key.seal(&mut packets(data));
    }
    let mut authentic = vec![false; sets[0].len()];
    second(|data| key.open(&mut packets(data), &mut authentic), sets);
    authentic.iter().all(|it| *it).then_some(())
}

#[cfg(not(target_arch = "aarch64"))]
fn neon(_: &mut [Vec<Vec<u8>>; 2], _: bool) -> Option<()> {
    None
}

/// The same with AWS-LC.
fn aws_lc(sets: &mut [Vec<Vec<u8>>; 2], open: bool) -> Option<()> {
    let key = LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &KEY).ok()?);
    let nonce = |counter: u64| {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counter.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    };
    let seal = |data: &mut [Vec<u8>]| {
        for (data, counter) in data.iter_mut().zip(0..) {
            let length = data.len() - TAG_LEN;
            let (text, place) = data.split_at_mut(length);
            let tag = key.seal_in_place_separate_tag(nonce(counter), Aad::empty(), text);
            place.copy_from_slice(tag.expect("a packet is shorter than the limit").as_ref());
        }
    };
    if !open {
        second(seal, sets);
        return Some(());
    }
    for data in &mut *sets {
        seal(data);
    }
    let open = |data: &mut [Vec<u8>]| {
        for (data, counter) in data.iter_mut().zip(0..) {
            let opened = key.open_in_place(nonce(counter), Aad::empty(), data);
            opened.expect("a packet that was sealed above");
        }
    };
    second(open, sets);
    Some(())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments.get(place)?.parse::<usize>().ok();
    let open = match arguments.get(1).map(String::as_str) {
        Some("seal") => Some(false),
        Some("open") => Some(true),
        _ => None,
    };
    let (Some(open), Some(packets), Some(length)) = (open, number(2), number(3)) else {
        eprintln!("batch: neon|aws-lc seal|open PACKETS LENGTH");
        return ExitCode::from(2);
    };
    let mut sets = [0, 1].map(|_| vec![vec![7; length + TAG_LEN]; packets]);
    let done = match arguments[0].as_str() {
        "neon" => neon(&mut sets, open),
        "aws-lc" => aws_lc(&mut sets, open),
        _ => None,
    };
    black_box(&sets);
    if done.is_none() {
        eprintln!("batch: there is no \"{}\" on this processor", arguments[0]);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
