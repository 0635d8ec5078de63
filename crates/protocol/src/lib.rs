#![forbid(unsafe_code)]
//! WireGuard as a state machine without I/O.
//!
//! Nothing here reads a clock, opens a socket or starts a thread: the time,
//! randomness and datagrams are given to it, and what it wants sent is returned.
//! So a test runs 180 seconds of rekeying in a microsecond, and a simulator
//! runs a million of them.
//!
//! It has two halves. [`Device`] is the control half: handshakes, timers and
//! configuration, with one owner. [`DataPath`] is the way of a packet: it can be
//! shared by any number of threads and never waits for the control half.
//! Between them stand the peers ([`Peer`]), each with a lock that is taken once
//! per batch of packets.
//!
//! ```text
//!               ┌ route → reserve ─ seal ─► send          DataPath (many threads)
//! caller ───────┤
//!               └ receive: find session → open → check ─► deliver
//!                     │ handshake messages     │ "this peer wants something"
//!                     ▼                        ▼
//!               Device::handle_message   Device::handle_attention      (one owner)
//!               Device::handle_deadline  ─► Output::Transmit
//! ```
//!
//! Sources: the WireGuard whitepaper (Donenfeld, revision of 2020) by section,
//! and the Linux kernel's implementation where the paper is silent or differs;
//! each constant in [`limits`] says which.

pub mod allowed_ips;
mod configure;
mod cookie;
mod device;
mod embedding;
mod handshake;
pub mod hybrid;
pub mod inner;
mod inspect;
pub mod key;
pub mod limits;
pub mod message;
mod names;
pub mod noise;
mod path;
mod peer;
pub mod planted;
mod ratelimit;
pub mod replay;
mod session;
mod slots;
mod surroundings;
pub mod time;
mod timer;
pub mod update;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use taupe_crypto::Secret;

pub use device::{Device, Notice, Output, UpdateError};
#[doc(hidden)]
pub use inspect::PeerSnapshot;
pub use path::{Cause, Counters, DataPath, Routes, Sorted, Wake, padded_len};
pub use peer::{Endpoint, LocalAddress, Outbound, Peer, PeerId, Reservation, Staged};
pub use session::{Role, Session};
pub use taupe_crypto as crypto;
pub use timer::Reason;

/// Where random bytes come from: the operating system, or a seed in a
/// simulation.
pub trait Random {
    /// Fills `bytes` with random bytes. Must not fail: a system that has no
    /// randomness cannot run the protocol.
    fn fill(&mut self, bytes: &mut [u8]);

    /// 32 random secret bytes.
    fn secret(&mut self) -> Secret<32> {
        let mut secret = Secret::zeroed();
        self.fill(secret.expose_mut());
        secret
    }

    /// A random number.
    fn number(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }
}

/// Locks; a panic elsewhere while the lock was held is no reason for another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
