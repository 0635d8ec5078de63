#![deny(unsafe_code)]
//! Taupe as a library for other languages: one tunnel to one peer, without I/O.
//!
//! [`Tunnel`] is safe Rust around [`taupe_protocol::Device`]. The module `c` (feature
//! `ffi-bindings`, on by default) exports it to C as `include/taupe.h`: boringtun's functions and
//! Taupe's additions. All unsafe code of this crate is in that module. The crate `taupe-ffi-java`
//! exports the tunnel to Java.
//!
//! docs/library.md is the manual for programmers in C.

#[cfg(feature = "ffi-bindings")]
pub mod c;
mod clock;
mod error;
pub mod key;
mod log;
mod tunnel;

pub use error::{Error, Numbering};
pub use log::{Level, Sink, process_sink, set_process_sink};
pub use taupe_protocol::DropReason;
pub use taupe_protocol::crypto;
pub use taupe_protocol::hybrid::Suite;
pub use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
pub use taupe_protocol::update::PostQuantum;
pub use tunnel::{
    Config, HybridKeys, MAX_WAITING, OFFSET, OVERHEAD, Outcome, Result, Statistics, Strided, Tunnel,
};

/// Returns 32 random bytes from the operating system, for a private key.
#[must_use]
pub fn random_secret() -> crypto::Secret<32> {
    use taupe_protocol::Random as _;
    taupe_runtime::random::SystemRandom.secret()
}

/// Returns 64 random bytes from the operating system, for the seed of ML-KEM keys.
#[must_use]
pub fn random_seed() -> crypto::Secret<{ PqPrivateKey::LEN }> {
    use taupe_protocol::Random as _;
    let mut seed = crypto::Secret::zeroed();
    taupe_runtime::random::SystemRandom.fill(seed.expose_mut());
    seed
}
