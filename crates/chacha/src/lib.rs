//! ChaCha20-Poly1305 (RFC 8439) over a batch of packets, with AVX-512, AVX2 or NEON.
//!
//! | key | instructions | processors |
//! |---|---|---|
//! | [`Avx512Key`] | AVX-512 F, BW, IFMA and VBMI2 | Ice Lake, Zen 4 and later |
//! | [`Avx2Key`] | AVX2 and BMI2 | Haswell, Zen and later |
//! | [`NeonKey`] | NEON | every AArch64 |
//!
//! Each key is made only on a processor that has its instructions, so that no call has to ask
//! again. On another processor, and on every other architecture, there is no key and the caller
//! uses another implementation.
//!
//! The nonce of a packet is four zero bytes and its counter as 64 bits little-endian, and there
//! is no associated data, as in WireGuard's transport data (whitepaper §5.4.6).

#![deny(unsafe_code)]

// Taupe and its library depend on this crate, so that one refusal is enough.
#[cfg(target_endian = "big")]
compile_error!(
    "Taupe supports little-endian processors only: its eBPF programs are compiled for them"
);

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod key;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packet;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod poly1305;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod reference;
mod stack;
mod unsupported;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2Key;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512Key;
#[cfg(target_arch = "aarch64")]
pub use neon::NeonKey;
pub use packet::{Packet, TAG_LEN};
pub use stack::erase_dead_stack;
#[cfg(not(target_arch = "aarch64"))]
pub use unsupported::NoNeonKey as NeonKey;
#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::{NoAvx2Key as Avx2Key, NoAvx512Key as Avx512Key};

/// The packets of a batch that [`Avx512Key`] works on together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Packets for which that is faster than one by one.
    Fastest,
    /// All packets that can go together, also if one by one is faster: for tests.
    Always,
}
