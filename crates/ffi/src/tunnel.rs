//! A tunnel to one peer without I/O, as boringtun defines it.
//!
//! Packets do not take the lock of handshakes and timers ([`Control`]), so any number of threads
//! may write and read at the same time. Datagrams that the protocol sends by itself, for example
//! handshake messages, wait in a queue until the next call that can return one.

mod batch;
mod config;
mod control;
mod load;
mod loss;
mod pending_work;
// loom switches stacks, which the Windows runtime of a panic does not survive.
#[cfg(all(test, unix, target_arch = "x86_64"))]
mod pending_work_model;
mod read;
mod statistics;
#[cfg(test)]
mod tests;
mod write;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::AtomicUsize;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PresharedKey;
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use taupe_protocol::time::{Instant, Now, Tai64N};
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};
use taupe_protocol::{DataPath, Device, DropReason, Peer};
use taupe_runtime::random::SystemRandom;

use crate::clock;
use crate::error::Error;
use crate::log::{self, Level, Sink};
pub use batch::Strided;
pub use config::{Config, HybridKeys};
use control::Control;
use pending_work::PendingWork;
pub use statistics::Statistics;
use statistics::{Received, Traffic};

/// The atomics of the module that `pending_work_model` compiles with loom's.
mod sync {
    pub(super) use core::sync::atomic::{AtomicBool, Ordering};
}

/// Packets that are queued until there is a session, at most. Further ones are dropped.
pub const MAX_WAITING: usize = 256;
/// Bytes of a message besides its packet and padding.
pub const OVERHEAD: usize = DATA_OVERHEAD;
/// Offset of the packet in a message that is sealed or opened in place.
pub const OFFSET: usize = DATA_HEADER_LEN;

/// Every tunnel carries packets of this length (RFC 8200 §5), so padding up to it is safe.
const MIN_MTU: usize = 1280;
/// Endpoint of a peer whose address is unknown.
const UNKNOWN_ENDPOINT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The operation that the caller has to carry out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing to do.
    Done,
    /// This number of bytes in the destination is a datagram for the peer.
    Network(usize),
    /// This number of bytes in the destination is an IPv4 packet from the peer.
    Ipv4(usize),
    /// This number of bytes in the destination is an IPv6 packet from the peer.
    Ipv6(usize),
}

/// Result of a call.
pub type Result<T = Outcome> = core::result::Result<T, Error>;

/// A tunnel to one peer. Any thread may call it, at any time.
pub struct Tunnel {
    path: Arc<DataPath>,
    peer: Arc<Peer>,
    control: Mutex<Control>,
    /// Set while the packet path has work for [`Control`].
    pending_work: Arc<PendingWork>,
    /// The longest packet so far. Packets are padded to at most this length.
    longest: AtomicUsize,
    sent: Traffic,
    received: Mutex<Received>,
    sink: Option<Sink>,
}

impl Tunnel {
    /// Creates a tunnel. It is idle until a packet is written, a datagram is read, or the keepalive
    /// is due. Returns `None` if the peer's key is this side's own or all zeros.
    #[must_use]
    pub fn new(config: Config) -> Option<Self> {
        let pending_work = Arc::new(PendingWork::new());
        let noted = Arc::clone(&pending_work);
        let mut device = Device::new(
            default_provider(),
            Box::new(SystemRandom),
            Arc::new(move || noted.note()),
        );
        device.set_index_prefix(config.index);
        let now = clock::now();
        let key = config.public_key;
        let mut peer = PeerUpdate::new(key);
        peer.preshared_key = Some(config.preshared_key);
        peer.endpoint = Some(UNKNOWN_ENDPOINT);
        peer.replace_allowed_ips = true;
        // The caller checks inner source addresses, so all are allowed here.
        let everything: [IpNet; 2] = [Ipv4Net::default().into(), Ipv6Net::default().into()];
        peer.allowed_ips = everything.map(AllowedIpChange::Add).into();
        let update = DeviceUpdate {
            private_key: Some(PrivateKeyUpdate {
                key: Some(config.private_key),
                timestamp_floor: Tai64N::ZERO,
            }),
            peers: vec![peer],
            ..Default::default()
        };
        device.update(now, update).ok()?;
        let peer = device.peer(&key).filter(|_| key.0 != [0; 32])?;
        device.set_up(now);
        Some(Self {
            path: Arc::clone(device.data_path()),
            control: Mutex::new(Control::new(
                device,
                Arc::clone(&peer),
                now.boot,
                config.keepalive,
            )),
            peer,
            pending_work,
            longest: AtomicUsize::new(MIN_MTU),
            sent: Traffic::default(),
            received: Mutex::default(),
            sink: config.sink,
        })
    }

