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
//!               Device::handle_message   Device::handle_pending_work      (one owner)
//!               Device::handle_deadline  ─► Output::Transmit
//! ```
//!
//! # What a caller does
//!
//! Once: [`Device::new`] with a [`crypto::Provider`], a source of [`Random`] bytes and a
//! function that wakes the owner; [`Device::update`] with keys and peers; [`Device::set_up`].
//!
//! | when | call |
//! |---|---|
//! | a packet is to be sent | [`Routes::lookup`] of [`DataPath::routes`], [`DataPath::reserve`], then [`Reservation::seal`] and send, or [`DataPath::stage`] |
//! | datagrams have come | [`DataPath::receive`] (of one packet alone, [`DataPath::receive_one`]); deliver what is in [`ReceivedBatch::inner`], and give each of [`ReceivedBatch::handshakes`] to [`Device::handle_message`], the newest first if several have waited ([`HandshakeQueue`]) |
//! | the owner is woken | [`Device::handle_pending_work`] |
//! | [`Device::next_deadline`] is reached | [`Device::handle_deadline`] |
//! | the configuration changes | [`Device::update`], whole or not at all |
//! | addresses or routes of the system change | [`Device::retain_local_addresses`], [`Device::handle_network_change`] |
//! | the machine has slept | [`Device::handle_awakening`] |
//! | it ends | [`Device::close`] |
//!
//! After each call of a method of [`Device`], take every [`Output`] there is with
//! [`Device::poll_output`], in order, and look at [`Device::next_deadline`] again; nothing
//! is lost when it is called early, and a deadline that is late makes only that late.
//!
//! **Time** is two clocks ([`time::Now`]), read anew for each call: one that never goes back
//! and counts while the machine sleeps, for ages and deadlines, and the wall clock for
//! timestamps of handshakes. **What must be remembered** over restarts are those timestamps and, for
//! peers that prefer post-quantum handshakes, that they had one
//! ([`Output::ReserveTimestamps`], [`Output::Latch`]): without the first a clock that has gone
//! back locks the device out of its peers, without the second an attacker in between can
//! lead a peer back to ordinary handshakes.
//!
//! **Threads.** Everything is [`Send`], and [`DataPath`] and [`Peer`] are [`Sync`]. Methods of
//! [`Device`] take `&mut self`; those of [`DataPath`] may be called by any thread at any time,
//! also while the owner is in a method of [`Device`], and hold a lock only for a few
//! instructions. Packets of one peer keep the order in which they were reserved if one thread
//! sends them. The function that wakes the owner ([`Wake`]) is called by a thread on the way of a
//! packet, at most once for a peer until [`Device::handle_pending_work`], and must return at once.
//! A caller with one thread has nobody to wake, and calls [`Device::handle_pending_work`] after
//! everything else.
//!
//! **Memory** is bounded whatever comes in. A device has at most 2^20 peers
//! ([`limits::MAX_PEERS`]); a peer at most 128 waiting packets
//! ([`limits::MAX_STAGED_PACKETS`]), 3 sessions and 4 that nobody has confirmed
//! ([`limits::MAX_PROVISIONAL`]), each with 1 KiB of replay window from its first packet on.
//! Under load there are at most 65,536 sources ([`limits::MAX_SOURCES`]) besides, and 2 MiB of
//! filters. What waits in [`Device::poll_output`] is what calls since have made: one or two
//! datagrams for each message or deadline, and packets that had waited.
//!
//! **Secrets** are zeroised when they are dropped, have no `Debug`, and are compared in constant
//! time. A datagram that is not authentic changes nothing but counters and bounded tables.
//!
//! # Example
//!
//! Two devices shake hands and send a packet, in memory and at one moment.
//! `examples/ping.rs` does it over UDP with any WireGuard peer.
//!
//! ```
//! use std::{iter, net::SocketAddr, sync::Arc, time::Duration};
//! use taupe_protocol::crypto::default_provider;
//! use taupe_protocol::key::{PrivateKey, PublicKey};
//! use taupe_protocol::time::{Instant, Now};
//! use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, Prefix, PrivateKeyUpdate};
//! use taupe_protocol::{Device, Outbound, Output, ReceivedBatch, Staged};
//!
//! let now = Now {
//!     boot: Instant(1_000_000_000),
//!     wall: Duration::from_secs(1_800_000_000),
//! };
//! // Not random at all: an example only.
//! let device = |mut seed: u8| {
//!     let key = PrivateKey::new([seed; 32]).ok_or("a key of zeros")?;
//!     let random = move |bytes: &mut [u8]| {
//!         bytes.fill_with(|| {
//!             seed = seed.wrapping_mul(5).wrapping_add(1);
//!             seed
//!         });
//!     };
//!     let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| ()));
//!     let private_key = Some(PrivateKeyUpdate::new(key));
//!     device.update(now, DeviceUpdate { private_key, ..DeviceUpdate::default() })?;
//!     device.set_up(now);
//!     Ok::<_, Box<dyn std::error::Error>>(device)
//! };
//! let (mut alice, mut bob) = (device(1)?, device(2)?);
//!
//! // Each is told of the other: where it is reached, and which addresses are its own.
//! let at: SocketAddr = "192.0.2.1:51820".parse()?;
//! let keys = (alice.public_key(), bob.public_key());
//! let mut introduce = |to: &mut Device, key: Option<PublicKey>, own: [u8; 4]| {
//!     let mut peer = PeerUpdate::new(key.ok_or("no key")?);
//!     peer.endpoint = Some(at);
//!     peer.allowed_ips = vec![AllowedIpChange::Add(Prefix::from(std::net::IpAddr::from(own)))];
//!     to.update(now, DeviceUpdate { peers: vec![peer], ..DeviceUpdate::default() })?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//! introduce(&mut alice, keys.1, [10, 0, 0, 2])?;
//! introduce(&mut bob, keys.0, [10, 0, 0, 1])?;
//!
//! // Alice sends an IPv4 packet of 20 bytes, padded to 32. There is no session yet, so it
//! // waits, and a handshake is asked for.
//! let mut packet = vec![0; 32];
//! packet[..4].copy_from_slice(&[0x45, 0, 0, 20]);
//! packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
//! let path = Arc::clone(alice.data_path());
//! let peer = path.routes().lookup([10, 0, 0, 2].into()).cloned().ok_or("no route")?;
//! assert!(matches!(path.reserve(now.boot, &peer, 1, 64), Outbound::Stage));
//! path.stage(now.boot, &peer, iter::once(Staged { packet, ecn: 0 }));
//! alice.handle_pending_work(now);
//!
//! // Datagrams go to and fro while there are any: initiation, response, packet.
//! let (mut sent, mut delivered, mut sorted) = (Vec::new(), Vec::new(), ReceivedBatch::default());
//! for turn in 0..4 {
//!     let (from, to) = if turn % 2 == 0 { (&mut alice, &mut bob) } else { (&mut bob, &mut alice) };
//!     while let Some(output) = from.poll_output() {
//!         let Output::Transmit { mut datagram, .. } = output else { continue };
//!         sent.push(datagram.len());
//!         let length = datagram.len();
//!         to.data_path().receive(now.boot, at.into(), &mut datagram, length, &mut sorted);
//!         delivered.extend(sorted.inner.iter().map(|packet| datagram[packet.clone()].to_vec()));
//!         for message in &sorted.handshakes {
//!             to.handle_message(now, at.into(), &datagram[message.clone()], 0);
//!         }
//!         to.handle_pending_work(now);
//!     }
//! }
//! assert_eq!(sent, [148, 92, 64]);
//! assert_eq!(delivered.len(), 1);
//! assert_eq!(delivered[0].len(), 20);
//! // From now on Alice sends without waiting.
//! assert!(matches!(path.reserve(now.boot, &peer, 1, 64), Outbound::Send(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! Rust 1.89 builds it, and what breaks programs that use it raises the version (CI checks
//! both). That holds for what this page shows. Items that are hidden from it, such as the
//! messages of a handshake one by one, are for Taupe's own tests, benchmarks and simulator,
//! and may change at any time. What says that it is for an engine is for who drives network
//! interfaces with it, and others can leave it alone.
//!
//! # Features
//!
//! - `aws-lc` (default): cryptography by AWS-LC, and by vector code where the processor has
//!   AVX-512; takes a C compiler to build.
//! - `portable`: the same in pure Rust. One of the two must be on.
//!
//! # Sources
//!
//! The WireGuard whitepaper (Donenfeld, revision of 2020) by section,
//! and the Linux kernel's implementation where the paper is silent or differs;
//! each constant in [`limits`] says which. Hybrid post-quantum handshakes are specified in
//! `docs/post-quantum.md` of Taupe's repository.

