#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, reason = "public for the module `testing`")
)]
//! WireGuard as a state machine without I/O.
//!
//! The crate reads no clock, opens no socket and starts no thread. The caller passes in the time,
//! randomness and datagrams, and gets back the datagrams to send. So a test runs 180 seconds of
//! rekeying in a microsecond, and a simulator runs a million of them.
//!
//! [`Device`] handles handshakes, timers and configuration, and has one owner. [`DataPath`]
//! carries packets; any number of threads can share it, and it never waits for the [`Device`].
//! Both share the peers ([`Peer`]). The lock of a peer is taken once per batch of packets.
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
//! # Use
//!
//! Once: [`Device::new`] with a [`crypto::Provider`], a source of [`Random`] bytes and a function
//! that wakes the owner; [`Device::update`] with keys and peers; [`Device::set_up`].
//!
//! | event | call |
//! |---|---|
//! | a packet is to be sent | [`Routes::lookup`] on [`DataPath::routes`], [`DataPath::reserve`], then [`Reservation::seal`] and send, or [`DataPath::stage`] |
//! | datagrams have arrived | [`DataPath::receive`] (for a single packet [`DataPath::receive_one`]); deliver the packets in [`ReceivedBatch::inner`], and pass each of [`ReceivedBatch::handshakes`] to [`Device::handle_message`], or all that have waited in a [`HandshakeQueue`] to [`Device::handle_messages`] |
//! | the owner is woken | [`Device::handle_pending_work`] |
//! | [`Device::next_deadline`] is reached | [`Device::handle_deadline`] |
//! | the configuration changes | [`Device::update`], which applies all of it or nothing |
//! | addresses or routes of the system change | [`Device::retain_local_addresses`], [`Device::handle_network_change`] |
//! | the machine has slept | [`Device::handle_resume`] |
//! | the device is no longer needed | [`Device::close`] |
//!
//! After each call of a [`Device`] method, take every [`Output`] from [`Device::poll_output`], in
//! order, and read [`Device::next_deadline`] again. A call before its deadline does no harm. A
//! call after it delays only the work that was due.
//!
//! **Time** is two clocks ([`time::Now`]), read before each call. The boot clock never goes back
//! and counts while the machine sleeps; it measures ages and deadlines. The wall clock provides
//! the timestamps of handshakes.
//!
//! **Durable state.** Two facts must survive a restart. Without the timestamps that may have been
//! sent ([`Output::ReserveTimestamps`]), a clock that has gone back locks the device out of its
//! peers. Without the fact that a peer has completed a post-quantum handshake
//! ([`Output::PinPostQuantum`]), an attacker on the path can downgrade a peer that prefers them to
//! ordinary handshakes.
//!
//! **Threads.** Everything is [`Send`], and [`DataPath`] and [`Peer`] are [`Sync`]. Methods of
//! [`Device`] take `&mut self`. Any thread may call methods of [`DataPath`] at any time, also
//! while the owner is in a [`Device`] method; they hold a lock only for a few instructions.
//! Packets of one peer keep the order of their reservations if one thread sends them. A thread
//! that moves packets calls the function that wakes the owner ([`Wake`]), at most once per peer
//! until [`Device::handle_pending_work`]; the function must return at once. A caller with one
//! thread needs no wake-up: it calls [`Device::handle_pending_work`] after every other call.
//!
//! **Lanes** let one device use many cores ([`Device::with_lanes`]). A lane sends with
//! [`DataPath::reserve_on`] and receives with [`DataPath::receive_on`]. Between two devices with
//! lanes, each lane has counters and replay windows of its own. [`DataPath::steering`] is the rule
//! by which sockets choose the lane that receives a message. To a peer without lanes, one lane at a
//! time sends: the others wait in [`DataPath::reserve_on`] until the [`Reservation`] is dropped.
//!
//! **Memory** is bounded whatever arrives. A device has at most 2^20 peers
//! ([`limits::MAX_PEERS`]). A peer has at most 128 waiting packets
//! ([`limits::MAX_STAGED_PACKETS`]), 3 sessions and 4 unconfirmed sessions
//! ([`limits::MAX_PROVISIONAL`]). A session allocates 1 KiB of replay window when its first
//! packet arrives. Between two devices with lanes, it does so for each lane of the peer. Under
//! load the device also stores at most 65,536 sources ([`limits::MAX_SOURCES`]) and 2 MiB of
//! filters. The queue of [`Device::poll_output`] grows only by the calls since it was last
//! emptied: one or two datagrams per message or deadline, and packets that waited for a session.
//!
//! **Secrets** are zeroised when they are dropped, have no `Debug`, and are compared in constant
//! time. A datagram that is not authentic changes nothing but counters and bounded tables.
//!
//! # Example
//!
//! Two devices complete a handshake and send a packet, in memory and at one point in time.
//! `examples/ping.rs` does the same over UDP with any WireGuard peer.
//!
//! ```
//! use std::{iter, net::SocketAddr, sync::Arc, time::Duration};
//! use taupe_protocol::crypto::default_provider;
//! use taupe_protocol::ipnet::IpNet;
//! use taupe_protocol::key::{PrivateKey, PublicKey};
//! use taupe_protocol::time::{Instant, Now};
//! use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
//! use taupe_protocol::{Device, LaneId, Outbound, Output, ReceivedBatch, Staged};
//!
//! let now = Now {
//!     boot: Instant(1_000_000_000),
//!     wall: Duration::from_secs(1_800_000_000),
//! };
//! // Not random: an example only.
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
//! // Configure each device with the other as its peer: endpoint and allowed IPs.
//! let at: SocketAddr = "192.0.2.1:51820".parse()?;
//! let keys = (alice.public_key(), bob.public_key());
//! let mut introduce = |to: &mut Device, key: Option<PublicKey>, own: [u8; 4]| {
//!     let mut peer = PeerUpdate::new(key.ok_or("no key")?);
//!     peer.endpoint = Some(at);
//!     peer.allowed_ips = vec![AllowedIpChange::Add(IpNet::from(std::net::IpAddr::from(own)))];
//!     to.update(now, DeviceUpdate { peers: vec![peer], ..DeviceUpdate::default() })?;
//!     Ok::<_, Box<dyn std::error::Error>>(())
//! };
//! introduce(&mut alice, keys.1, [10, 0, 0, 2])?;
//! introduce(&mut bob, keys.0, [10, 0, 0, 1])?;
//!
//! // Alice sends an IPv4 packet of 20 bytes, padded to 32. There is no session yet, so the
//! // packet waits and Alice starts a handshake.
//! let mut packet = vec![0; 32];
//! packet[..4].copy_from_slice(&[0x45, 0, 0, 20]);
//! packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
//! let path = Arc::clone(alice.data_path());
//! let peer = path.routes().lookup([10, 0, 0, 2].into()).cloned().ok_or("no route")?;
//! assert!(matches!(path.reserve(now.boot, &peer, 1, 64), Outbound::Stage));
//! let lane = LaneId::FIRST;
//! path.stage(now.boot, &peer, iter::once(Staged { packet, ecn: 0, lane }));
//! alice.handle_pending_work(now);
//!
//! // The devices exchange datagrams: initiation, response, packet.
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
//! # Stability
//!
//! The minimum supported Rust version is 1.89. A change that breaks users of the documented API
//! raises the crate's version. CI checks both. Items documented as "for an engine" are for programs
//! that drive network interfaces; other callers can ignore them. The feature `testing` adds hidden
//! items for Taupe's own tests, benchmarks and simulator, which may change at any time.
//!
//! # Features
//!
//! - `aws-lc` (default): cryptography by AWS-LC, and by AVX-512 code on processors that have it.
//!   The build needs a C compiler.
//! - `portable`: the same in pure Rust. One of the two must be enabled.
//!
//! # Sources
//!
//! The WireGuard whitepaper (Donenfeld, revision of 2020) by section, and the Linux kernel's
//! implementation where the paper is silent or differs; each constant in [`limits`] names its
//! source. `docs/post-quantum.md` in Taupe's repository specifies the hybrid post-quantum
//! handshakes.