    /// Runs the timers, and writes the next datagram to send. A queued packet that does not fit
    /// into `dst` waits for a call of [`Self::read`].
    ///
    /// # Errors
    /// [`Error::ConnectionExpired`] after the peer has been given up or the last session has been
    /// erased, until a packet is written or a handshake is forced.
    /// [`Error::DestinationBufferTooSmall`] as for [`Self::read`].
    pub fn tick(&self, dst: &mut [u8]) -> Result {
        self.with(|control, now| {
            control.tick(now);
            match control.emit_if_it_fits(&self.path, now, dst)? {
                Outcome::Done if control.expired => Err(Error::ConnectionExpired),
                outcome => Ok(outcome),
            }
        })
    }

    /// Starts a handshake now, even if there is a session, and writes its initiation.
    ///
    /// # Errors
    /// [`Error::DestinationBufferTooSmall`] as for [`Self::read`].
    pub fn force_handshake(&self, dst: &mut [u8]) -> Result {
        self.with(|control, now| {
            control.force_handshake(now);
            control.emit(&self.path, now, dst)
        })
    }

    /// Returns the time until [`Self::tick`] has something to do. `None` if no timer is set, unless
    /// a packet is written or read first.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.pending_work.is_noted() {
            return Some(Duration::ZERO);
        }
        let now = clock::boot();
        let at = self.lock().next_deadline(now)?;
        Some(at.since(now))
    }

    /// Sets the preshared key of later handshakes.
    pub fn set_preshared_key(&self, key: PresharedKey) {
        self.update(|peer| peer.preshared_key = Some(key));
    }

    /// Sets the persistent keepalive in seconds; 0 is off. If it was off before, the first
    /// keepalive is due at once.
    pub fn set_keepalive(&self, seconds: u16) {
        self.with(|control, _| control.forget_keepalive());
        self.update(|peer| peer.persistent_keepalive = Some(seconds));
    }

    /// Sets the mode and the keys of hybrid handshakes. Ends sessions that the mode no longer
    /// allows.
    pub fn set_hybrid(&self, keys: HybridKeys) {
        self.with(|control, now| {
            let mut peer = PeerUpdate::new(*self.peer.public_key());
            peer.update_only = true;
            peer.pq_public_key = Some(keys.public_key);
            peer.post_quantum = Some(Some(keys.mode));
            peer.pq_pinned = keys.latched;
            control.hybrid = keys.mode != PostQuantum::Off;
            control.latched = keys.latched && keys.mode == PostQuantum::Prefer;
            control.update(
                now,
                DeviceUpdate {
                    pq_private_key: Some(keys.private_key),
                    peers: vec![peer],
                    ..Default::default()
                },
            );
        });
    }

    fn update(&self, change: impl FnOnce(&mut PeerUpdate)) {
        let mut peer = PeerUpdate::new(*self.peer.public_key());
        peer.update_only = true;
        change(&mut peer);
        self.with(|control, now| {
            control.update(
                now,
                DeviceUpdate {
                    peers: vec![peer],
                    ..Default::default()
                },
            );
        });
    }

    /// Runs the work that the packet path has left for [`Control`], if there is any.
    fn run_pending_work(&self) {
        if self.pending_work.is_noted() {
            self.with(|_, _| {});
        }
    }

    /// Runs `f` with the lock of [`Control`] held, and logs its events afterwards.
    fn with<T>(&self, f: impl FnOnce(&mut Control, Now) -> T) -> T {
        let mut control = self.lock();
        let now = clock::now();
        if self.pending_work.take() {
            control.run_pending_work(now);
        }
        let result = f(&mut control, now);
        let events = control.take_events();
        drop(control);
        if let Some(sink) = self.sink() {
            for event in events {
                sink.log(event.level(), || event.to_string());
            }
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref().or_else(|| log::process_sink())
    }

    /// Counts and logs a refused message.
    fn refuse(&self, cause: DropReason) -> Error {
        self.path.counters().add(cause, 1);
        self.log_drop(cause)
    }

    /// Logs a refused message.
    fn log_drop(&self, cause: DropReason) -> Error {
        if let Some(sink) = self.sink() {
            sink.log(Level::Trace, || format!("dropped a message: {cause}"));
        }
        cause.into()
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}
