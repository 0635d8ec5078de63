//! Batches on AArch64: short packets together with NEON, all others one by one with AWS-LC.
//!
//! AWS-LC makes five blocks of a packet at a time and begins anew with each packet. NEON makes four
//! blocks at a time across packets. By `scripts/cycles`, the former takes fewer cycles for a long
//! packet, the latter for several short ones. On other processors [`NeonKey::new`] returns `None`.

use taupe_chacha::NeonKey;

use super::Key;
use crate::{AeadKey, Packet, Secret};

/// The longest text, in bytes, that is faster together with others when it is encrypted.
const MAX_SEALED_LEN: usize = 128;

/// The same when it is decrypted. AWS-LC decrypts texts of this length more slowly than it encrypts them.
const MAX_OPENED_LEN: usize = 256;

/// The fewest short packets that are faster together.
const MIN_PACKETS: usize = 4;

pub(super) struct ShortAndLong {
    short: NeonKey,
    long: Key,
}

impl ShortAndLong {
    /// Returns `None` on a processor without the instructions.
    pub(super) fn new(key: &Secret<32>) -> Option<Self> {
        Some(Self {
            short: NeonKey::new(key.expose())?,
            long: Key::new(key),
        })
    }
}

/// Divides a batch into runs of packets whose texts all have at most `longest` bytes, or all have more.
fn runs<'a, 'b>(
    packets: &'a mut [Packet<'b>],
    longest: usize,
) -> impl Iterator<Item = (bool, &'a mut [Packet<'b>])> {
    let is_short = move |packet: &Packet<'_>| packet.data.len() <= longest + crate::TAG_LEN;
    let runs = packets.chunk_by_mut(move |a, b| is_short(a) == is_short(b));
    runs.map(move |run| {
        let together = run.len() >= MIN_PACKETS && run.first().is_some_and(is_short);
        (together, run)
    })
}

impl AeadKey for ShortAndLong {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        for (together, run) in runs(packets, MAX_SEALED_LEN) {
            match together {
                true => self.short.seal(run),
                false => AeadKey::seal(&self.long, run),
            }
        }
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        authentic.fill(false);
        let count = packets.len().min(authentic.len());
        let mut flags = authentic;
        for (together, run) in runs(&mut packets[..count], MAX_OPENED_LEN) {
            let (own, others) = flags.split_at_mut(run.len());
            match together {
                true => self.short.open(run, own),
                false => AeadKey::open(&self.long, run, own),
            }
            flags = others;
        }
    }
}

#[cfg(all(test, target_arch = "aarch64"))]
mod tests {
    use super::*;

    #[test]
    fn the_provider_uses_it() {
        let key = crate::AWS_LC.aead.key(&Secret::new([7; 32]));
        // An object behind a trait has the size of its type, and AWS-LC's key alone is smaller.
        assert_eq!(size_of_val(&*key), size_of::<ShortAndLong>());
    }

    #[test]
    fn four_short_packets_in_sequence_go_together() {
        let together = |lengths: &[usize]| -> Vec<(bool, usize)> {
            let mut data: Vec<_> = lengths
                .iter()
                .map(|text| vec![0; text + crate::TAG_LEN])
                .collect();
            let mut batch = batch(&mut data);
            runs(&mut batch, 128)
                .map(|(together, run)| (together, run.len()))
                .collect()
        };
        assert_eq!(together(&[]), []);
        assert_eq!(together(&[128; 3]), [(false, 3)]);
        assert_eq!(together(&[128; 4]), [(true, 4)]);
        assert_eq!(together(&[129; 9]), [(false, 9)]);
        let mixed = [0, 1, 2, 3, 129, 1420, 64, 64, 300, 16, 16, 16, 16, 16];
        let expected = [(true, 4), (false, 2), (false, 2), (false, 1), (true, 5)];
        assert_eq!(together(&mixed), expected);
    }

    /// Lengths of texts. Runs of short packets are longer than the least, equal, and shorter.
    const LENGTHS: [usize; 17] = [
        0, 1, 128, 64, 127, 129, 1420, 16, 32, 64, 257, 256, 128, 128, 128, 129, 5,
    ];

    /// A batch is sealed as its packets are one by one, and opened with the right verdicts.
    #[test]
    fn a_batch_of_short_and_long_packets() {
        let key = Secret::new([7; 32]);
        let both = ShortAndLong::new(&key).expect("NEON");
        for forged in 0..LENGTHS.len() {
            let mut expected = LENGTHS.map(|length| vec![length as u8; length + crate::TAG_LEN]);
            let mut sealed = expected.clone();
            let text = expected.clone();
            both.seal(&mut batch(&mut sealed));
            AeadKey::seal(&both.long, &mut batch(&mut expected));
            assert_eq!(sealed, expected);

            *sealed[forged].last_mut().expect("a tag") ^= 1;
            // One packet has no flag, and is not opened.
            let mut authentic = [true; LENGTHS.len() - 1];
            let last = sealed.last().cloned();
            both.open(&mut batch(&mut sealed), &mut authentic);
            for (place, is_authentic) in authentic.into_iter().enumerate() {
                assert_eq!(is_authentic, place != forged, "{place}");
                let opened = &sealed[place][..LENGTHS[place]];
                match is_authentic {
                    true => assert_eq!(opened, &text[place][..LENGTHS[place]]),
                    false => assert!(opened.iter().all(|byte| *byte == 0), "{place}"),
                }
            }
            assert_eq!(sealed.last().cloned(), last);
        }
        let mut authentic = [true; 3];
        both.open(&mut [], &mut authentic);
        assert_eq!(authentic, [false; 3]);
    }

    fn batch(data: &mut [Vec<u8>]) -> Vec<Packet<'_>> {
        let packets = (0..).zip(data);
        packets
            .map(|(counter, data)| Packet { counter, data })
            .collect()
    }
}
