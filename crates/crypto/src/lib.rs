//! Taupe's cryptography: four small traits and their backends.
//!
//! WireGuard fixes its primitives, so a trait here does not choose *what* is
//! computed, only *by whom*:
//!
//! | trait    | computes                                   | source                        |
//! |----------|--------------------------------------------|-------------------------------|
//! | [`Aead`] | ChaCha20-Poly1305, XChaCha20-Poly1305      | RFC 8439, draft-irtf-cfrg-xchacha-03 |
//! | [`Dh`]   | X25519                                     | RFC 7748                      |
//! | [`Hash`] | BLAKE2s-256, keyed BLAKE2s-128, HMAC       | RFC 7693, RFC 2104            |
//! | [`Kem`]  | ML-KEM-512, -768, -1024                    | FIPS 203                      |
//!
//! A [`Provider`] is one backend for each, chosen when a device is made. The
//! crate knows nothing of peers, sessions or messages.
//!
//! # Features
//!
//! - `aws-lc` (default): [`AWS_LC`], ChaCha20-Poly1305, X25519 and ML-KEM from AWS-LC.
//!   `taupe-chacha` encrypts transport data if the processor has AVX2, or AVX-512 with IFMA and
//!   VBMI2, and on AArch64 short packets, with NEON. ML-KEM is in pure Rust except on Linux on x86-64 and AArch64.
//!   X25519 of several keys is computed side by side if the processor has AVX-512 with IFMA.
//! - `portable` (default): [`PORTABLE`], pure Rust, for targets without AWS-LC and
//!   for Miri, which cannot call C.
//! - `fake`: `FAKE`, no cryptography at all, for simulation. It does not
//!   compile without debug assertions.
//!
//! BLAKE2s and XChaCha20-Poly1305 are the same pure-Rust code in both real
//! providers: AWS-LC has neither.

#![deny(unsafe_code)]

#[cfg(not(any(feature = "aws-lc", feature = "portable")))]
compile_error!("taupe-crypto needs a backend: enable the feature `aws-lc`, `portable`, or both");

#[cfg(all(feature = "fake", not(debug_assertions)))]
compile_error!(
    "the feature `fake` replaces all cryptography and is refused without debug assertions: \
     build with the profile `dev`, `test` or `simulate`, or disable the feature"
);

mod aead;
#[cfg(feature = "aws-lc")]
mod aws_lc;
#[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
mod blake2s;
mod dh;
#[cfg(feature = "fake")]
mod fake;
mod hash;
mod kem;
#[cfg(feature = "portable")]
mod portable;
mod provider;
mod secret;
#[cfg(all(feature = "aws-lc", target_arch = "x86_64"))]
mod x25519;

pub use aead::{Aead, AeadKey, NotAuthentic, Packet, TAG_LEN};
pub use dh::{Agreement, BASE_POINT, Dh};
pub use hash::Hash;
pub use kem::{DecapsulationKey, EncapsulationKey, InvalidKemInput, Kem, KemParameters};
#[cfg(feature = "fake")]
pub use provider::FAKE;
#[cfg(feature = "portable")]
pub use provider::PORTABLE;
#[cfg(feature = "aws-lc")]
pub use provider::{AWS_LC, AWS_LC_SINGLE};
#[cfg(all(feature = "aws-lc", feature = "testing"))]
pub use provider::{AWS_LC_AVX2, AWS_LC_GROUPED};
pub use provider::{Provider, default_provider, provider_without_avx512};
pub use secret::{HANDSHAKE_STACK, Secret, SharedSecret};
pub use taupe_chacha::erase_dead_stack;
