//! Predictable randomness for tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use taupe_protocol::Random;

/// Source of 32-bit numbers (jitter, indices). Key material does not depend on it.
#[derive(Clone, Default)]
pub enum Numbers {
    /// From the seed.
    #[default]
    Seeded,
    /// 0, 1, 2, …: almost no jitter.
    Low(u32),
    /// 2^32 − 1, 2^32 − 2, …: maximum jitter.
    High(u32),
    /// These first, then from the seed.
    Script(VecDeque<u32>),
}

#[derive(Clone, Default)]
pub struct SharedNumbers(Arc<Mutex<Numbers>>);

impl SharedNumbers {
    pub fn set(&self, numbers: Numbers) {
        *self.0.lock().expect("not poisoned") = numbers;
    }
}

/// SplitMix64, the same on every machine.
pub struct TestRandom {
    state: u64,
    numbers: SharedNumbers,
}

impl TestRandom {
    pub fn new(seed: u64, numbers: SharedNumbers) -> Self {
        Self {
            state: seed,
            numbers,
        }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

impl Random for TestRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn number(&mut self) -> u32 {
        let seeded = self.next() as u32;
        match &mut *self.numbers.0.lock().expect("not poisoned") {
            Numbers::Seeded => seeded,
            Numbers::Low(n) => {
                *n += 1;
                *n - 1
            }
            Numbers::High(n) => {
                *n += 1;
                u32::MAX - (*n - 1)
            }
            Numbers::Script(script) => script.pop_front().unwrap_or(seeded),
        }
    }
}
