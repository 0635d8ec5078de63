//! A tunnel to one peer without I/O, as boringtun defines it.
//!
//! Packets do not take the lock of handshakes and timers ([`Control`]), so any number of threads
//! may write and read at the same time. Datagrams that the protocol sends by itself, for example
//! handshake messages, wait in a queue until the next call that can return one.

mod batch;
mod control;
mod load;
mod loss;
#[cfg(test)]
mod tests;

use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::message::{
    DATA_HEADER_LEN, DATA_OVERHEAD, Kind, Malformed, classify, data_header,
};
use taupe_protocol::time::{Instant, Tai64N};
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};
use taupe_protocol::{
    DataPath, Device, DropReason, Endpoint, Outbound, Peer, ReceivedBatch, hybrid::Suite,
    padded_len,
};
use taupe_runtime::random::SystemRandom;

use crate::clock;
use crate::error::Error;
use crate::log::{self, Level, Sink};
pub use batch::Strided;
use control::Control;
use loss::Loss;

/// Packets that are queued until there is a session, at most. Further ones are dropped.
pub const MAX_WAITING: usize = 256;
/// Bytes of a message besides its packet and padding.
pub const OVERHEAD: usize = DATA_OVERHEAD;
/// Offset of the packet in a message that is sealed or opened in place.
pub const OFFSET: usize = DATA_HEADER_LEN;

/// The longest inner packet: sealed it has 65,600 bytes, boringtun's MAX_WIREGUARD_PACKET_SIZE.
const MAX_PACKET: usize = 65_600 - OVERHEAD;
/// Every tunnel carries packets of this length (RFC 8200 §5), so padding up to it is safe.
const MIN_MTU: usize = 1280;
/// Endpoint of a peer whose address is unknown.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

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

/// Configuration of a tunnel.
pub struct Config {
    /// This side's private key.
    pub private_key: PrivateKey,
    /// The peer's public key.
    pub public_key: PublicKey,
    /// The preshared key, or [`PresharedKey::NONE`].
    pub preshared_key: PresharedKey,
    /// Persistent keepalive in seconds; 0 is off.
    pub keepalive: u16,
    /// The lower 24 bits become the upper 24 bits of each receiver index of this tunnel. A program
    /// with many tunnels on one socket can find the tunnel of a message by them.
    pub index: u32,
    /// Receiver of the tunnel's log lines; default: that of the process.
    pub sink: Option<Sink>,
}

/// Mode and keys of hybrid handshakes.
pub struct HybridKeys {
    /// The seed of this side's ML-KEM keys.
    pub private_key: Option<PqPrivateKey>,
    /// The peer's ML-KEM key.
    pub public_key: Option<PqPublicKey>,
    /// The handshakes that are allowed.
    pub mode: PostQuantum,
    /// Set if there has been a hybrid handshake before: `Prefer` is then as strict as `Require`.
    pub latched: bool,
}

/// Statistics of a tunnel.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Statistics {
    /// The age of the current session; `None` without one.
    pub handshake_age: Option<Duration>,
    /// Packets sent, and their bytes.
    pub tx: (u64, u64),
    /// Packets received, and their bytes.
    pub rx: (u64, u64),
    /// The fraction of the peer's messages in recent sessions that have not arrived, 0 to 1.
    pub loss: f32,
    /// Time from the last initiation of this side to its response.
    pub rtt: Option<Duration>,
    /// Sessions so far.
    pub sessions: u64,
    /// Packets that are queued until there is a session.
    pub waiting: usize,
    /// The suite of the current session, if it is hybrid.
    pub suite: Option<Suite>,
    /// True if `Prefer` has become as strict as `Require`. Callers should save this.
    pub latched: bool,
    /// True if the peer does not answer, or the last session has been erased.
    pub expired: bool,
}

/// A tunnel to one peer. Any thread may call it, at any time.
pub struct Tunnel {
    path: Arc<DataPath>,
    peer: Arc<Peer>,
    control: Mutex<Control>,
    /// Set while the packet path has work for [`Control`].
    attention: Arc<AtomicBool>,
    /// The longest packet so far. Packets are padded to at most this length.
    longest: AtomicUsize,
    sent: Traffic,
    received: Mutex<Received>,
    sink: Option<Sink>,
}

#[derive(Default)]
struct Traffic {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    fn count(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (read(&self.packets), read(&self.bytes))
    }
}

