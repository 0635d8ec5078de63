//! Batches sealed and opened by each backend: the time of a packet, and how many
//! times as long it is as with the backend that is used.
//!
//! Samples are short and taken in turn, and of each the fastest counts, so that
//! a machine with other work is unfair to all alike. `cargo bench -p
//! taupe-crypto --bench aead [ROUNDS]`; the first column is the one that counts.

use std::time::{Duration, Instant};
use taupe_crypto::{AeadKey, Packet, Provider, Secret, TAG_LEN};

/// Packets of a batch, and the bytes of text in each.
const SHAPES: [(usize, usize); 12] = [
    (44, 1440),
    (44, 1420),
    (1, 1440),
    (2, 1440),
    (4, 1440),
    (7, 1440),
    (1, 1420),
    (1, 200),
    (12, 1440),
    (1, 64),
    (8, 64),
    (64, 64),
];

/// The length of a sample: so short that the scheduler rarely interrupts it.
const SAMPLE: Duration = Duration::from_micros(20);

#[derive(Clone, Copy)]
enum Direction {
    Seal,
    Open,
}

fn main() {
    let rounds = std::env::args()
        .find_map(|word| word.parse().ok())
        .unwrap_or(2000);
    let providers = providers();
    print!("{:24}", "ns per packet");
    for provider in &providers {
        print!("{:>22}", provider.name);
    }
    println!();
    for (packets, len) in SHAPES {
        for (name, direction) in [("seal", Direction::Seal), ("open", Direction::Open)] {
            let mut subjects: Vec<_> = (providers.iter())
                .map(|provider| Subject::new(provider, packets, len, direction))
                .collect();
            for _ in 0..rounds {
                subjects.iter_mut().for_each(Subject::sample);
            }
            print!("{:24}", format!("{name} {packets} x {len} B"));
            let first = subjects[0].nanoseconds();
            for subject in subjects {
                let nanoseconds = subject.nanoseconds() / packets as f64;
                let ratio = subject.nanoseconds() / first;
                print!("{nanoseconds:>12.1} ({ratio:>6.2} x)");
            }
            println!();
        }
    }
}

fn providers() -> Vec<&'static Provider> {
    vec![
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC,
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC_SINGLE,
        #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
        &taupe_crypto::AWS_LC_AVX2,
        #[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
        &taupe_crypto::AWS_LC_GROUPED,
        #[cfg(feature = "portable")]
        &taupe_crypto::PORTABLE,
    ]
}

struct Subject {
    key: Box<dyn AeadKey>,
    direction: Direction,
    /// Plaintexts or ciphertexts, and what is made of them.
    from: Vec<u8>,
    batches: Vec<Vec<u8>>,
    stride: usize,
    best: Duration,
}

impl Subject {
    fn new(provider: &Provider, packets: usize, len: usize, direction: Direction) -> Self {
        let key = provider.aead.key(&Secret::new([7; 32]));
        let stride = len + TAG_LEN;
        let mut from = vec![0; packets * stride];
        if let Direction::Open = direction {
            key.seal(&mut batch(&mut from, stride));
        }
        let mut subject = Self {
            key,
            direction,
            batches: vec![from.clone()],
            from,
            stride,
            best: Duration::MAX,
        };
        (0..20).for_each(|_| subject.sample());
        let repeat = (SAMPLE.as_nanos() / subject.best.as_nanos().max(1)).clamp(1, 50);
        subject.batches = vec![subject.from.clone(); repeat as usize];
        subject.best = Duration::MAX;
        subject
    }

    fn sample(&mut self) {
        for batch in &mut self.batches {
            batch.copy_from_slice(&self.from);
        }
        let mut authentic = [false; 64];
        let began = Instant::now();
        for bytes in &mut self.batches {
            let mut packets = batch(bytes, self.stride);
            match self.direction {
                Direction::Seal => self.key.seal(&mut packets),
                Direction::Open => self.key.open(&mut packets, &mut authentic),
            }
        }
        self.best = self.best.min(began.elapsed());
        if let Direction::Open = self.direction {
            let packets = self.from.len() / self.stride;
            assert!(authentic[..packets].iter().all(|yes| *yes));
        }
    }

    /// The time of one batch.
    fn nanoseconds(&self) -> f64 {
        self.best.as_secs_f64() * 1e9 / self.batches.len() as f64
    }
}

fn batch(bytes: &mut [u8], stride: usize) -> Vec<Packet<'_>> {
    (0..)
        .zip(bytes.chunks_exact_mut(stride))
        .map(|(counter, data)| Packet { counter, data })
        .collect()
}
