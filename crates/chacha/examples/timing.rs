//! Searches for secrets that show in the time of a batch: Welch's t-test over two classes
//! of input (`tests/common/welch.rs`).
//!
//! The greatest |t| decides. Above 10 the times certainly differ, and the
//! program fails; from 4.5 it is worth another look. The last pair differs on
//! purpose, in a length, and must be found.
//!
//! Batches of 16 packets of each of some lengths, and a packet by itself. With AVX-512 where
//! the processor has it, and with `AVX2=1` with AVX2 all the same.
//!
//! `cargo run --release -p taupe-chacha --example timing [SECONDS]`

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/welch.rs"]
mod welch;

use common::{BatchKey, FASTEST, Implementation, NARROW, Random};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use taupe_chacha::{Packet, TAG_LEN};

/// Packets of a batch, and the bytes of text in each: of acknowledgements, of short and of full
/// packets.
const SHAPES: [Shape; 8] = [
    Shape::new(16, 1440),
    Shape::new(16, 200),
    Shape::new(16, 64),
    Shape::new(16, 40),
    Shape::new(1, 1440),
    Shape::new(1, 200),
    Shape::new(1, 64),
    Shape::new(1, 40),
];

/// Bytes that must show.
const MORE: usize = 64;

#[derive(Clone, Copy)]
struct Shape {
    packets: usize,
    len: usize,
}

impl Shape {
    const fn new(packets: usize, len: usize) -> Self {
        Self { packets, len }
    }

    /// From one packet to the next.
    fn stride(self) -> usize {
        self.len + MORE + TAG_LEN
    }
}

/// Beyond it times differ.
const LIMIT: f64 = 10.0;

/// Returns the implementation to measure.
fn implementation() -> Implementation {
    match std::env::var_os("AVX2") {
        Some(_) => NARROW,
        None => FASTEST,
    }
}

/// A batch and its key.
struct Input {
    key: Box<dyn BatchKey>,
    bytes: Vec<u8>,
    shape: Shape,
    /// Bytes of each packet without the tag: as the shape says, or [`MORE`].
    len: usize,
}

impl Input {
    fn new(key: [u8; 32], bytes: Vec<u8>, shape: Shape) -> Self {
        let key = (implementation().key)(&key);
        Self {
            key,
            bytes,
            shape,
            len: shape.len,
        }
    }

    fn packets(&mut self) -> Vec<Packet<'_>> {
        let len = self.len + TAG_LEN;
        (0..)
            .zip(self.bytes.chunks_exact_mut(self.shape.stride()))
            .map(|(counter, data)| Packet {
                counter,
                data: &mut data[..len],
            })
            .collect()
    }

    fn sealed(mut self) -> Self {
        let key = std::mem::replace(&mut self.key, (implementation().key)(&[0; 32]));
        key.seal(&mut self.packets());
        Self { key, ..self }
    }
}

/// Two classes, and what is done with them.
struct Pair {
    name: &'static str,
    open: bool,
    /// True if the times must differ.
    differs: bool,
    /// An input of the class.
    make: fn(&mut Random, Shape, class: bool) -> Input,
}

const PAIRS: [Pair; 6] = [
    Pair {
        name: "seal: a fixed key, random keys",
        open: false,
        differs: false,
        make: |random, shape, class| {
            let other = random.array();
            Input::new(
                if class { other } else { [0; 32] },
                text(random, shape),
                shape,
            )
        },
    },
    Pair {
        name: "seal: texts of zeros, random texts",
        open: false,
        differs: false,
        make: |random, shape, class| {
            let text = text_or_zeros(random, shape, class);
            Input::new(random.array(), text, shape)
        },
    },
    Pair {
        name: "open: a fixed key, random keys",
        open: true,
        differs: false,
        make: |random, shape, class| {
            let other = random.array();
            Input::new(
                if class { other } else { [0; 32] },
                text(random, shape),
                shape,
            )
            .sealed()
        },
    },
    Pair {
        name: "open: texts of zeros, random texts",
        open: true,
        differs: false,
        make: |random, shape, class| {
            let text = text_or_zeros(random, shape, class);
            Input::new(random.array(), text, shape).sealed()
        },
    },
    Pair {
        // An attacker may know that it is a forgery, but not which byte of the tag differs.
        name: "open: forged in the tag's first byte, in its last",
        open: true,
        differs: false,
        make: |random, shape, class| {
            let mut input = Input::new(random.array(), text(random, shape), shape).sealed();
            for packet in input.packets() {
                let last = packet.data.len() - 1;
                packet.data[if class { last } else { last + 1 - TAG_LEN }] ^= 1;
            }
            input
        },
    },
    Pair {
        name: "seal: as many bytes, 64 more (must differ)",
        open: false,
        differs: true,
        make: |random, shape, class| {
            let input = Input::new(random.array(), text(random, shape), shape);
            let len = shape.len + if class { MORE } else { 0 };
            Input { len, ..input }
        },
    },
];

fn text(random: &mut Random, shape: Shape) -> Vec<u8> {
    let len = shape.packets * shape.stride();
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes
}

/// Either in memory that was had and written in the same way.
fn text_or_zeros(random: &mut Random, shape: Shape, class: bool) -> Vec<u8> {
    let keep = if class { u8::MAX } else { 0 };
    let mut bytes = text(random, shape);
    bytes.iter_mut().for_each(|byte| *byte &= keep);
    bytes
}

fn main() -> ExitCode {
    if !common::is_supported() {
        println!("this processor has neither AVX2 with BMI2 nor NEON: nothing to measure");
        return ExitCode::SUCCESS;
    }
    let seconds: f64 = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 60.0,
        Some(Ok(seconds)) => seconds,
        Some(Err(error)) => panic!("the seconds to take: {error}"),
    };
    let each = Duration::from_secs_f64(seconds / (SHAPES.len() * PAIRS.len()) as f64);
    let mut good = true;
    for shape in SHAPES {
        println!("{} x {} B", shape.packets, shape.len);
        for pair in &PAIRS {
            let (samples, t) = pair.measure(shape, each);
            let differs = t > LIMIT;
            good &= differs == pair.differs;
            println!("|t| = {t:8.2}, {samples:8} samples  {}", pair.name);
        }
    }
    if !good {
        println!("times differ where they must not, or a difference was not found");
    }
    ExitCode::from(u8::from(!good))
}

impl Pair {
    /// Samples taken, and the greatest |t|.
    fn measure(&self, shape: Shape, time: Duration) -> (usize, f64) {
        let began = Instant::now();
        let samples = welch::sample(
            |random, class| (self.make)(random, shape, class),
            |input| self.sample(input),
            |_| began.elapsed() < time,
        );
        let count = samples.iter().map(Vec::len).sum();
        (count, welch::greatest_t(&samples))
    }

    fn sample(&self, input: &mut Input) -> Duration {
        let key = std::mem::replace(&mut input.key, (implementation().key)(&[0; 32]));
        let mut packets = input.packets();
        // Into the cache, alike for both.
        for packet in &packets {
            std::hint::black_box(packet.data.iter().fold(0_u8, |sum, byte| sum ^ byte));
        }
        let mut authentic = vec![false; packets.len()];
        let began = Instant::now();
        if self.open {
            key.open(&mut packets, &mut authentic);
        } else {
            key.seal(&mut packets);
        }
        began.elapsed()
    }
}
