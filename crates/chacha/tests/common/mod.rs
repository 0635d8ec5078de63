//! Implementations and helpers for the tests and examples.
#![allow(dead_code, unused_imports, reason = "not every one uses all of it")]

mod random;

pub(crate) use random::Random;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use taupe_chacha::{Avx2Key, Avx512Key, Grouping, NeonKey, Packet, TAG_LEN};

/// A key of one implementation.
pub(crate) trait BatchKey {
    fn seal(&self, packets: &mut [Packet<'_>]);
    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]);
}

macro_rules! batch_key {
    ($key:ty) => {
        impl BatchKey for $key {
            fn seal(&self, packets: &mut [Packet<'_>]) {
                self.seal(packets);
            }

            fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
                self.open(packets, authentic);
            }
        }
    };
}

batch_key!(Avx2Key);
batch_key!(Avx512Key);
batch_key!(NeonKey);

/// Returns whether this processor has the instructions of any implementation. If it has not, all
/// of them are AWS-LC.
pub(crate) fn is_supported() -> bool {
    Avx2Key::is_supported() || NeonKey::is_supported()
}

/// An implementation by its name.
pub(crate) struct Implementation {
    pub(crate) name: &'static str,
    pub(crate) key: fn(&[u8; 32]) -> Box<dyn BatchKey>,
}

/// The fastest on this processor.
pub(crate) const FASTEST: Implementation = Implementation {
    name: "fastest",
    key: |key| avx512(key, Grouping::Fastest),
};

/// The implementation of narrower vectors: NEON on AArch64, otherwise AVX2, also where the processor
/// has AVX-512.
pub(crate) const NARROW: Implementation = Implementation {
    name: if cfg!(target_arch = "aarch64") {
        "NEON"
    } else {
        "AVX2"
    },
    key: narrow,
};

/// AVX-512 wherever packets can go together. Without AVX-512 it is the same as [`NARROW`].
pub(crate) const GROUPED: Implementation = Implementation {
    name: "AVX-512, always grouped",
    key: |key| avx512(key, Grouping::Always),
};

/// Every implementation that this architecture has, to be compared with AWS-LC.
pub(crate) const IMPLEMENTATIONS: &[Implementation] = if cfg!(target_arch = "aarch64") {
    &[NARROW]
} else {
    &[FASTEST, NARROW, GROUPED]
};

fn avx512(key: &[u8; 32], grouping: Grouping) -> Box<dyn BatchKey> {
    match Avx512Key::new(key, grouping) {
        Some(key) => Box::new(key),
        None => narrow(key),
    }
}

fn narrow(key: &[u8; 32]) -> Box<dyn BatchKey> {
    if let Some(key) = Avx2Key::new(key) {
        return Box::new(key);
    }
    match NeonKey::new(key) {
        Some(key) => Box::new(key),
        None => Box::new(AwsLc::new(key)),
    }
}

/// AWS-LC, one packet after the other.
pub(crate) struct AwsLc(LessSafeKey);

impl AwsLc {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("a key of 32 bytes");
        Self(LessSafeKey::new(key))
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

impl BatchKey for AwsLc {
    fn seal(&self, packets: &mut [Packet<'_>]) {
        for Packet { counter, data } in packets {
            if let Some((text, tag)) = data.split_last_chunk_mut::<TAG_LEN>() {
                let computed = (self.0)
                    .seal_in_place_separate_tag(nonce(*counter), Aad::empty(), text)
                    .expect("not too long");
                tag.copy_from_slice(computed.as_ref());
            }
        }
    }

    fn open(&self, packets: &mut [Packet<'_>], authentic: &mut [bool]) {
        authentic.fill(false);
        for (Packet { counter, data }, authentic) in packets.iter_mut().zip(authentic) {
            let opened = self.0.open_in_place(nonce(*counter), Aad::empty(), data);
            *authentic = opened.is_ok();
            if !*authentic && let Some((text, _)) = data.split_last_chunk_mut::<TAG_LEN>() {
                text.fill(0);
            }
        }
    }
}

/// `plaintext` with room for the tag.
pub(crate) fn with_room(plaintext: &[u8]) -> Vec<u8> {
    let mut data = plaintext.to_vec();
    data.extend([0xaa; TAG_LEN]);
    data
}