#[doc(hidden)]
pub mod allowed_ips;
mod device;
mod drop_reason;
mod endpoint;
mod handshake;
pub mod hybrid;
pub mod inner;
pub mod key;
pub mod limits;
pub mod message;
mod output;
mod path;
mod peer;
mod suite;
pub mod time;
pub mod update;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use taupe_crypto::Secret;

#[doc(hidden)]
pub use device::PeerSnapshot;
pub use device::{Device, UpdateError};
pub use drop_reason::{Counters, DropReason};
pub use endpoint::{Endpoint, LocalAddress};
#[doc(hidden)]
pub use handshake::noise;
pub use handshake::{HandshakeId, HandshakeMessage, HandshakeQueue, TakenHandshakes, newest_first};
pub use output::{Notice, Output};
pub use path::{DataPath, ReceivedBatch, Routes, padded_len};
#[doc(hidden)]
pub use peer::replay;
pub use peer::{Outbound, Peer, PeerId, Reason, Reservation, Role, Session, Staged, Wake};
pub use taupe_crypto as crypto;

/// Where random bytes come from: the operating system, or a seed in a
/// simulation. A function that fills what it is given is one.
///
/// Keys are made of them, so who can guess them can read everything. Should the source
/// repeat itself, hybrid handshakes still do not.
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

impl<F: FnMut(&mut [u8])> Random for F {
    fn fill(&mut self, bytes: &mut [u8]) {
        self(bytes);
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
