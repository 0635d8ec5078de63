//! Dead stack after batches: ciphers leave no key there.
#![cfg(target_arch = "x86_64")]

mod common;

use common::real_providers;
use std::arch::asm;
use taupe_crypto::{AeadKey, Packet, Secret, TAG_LEN, erase_dead_stack};

/// Bytes of the stack that are searched: more than a batch takes.
const DEAD_STACK: usize = 16 << 10;

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, §3.2.2).
const RED_ZONE: usize = 128;

/// Calls `before`, and returns the stack below this function's frame.
#[inline(never)]
fn dead_stack(before: &mut dyn FnMut()) -> Vec<u32> {
    let mut stack = vec![0_u32; DEAD_STACK / 4];
    before();
    // SAFETY: it fills `stack` from memory that is mapped, since a thread's stack is longer. A call
    // between would overwrite what is searched.
    unsafe {
        asm!(
            "lea rsi, [rsp - {length}]",
            "rep movsd",
            length = const DEAD_STACK,
            inout("rdi") stack.as_mut_ptr() => _,
            inout("rcx") stack.len() => _,
            out("rsi") _,
            options(nostack),
        );
    }
    stack
}

#[test]
fn no_key_remains_on_the_stack() {
    let key: [u8; 32] = core::array::from_fn(|i| (i as u8).wrapping_mul(37) ^ 0xc3);
    let words: Vec<u32> = (key.as_chunks().0.iter())
        .map(|word| u32::from_le_bytes(*word))
        .collect();
    for provider in real_providers() {
        // Without optimisation, frames of the pure Rust cipher's callers have copies of the key.
        if cfg!(all(debug_assertions, not(feature = "aws-lc"))) {
            continue;
        }
        let key = provider.aead.key(&Secret::new(key));
        for (count, length) in [(1, 16), (1, 1400), (4, 100), (8, 1400), (40, 600)] {
            let mut data = vec![vec![7_u8; length + TAG_LEN]; count];
            for is_open in [false, true] {
                let mut authentic = vec![false; count];
                let stack = dead_stack(&mut || {
                    batch(&*key, &mut data, is_open.then_some(&mut authentic[..]));
                });
                let found = words.iter().filter(|word| stack.contains(word)).count();
                let name = provider.name;
                assert_eq!(found, 0, "{name}: {count} of {length}, opened: {is_open}");
                assert_eq!(authentic, vec![is_open; count]);
            }
        }
    }
}

/// The search finds what is there, and erasure leaves only what its own call needs.
#[test]
fn a_value_on_the_stack_is_found_until_it_is_erased() {
    let stack = dead_stack(&mut || leave());
    assert!(stack.contains(&0x1234_5678));
    let stack = dead_stack(&mut || {
        leave();
        erase_dead_stack::<DEAD_STACK>();
    });
    assert!(!stack[..(DEAD_STACK - RED_ZONE) / 4].contains(&0x1234_5678));
}

#[inline(never)]
fn leave() {
    let mut room = [0x1234_5678_u32; 1024];
    core::hint::black_box(&mut room);
}

/// Seals, or with flags opens.
#[inline(never)]
fn batch(key: &dyn AeadKey, data: &mut [Vec<u8>], authentic: Option<&mut [bool]>) {
    let packets = (0..).zip(data);
    let mut packets: Vec<_> = packets
        .map(|(counter, data)| Packet { counter, data })
        .collect();
    match authentic {
        Some(authentic) => key.open(&mut packets, authentic),
        None => key.seal(&mut packets),
    }
}