/// State from authentic messages of the peer, under one lock that each message takes once.
#[derive(Default)]
struct Received {
    /// The source of the last message whose source is known.
    heard: Option<SocketAddr>,
    packets: u64,
    bytes: u64,
    loss: Loss,
}

impl Received {
    fn hear(&mut self, from: Option<SocketAddr>) {
        self.heard = from.or(self.heard);
    }

    fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }
}

thread_local! {
    static SORTED: RefCell<ReceivedBatch> = RefCell::default();
}

impl Tunnel {
    /// Creates a tunnel. It is idle until a packet is written, a datagram is read, or the keepalive
    /// is due. Returns `None` if the peer's key is this side's own or all zeros.
    #[must_use]
    pub fn new(config: Config) -> Option<Self> {
        let attention = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&attention);
        let mut device = Device::new(
            default_provider(),
            Box::new(SystemRandom),
            Arc::new(move || flag.store(true, Ordering::Release)),
        );
        device.set_index_prefix(config.index);
        let now = clock::now();
        let key = config.public_key;
        let mut peer = PeerUpdate::new(key);
        peer.preshared_key = Some(config.preshared_key);
        peer.endpoint = Some(NOWHERE);
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
            attention,
            longest: AtomicUsize::new(MIN_MTU),
            sent: Traffic::default(),
            received: Mutex::default(),
            sink: config.sink,
        })
    }

    /// Sends an IP packet to the peer, or a keepalive if `src` is empty. Writes the message that
    /// carries the packet to `dst`. Without a session, queues the packet and writes a handshake
    /// initiation.
    ///
    /// # Errors
    /// [`Error::DestinationBufferTooSmall`] if `dst` is shorter than the packet plus [`OVERHEAD`],
    /// or than a handshake message. [`Error::InvalidPacket`] if `src` is too long for a packet.
    pub fn write(&self, src: &[u8], dst: &mut [u8]) -> Result {
        if src.is_empty() {
            return self.write_keepalive(dst);
        }
        let now = clock::recent_boot();
        self.bound(src.len())?;
        if let Some(length) = self.message_len(src.len(), dst.len()) {
            if let Outbound::Send(reservation) =
                self.path.reserve(now, &self.peer, 1, length as u64)
            {
                let message = &mut dst[..length];
                let (packet, rest) = message[OFFSET..].split_at_mut(src.len());
                packet.copy_from_slice(src);
                rest.fill(0);
                reservation.seal(message, length);
                self.lengthen(src.len());
                self.sent.count(1, src.len() as u64);
                self.attend();
                return Ok(Outcome::Network(length));
            }
        } else if self.peer.has_session(now) {
            return Err(Error::DestinationBufferTooSmall);
        }
        let packet = core::iter::once(src);
        let outcome = self.with(|control, now| control.wait(&self.path, now, packet, dst))?;
        self.lengthen(src.len());
        Ok(outcome)
    }

    /// Sends a packet like [`Self::write`], but in place. The packet is `length` bytes of `buffer`
    /// from [`OFFSET`] on, and the message replaces it. `buffer` must have [`OVERHEAD`] bytes more.
    ///
    /// # Errors
    /// Those of [`Self::write`].
    pub fn write_in_place(&self, buffer: &mut [u8], length: usize) -> Result {
        let end = OFFSET
            .checked_add(length)
            .filter(|end| *end <= buffer.len());
        let end = end.ok_or(Error::DestinationBufferTooSmall)?;
        let now = clock::recent_boot();
        self.bound(length)?;
        if length > 0
            && let Some(total) = self.message_len(length, buffer.len())
            && let Outbound::Send(reservation) = self.path.reserve(now, &self.peer, 1, total as u64)
        {
            let message = &mut buffer[..total];
            message[end..].fill(0);
            reservation.seal(message, total);
            self.lengthen(length);
            self.sent.count(1, length as u64);
            self.attend();
            return Ok(Outcome::Network(total));
        }
        let packet = buffer[OFFSET..end].to_vec();
        self.write(&packet, buffer)
    }

    /// Handles a datagram from the peer, and writes the packet in it or the answer to it. With an
    /// empty `src`, writes the next datagram to send. After [`Outcome::Network`] there may be more
    /// to send: call again with an empty `src` until [`Outcome::Done`].
    ///
    /// `from` is the source of the datagram, if it is known. Under load, handshake messages with a
    /// known source are answered with cookies, and others are refused.
    ///
    /// # Errors
    /// The reason for which the datagram was refused. [`Error::DestinationBufferTooSmall`] if `dst`
    /// is too short: the packet of a data message needs `src.len()` less [`OVERHEAD`] bytes. A
    /// datagram to send stays in the queue then.
    pub fn read(&self, from: Option<SocketAddr>, src: &[u8], dst: &mut [u8]) -> Result {
        match classify(src) {
            _ if src.is_empty() => self.with(|control, now| control.emit(&self.path, now, dst)),
            Ok(Kind::Data) if dst.len() + OFFSET >= src.len() => {
                let data = &mut dst[..src.len() - OFFSET];
                data.copy_from_slice(&src[OFFSET..]);
                match self.open(from, src, data)? {
                    Some(length) => Ok(packet_outcome(&data[..length])),
                    None => self.after_keepalive(dst),
                }
            }
            // The destination has room for the packet, but not for the tag behind it.
            Ok(Kind::Data) if dst.len() + OVERHEAD >= src.len() => {
                let mut data = src[OFFSET..].to_vec();
                match self.open(from, src, &mut data)? {
                    Some(length) => {
                        let packet = &data[..length];
                        dst[..length].copy_from_slice(packet);
                        Ok(packet_outcome(packet))
                    }
                    None => self.after_keepalive(dst),
                }
            }
            Ok(Kind::Data) => Err(Error::DestinationBufferTooSmall),
            Ok(kind) => self.handshake(from, kind, src, dst),
            Err(malformed) => Err(self.refuse(match malformed {
                Malformed::Length => DropReason::Length,
                Malformed::Type => DropReason::Type,
            })),
        }
    }

    /// Handles a datagram like [`Self::read`], but in place. The datagram is the first `length`
    /// bytes of `buffer`. A packet begins at [`OFFSET`], a datagram to send at 0.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_in_place(
        &self,
        from: Option<SocketAddr>,
        buffer: &mut [u8],
        length: usize,
    ) -> Result {
        let datagram = buffer.get_mut(..length);
        let datagram = datagram.ok_or(Error::DestinationBufferTooSmall)?;
        if let Ok(Kind::Data) = classify(datagram) {
            let (header, data) = datagram.split_at_mut(OFFSET);
            return match self.open(from, header, data)? {
                Some(length) => Ok(packet_outcome(&data[..length])),
                None => self.after_keepalive(buffer),
            };
        }
        let datagram = datagram.to_vec();
        self.read(from, &datagram, buffer)
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
            match control.emit_what_fits(&self.path, now, dst)? {
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
        if self.attention.load(Ordering::Acquire) {
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

    /// Returns the source of the peer's last authentic message whose source is known.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.lock_received().heard
    }

    /// Returns the statistics of the tunnel.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let session = self.peer.session();
        let now = clock::boot();
        let (rx, loss) = {
            let received = self.lock_received();
            ((received.packets, received.bytes), received.loss.estimate())
        };
        let (packets, bytes) = self.sent.read();
        let control = self.lock();
        Statistics {
            handshake_age: session.as_ref().map(|session| now.since(session.born())),
            tx: (packets + control.late.0, bytes + control.late.1),
            rx,
            loss,
            rtt: control.rtt,
            sessions: control.sessions,
            waiting: control.waiting(),
            suite: session.and_then(|session| session.suite()),
            latched: control.latched,
            expired: control.expired,
        }
    }

    /// Returns the number of messages and packets dropped for the reason `cause`.
    #[must_use]
    pub fn dropped(&self, cause: DropReason) -> u64 {
        self.path.counters().count(cause)
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

    fn write_keepalive(&self, dst: &mut [u8]) -> Result {
        self.with(|control, now| {
            if dst.len() < control.longest_next(now.boot) {
                return Err(Error::DestinationBufferTooSmall);
            }
            control.keepalive(&self.path, now);
            control.emit(&self.path, now, dst)
        })
    }

    /// Writes the next datagram to send after a keepalive has arrived: a keepalive may confirm the
    /// session for which packets wait.
    fn after_keepalive(&self, dst: &mut [u8]) -> Result {
        if !self.attention.load(Ordering::Acquire) {
            return Ok(Outcome::Done);
        }
        let outcome = self.with(|control, now| control.emit(&self.path, now, dst));
        // A datagram that does not fit waits for the next call. The keepalive has been handled.
        match outcome {
            Err(Error::DestinationBufferTooSmall) => Ok(Outcome::Done),
            outcome => outcome,
        }
    }

    fn handshake(
        &self,
        from: Option<SocketAddr>,
        kind: Kind,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result {
        self.with(|control, now| {
            if dst.len() < control.longest_answer(kind) {
                return Err(Error::DestinationBufferTooSmall);
            }
            if let Err(cause) = control.handshake(now, from, kind, src) {
                return Err(cause.into());
            }
            self.hear_of_handshake(from);
            match control.emit(&self.path, now, dst) {
                Err(Error::DestinationBufferTooSmall) => Ok(Outcome::Done),
                outcome => outcome,
            }
        })
    }

    /// Opens a data message in place. `message` begins with its header, and `data` is the content
    /// behind it. Returns the length of the packet at the start of `data`, or `None` for a
    /// keepalive.
    fn open(
        &self,
        from: Option<SocketAddr>,
        message: &[u8],
        data: &mut [u8],
    ) -> Result<Option<usize>> {
        let header = data_header(message).ok_or_else(|| self.refuse(DropReason::Length))?;
        let now = clock::recent_boot();
        let origin = Endpoint::from(from.unwrap_or(NOWHERE));
        let opened = self.path.receive_one(now, origin, header, data);
        let length = opened.map_err(|cause| self.tell(cause))?;
        let mut received = self.lock_received();
        received.hear(from);
        received.loss.count(header);
        if let Some(length) = length {
            received.count(1, length as u64);
            drop(received);
            self.attend();
        }
        Ok(length)
    }

    /// Returns the length of the message for a packet, or `None` if `room` is too small. Pads the
    /// packet to a multiple of 16 bytes (whitepaper §5.4.6), but neither beyond `room` nor beyond
    /// the longest packet so far.
    fn message_len(&self, packet: usize, room: usize) -> Option<usize> {
        let room = room.checked_sub(OVERHEAD).filter(|room| *room >= packet)?;
        let longest = self.longest.load(Ordering::Relaxed).max(packet);
        Some(padded_len(packet, longest).min(room) + OVERHEAD)
    }

    fn bound(&self, packet: usize) -> Result<()> {
        match packet > MAX_PACKET {
            true => Err(self.refuse(DropReason::Length)),
            false => Ok(()),
        }
    }

    /// Records the length of a packet, up to which later ones may be padded.
    fn lengthen(&self, packet: usize) {
        if packet > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(packet, Ordering::Relaxed);
        }
    }

    /// Runs the work that the packet path has left for [`Control`], if there is any.
    fn attend(&self) {
        if self.attention.load(Ordering::Acquire) {
            self.with(|_, _| {});
        }
    }

    /// Runs `f` with the lock of [`Control`] held, and logs its events afterwards.
    fn with<T>(&self, f: impl FnOnce(&mut Control, taupe_protocol::time::Now) -> T) -> T {
        let mut control = self.lock();
        let now = clock::now();
        if self.attention.swap(false, Ordering::AcqRel) {
            control.attend(now);
        }
        let result = f(&mut control, now);
        let events = control.take_events();
        drop(control);
        if let Some(sink) = self.sink() {
            for event in events {
                sink.say(event.level(), || event.to_string());
            }
        }
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_received(&self) -> std::sync::MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the source of a handshake message, if the message was authentic: then the device has
    /// set the peer's endpoint to that source.
    fn hear_of_handshake(&self, from: Option<SocketAddr>) {
        let endpoint = self.peer.endpoint().map(|endpoint| endpoint.remote);
        if from == endpoint {
            self.lock_received().hear(from);
        }
    }

    fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref().or_else(|| log::process_sink())
    }

    /// Counts and logs a refused message.
    fn refuse(&self, cause: DropReason) -> Error {
        self.path.counters().add(cause, 1);
        self.tell(cause)
    }

    fn tell(&self, cause: DropReason) -> Error {
        if let Some(sink) = self.sink() {
            sink.say(Level::Trace, || format!("dropped a message: {cause}"));
        }
        cause.into()
    }
}

/// Returns the outcome for a packet, by its IP version, which has been checked.
fn packet_outcome(packet: &[u8]) -> Outcome {
    match packet.first().map(|first| first >> 4) {
        Some(6) => Outcome::Ipv6(packet.len()),
        _ => Outcome::Ipv4(packet.len()),
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}