mod allowed_ips;
mod device;
mod drop_reason;
mod endpoint;
mod handshake;
mod histogram;
pub mod hybrid;
pub mod inner;
pub mod key;
mod lanes;
pub mod limits;
pub mod message;
mod output;
mod path;
mod peer;
mod suite;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
pub mod time;
mod token_bucket;
pub mod update;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use taupe_crypto::Secret;

pub use device::{Device, UpdateError};
pub use drop_reason::{Counters, DropReason, HandshakeResult};
pub use endpoint::{Endpoint, LocalAddress};
pub use handshake::{HandshakeId, HandshakeMessage, HandshakeQueue, TakenHandshakes, newest_first};
pub use histogram::{Durations, Histogram};
pub use ipnet;
pub use lanes::{LaneId, Lanes, Steering};
pub use output::{Notice, Output};
pub use path::{DataPath, ReceivedBatch, Routes, padded_len};
pub use peer::{Outbound, Peer, PeerId, Reservation, Role, Session, Staged, Timer, Wake};
pub use taupe_crypto as crypto;
pub use token_bucket::TokenBucket;

/// Source of random bytes: the operating system, or a seeded generator in a simulation. Every
/// `FnMut(&mut [u8])` is one.
///
/// Keys are made from these bytes: an attacker who can guess them can read all traffic. If the
/// source repeats its output, hybrid handshakes still use different randomness each time.
pub trait Random {
    /// Fills `bytes` with random bytes. Must not fail: a system without randomness cannot run the
    /// protocol.
    fn fill(&mut self, bytes: &mut [u8]);

    /// Returns 32 random secret bytes.
    fn secret(&mut self) -> Secret<32> {
        let mut secret = Secret::zeroed();
        self.fill(secret.expose_mut());
        secret
    }

    /// Returns a random number.
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

/// Locks `mutex`. A panic in another thread that held the lock does not cause a panic here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
