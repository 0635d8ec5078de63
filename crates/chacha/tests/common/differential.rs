//! Random batches through the vector code and through AWS-LC, which must agree.

use crate::common::{AwsLc, BatchKey, IMPLEMENTATIONS, Implementation, Random};
use taupe_chacha::{Packet, TAG_LEN};

/// Texts of a batch: where each begins, and its length and counter.
#[derive(Default)]
pub(crate) struct Shape {
    packets: Vec<(u64, usize, usize)>,
    bytes: usize,
}

/// Runs batches until so many packets have been sealed and opened; returns how
/// many they were.
pub(crate) fn run(seed: u64, packets: u64, mut progress: impl FnMut(u64)) -> u64 {
    let mut random = Random(seed);
    let mut done = 0;
    while done < packets {
        let shape = Shape::random(&mut random);
        let implementation = &IMPLEMENTATIONS[random.below(IMPLEMENTATIONS.len())];
        check(
            &mut random,
            implementation,
            &shape,
            &format!("seed {seed:#x}, after {done} packets"),
        );
        done += shape.packets.len() as u64;
        progress(done);
    }
    done
}

impl Shape {
    fn random(random: &mut Random) -> Self {
        let mut shape = Self::default();
        let packets = match random.below(8) {
            0 => random.below(4),
            1 => 44,
            2 => 64,
            _ => random.below(71),
        };
        let like = random.below(2049);
        let kind = random.below(8);
        for i in 0..packets {
            let len = match kind {
                // As from one super-packet.
                0..=2 if i + 1 == packets => random.below(like + 1),
                0..=2 => like,
                // Alike, but not the same.
                3 => like.saturating_sub(random.below(100)),
                4 => random.below(200),
                5 if random.below(40) == 0 => random.below(65_536),
                _ => random.below(2049),
            };
            shape.push(random, len);
        }
        shape
    }

    /// Adds a packet with so many bytes of text.
    pub(crate) fn push(&mut self, random: &mut Random, len: usize) {
        let counter = match (random.below(4), self.packets.last()) {
            (0, _) => random.next(),
            (1, _) => (1 << 32) - 2,
            (2, _) => u64::MAX - 1,
            (_, None) => random.next() >> random.below(64),
            (_, Some((last, ..))) => last.wrapping_add(1),
        };
        let counter = match self.packets.last() {
            Some((last, ..)) if random.below(8) != 0 => last.wrapping_add(1),
            _ => counter,
        };
        let start = self.bytes + random.below(65);
        self.packets.push((counter, start, len));
        self.bytes = start + len + TAG_LEN;
    }

    /// The packets in a buffer of all, with gaps between them.
    fn packets<'a>(&self, mut buffer: &'a mut [u8]) -> Vec<Packet<'a>> {
        let mut at = 0;
        let mut packets = Vec::new();
        for (counter, start, len) in &self.packets {
            let (data, rest) = buffer[start - at..].split_at_mut(len + TAG_LEN);
            packets.push(Packet {
                counter: *counter,
                data,
            });
            (buffer, at) = (rest, start + len + TAG_LEN);
        }
        packets
    }
}

/// Seals and opens a batch with an implementation and with AWS-LC, at times with forgeries.
pub(crate) fn check(random: &mut Random, implementation: &Implementation, shape: &Shape, id: &str) {
    let id = format!("{}, {id}", implementation.name);
    let key = random.array();
    let (vectors, single) = ((implementation.key)(&key), AwsLc::new(&key));
    let plain = fill(random, shape.bytes);

    // Whole buffers are compared, so nothing may be written between packets.
    let mut sealed = plain.clone();
    single.seal(&mut shape.packets(&mut sealed));
    let mut ours = plain.clone();
    vectors.seal(&mut shape.packets(&mut ours));
    assert!(ours == sealed, "sealed differently: {id}");

    if random.below(4) == 0 {
        forge(random, shape, &mut ours);
    }
    let mut theirs = ours.clone();
    let (ours_authentic, theirs_authentic) = (
        open(&*vectors, shape, &mut ours),
        open(&single, shape, &mut theirs),
    );
    assert_eq!(ours_authentic, theirs_authentic, "judged differently: {id}");
    assert!(ours == theirs, "opened differently: {id}");
    for (authentic, (_, start, len)) in ours_authentic.iter().zip(&shape.packets) {
        let text = *start..start + len;
        let expected = if *authentic {
            &plain[text.clone()]
        } else {
            &vec![0; *len]
        };
        assert!(ours[text] == *expected, "opened to something else: {id}");
    }
}

fn open(key: &dyn BatchKey, shape: &Shape, buffer: &mut [u8]) -> Vec<bool> {
    let mut packets = shape.packets(buffer);
    let mut authentic = vec![false; packets.len()];
    key.open(&mut packets, &mut authentic);
    authentic
}

/// Changes a bit in some packets.
fn forge(random: &mut Random, shape: &Shape, sealed: &mut [u8]) {
    for (_, start, len) in &shape.packets {
        if random.below(8) == 0 {
            let bit = random.below((len + TAG_LEN) * 8);
            sealed[start + bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Random bytes, eight at a time.
fn fill(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.next_multiple_of(8)];
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = random.next().to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}
