//! Whether what is secret shows in the time that a batch takes: Welch's t-test
//! over two classes of input (`tests/common/welch.rs`).
//!
//! What counts is the greatest |t|. Above 10 the times certainly differ, and the
//! program fails; from 4.5 it is worth another look. The last pair differs on
//! purpose, in a length, and must be found.
//!
//! With AVX-512 where the processor has it, and with `NARROW=1` with AVX2 all the same.
//!
//! `cargo run --release -p taupe-crypto --example timing [SECONDS]`

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/welch.rs"]
mod welch;

use common::Random;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use taupe_crypto::{AWS_LC_NARROW, AWS_LC_WIDE, AeadKey, Packet, Provider, Secret, TAG_LEN};

const PACKETS: usize = 16;
const LEN: usize = 1440;
const STRIDE: usize = LEN + TAG_LEN;

/// Beyond it times differ.
const LIMIT: f64 = 10.0;

/// What is measured.
fn provider() -> &'static Provider {
    match std::env::var_os("NARROW") {
        Some(_) => &AWS_LC_NARROW,
        None => &AWS_LC_WIDE,
    }
}

/// A batch and its key.
struct Input {
    key: Box<dyn AeadKey>,
    bytes: Vec<u8>,
    /// Of each packet, without the tag.
    len: usize,
}

impl Input {
    fn new(key: [u8; 32], bytes: Vec<u8>) -> Self {
        let key = provider().aead.key(&Secret::new(key));
        Self {
            key,
            bytes,
            len: LEN,
        }
    }

    fn packets(&mut self) -> Vec<Packet<'_>> {
        let len = self.len + TAG_LEN;
        (0..)
            .zip(self.bytes.chunks_exact_mut(STRIDE))
            .map(|(counter, data)| Packet {
                counter,
                data: &mut data[..len],
            })
            .collect()
    }

    fn sealed(mut self) -> Self {
        let key = std::mem::replace(&mut self.key, provider().aead.key(&Secret::new([0; 32])));
        key.seal(&mut self.packets());
        Self { key, ..self }
    }
}

/// Two classes, and what is done with them.
struct Pair {
    name: &'static str,
    open: bool,
    /// Whether a difference is what must be found.
    differs: bool,
    /// An input of the class.
    make: fn(&mut Random, class: bool) -> Input,
}

const PAIRS: [Pair; 6] = [
    Pair {
        name: "seal: a fixed key, random keys",
        open: false,
        differs: false,
        make: |random, class| {
            let other = random.array();
            Input::new(if class { other } else { [0; 32] }, text(random))
        },
    },
    Pair {
        name: "seal: texts of zeros, random texts",
        open: false,
        differs: false,
        make: |random, class| {
            let text = text_or_zeros(random, class);
            Input::new(random.array(), text)
        },
    },
    Pair {
        name: "open: a fixed key, random keys",
        open: true,
        differs: false,
        make: |random, class| {
            let other = random.array();
            Input::new(if class { other } else { [0; 32] }, text(random)).sealed()
        },
    },
    Pair {
        name: "open: texts of zeros, random texts",
        open: true,
        differs: false,
        make: |random, class| {
            let text = text_or_zeros(random, class);
            Input::new(random.array(), text).sealed()
        },
    },
    Pair {
        // That it is a forgery need not be hidden; where its tag differs, must.
        name: "open: forged in the tag's first byte, in its last",
        open: true,
        differs: false,
        make: |random, class| {
            let mut input = Input::new(random.array(), text(random)).sealed();
            for packet in input.packets() {
                let last = packet.data.len() - 1;
                packet.data[if class { last } else { last + 1 - TAG_LEN }] ^= 1;
            }
            input
        },
    },
    Pair {
        name: "seal: 1440 bytes, 1376 bytes (must differ)",
        open: false,
        differs: true,
        make: |random, class| {
            let input = Input::new(random.array(), text(random));
            let len = if class { LEN } else { LEN - 64 };
            Input { len, ..input }
        },
    },
];

fn text(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PACKETS * STRIDE);
    while bytes.len() < PACKETS * STRIDE {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes
}

/// Either in memory that was had and written in the same way.
fn text_or_zeros(random: &mut Random, class: bool) -> Vec<u8> {
    let keep = if class { u8::MAX } else { 0 };
    let mut bytes = text(random);
    bytes.iter_mut().for_each(|byte| *byte &= keep);
    bytes
}

fn main() -> ExitCode {
    if !taupe_crypto::has_narrow() {
        println!("this processor has no AVX2 with BMI2: nothing to measure");
        return ExitCode::SUCCESS;
    }
    let seconds: f64 = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 60.0,
        Some(Ok(seconds)) => seconds,
        Some(Err(error)) => panic!("the seconds to take: {error}"),
    };
    let each = Duration::from_secs_f64(seconds / PAIRS.len() as f64);
    let mut good = true;
    for pair in &PAIRS {
        let (samples, t) = pair.measure(each);
        let differs = t > LIMIT;
        good &= differs == pair.differs;
        println!("|t| = {t:8.2}, {samples:8} samples  {}", pair.name);
    }
    if !good {
        println!("times differ where they must not, or a difference was not found");
    }
    ExitCode::from(u8::from(!good))
}

impl Pair {
    /// Samples taken, and the greatest |t|.
    fn measure(&self, time: Duration) -> (usize, f64) {
        let began = Instant::now();
        let samples = welch::sample(
            self.make,
            |input| self.sample(input),
            |_| began.elapsed() < time,
        );
        let count = samples.iter().map(Vec::len).sum();
        (count, welch::greatest_t(&samples))
    }

    fn sample(&self, input: &mut Input) -> Duration {
        let key = std::mem::replace(&mut input.key, provider().aead.key(&Secret::new([0; 32])));
        let mut packets = input.packets();
        // Into the cache, alike for both.
        for packet in &packets {
            std::hint::black_box(packet.data.iter().fold(0_u8, |sum, byte| sum ^ byte));
        }
        let mut authentic = [false; PACKETS];
        let began = Instant::now();
        if self.open {
            key.open(&mut packets, &mut authentic);
        } else {
            key.seal(&mut packets);
        }
        began.elapsed()
    }
}
