//! One tunnel to one peer, without I/O: what boringtun calls a tunnel.
//!
//! The way of a packet takes no lock of handshakes and timers: any number of threads may
//! write and read at once. What the protocol wants sent besides waits in a queue until the
//! next call that may return it.

mod batch;
mod control;
mod load;
mod loss;
#[cfg(test)]
mod tests;

use core::cell::RefCell;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::message::{
    DATA_HEADER_LEN, DATA_OVERHEAD, Kind, Malformed, classify, data_header,
};
use taupe_protocol::time::{Instant, Tai64N};
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, Prefix, PrivateKeyUpdate,
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

/// Packets that wait for a session, at most; a newer one is dropped.
pub const MAX_WAITING: usize = 256;
/// Bytes that a message has more than its packet and padding.
pub const OVERHEAD: usize = DATA_OVERHEAD;
/// Where the packet is in a message that is sealed or opened in place.
pub const OFFSET: usize = DATA_HEADER_LEN;

/// The longest inner packet: sealed it has 65,600 bytes, boringtun's MAX_WIREGUARD_PACKET_SIZE.
const MAX_PACKET: usize = 65_600 - OVERHEAD;
/// Every tunnel carries packets of this length (RFC 8200 §5), so padding up to it does no
/// harm.
const MIN_MTU: usize = 1280;
/// Where a peer is of which nobody has said where it is.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a call has left to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing.
    Done,
    /// So many bytes of the destination are a datagram for the peer.
    Network(usize),
    /// So many bytes of the destination are an IPv4 packet from the peer.
    Ipv4(usize),
    /// So many bytes of the destination are an IPv6 packet from the peer.
    Ipv6(usize),
}

/// What a call comes to.
pub type Result<T = Outcome> = core::result::Result<T, Error>;

/// What a tunnel is made of.
pub struct Config {
    /// This side's private key.
    pub private_key: PrivateKey,
    /// The peer's public key.
    pub public_key: PublicKey,
    /// The key both share besides, or [`PresharedKey::NONE`].
    pub preshared_key: PresharedKey,
    /// Seconds of silence after which something is sent all the same; 0 is never.
    pub keepalive: u16,
    /// The upper 24 bits of every index of this tunnel: by these, who has many tunnels at
    /// one socket knows whose a message is.
    pub index: u32,
    /// Where its lines go, if not where those of the process go.
    pub sink: Option<Sink>,
}

/// Keys and rules of hybrid handshakes.
pub struct HybridKeys {
    /// The seed of this side's ML-KEM keys.
    pub private_key: Option<PqPrivateKey>,
    /// The peer's ML-KEM key.
    pub public_key: Option<PqPublicKey>,
    /// Which handshakes there are.
    pub mode: PostQuantum,
    /// There has been a hybrid handshake before: `Prefer` is as strict as `Require`.
    pub latched: bool,
}

/// What there is to tell of a tunnel.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Statistics {
    /// The age of the current session; `None` without one.
    pub handshake_age: Option<Duration>,
    /// Packets written, and their bytes.
    pub tx: (u64, u64),
    /// Packets read, and their bytes.
    pub rx: (u64, u64),
    /// The share of the peer's messages of the last sessions that have not arrived, 0 to 1.
    pub loss: f32,
    /// How long the last handshake of this side took to be answered.
    pub rtt: Option<Duration>,
    /// Sessions so far.
    pub sessions: u64,
    /// Packets that wait for one.
    pub waiting: usize,
    /// The hybrid handshake that the current session comes from.
    pub suite: Option<Suite>,
    /// `Prefer` has become as strict as `Require`: worth to be remembered.
    pub latched: bool,
    /// The peer does not answer, or the last session has been erased.
    pub expired: bool,
}

/// A tunnel to one peer. Any thread may call it, at any time.
pub struct Tunnel {
    path: Arc<DataPath>,
    peer: Arc<Peer>,
    control: Mutex<Control>,
    /// The way of a packet has something for control.
    attention: Arc<AtomicBool>,
    /// The longest packet so far: padding goes no further.
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

/// What authentic messages have told: under one lock, which each of them takes once.
#[derive(Default)]
struct Received {
    /// Where the last came from of which that was said. The device has `NOWHERE` for the others.
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
    /// A tunnel, in which nothing happens until something is written or received, or
    /// `keepalive` seconds are over. `None` if the peer's key cannot be anybody's: it is
    /// this side's own, or all zeros.
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
        // Who may send from where is the caller's to say.
        let everything = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let everything = everything.into_iter().filter_map(|ip| Prefix::new(ip, 0));
        peer.allowed_ips = everything.map(AllowedIpChange::Add).collect();
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

    /// Takes an IP packet for the peer, or nothing for a keepalive: writes the message that
    /// carries it, or, without a session, keeps it and writes the initiation of a handshake.
    ///
    /// # Errors
    /// [`Error::DestinationBufferTooSmall`] if `dst` is shorter than the packet and
    /// [`OVERHEAD`], or than a handshake message; [`Error::InvalidPacket`] for what is
    /// longer than any packet.
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

    /// As [`Self::write`], but the packet is in `buffer` already, from [`OFFSET`] on, and
    /// the message takes its place: there are [`OVERHEAD`] bytes more.
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

    /// Takes a datagram of the peer's, or nothing to have the next of what is to be sent:
    /// writes the packet in it, or the answer to it. After [`Outcome::Network`] there may be
    /// more to send: call again with nothing, until [`Outcome::Done`].
    ///
    /// `from` is where it came from, if that is known: under load, handshake messages from
    /// there are answered with cookies; others are refused.
    ///
    /// # Errors
    /// Why the datagram was refused. [`Error::DestinationBufferTooSmall`] if `dst` is shorter
    /// than what there is to write: a packet of a data message needs `src.len()` less
    /// [`OVERHEAD`]; what is to be sent stays there for the next call.
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
            // Room for the packet, but not for the tag behind it.
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

    /// As [`Self::read`], but the datagram is the first `length` bytes of `buffer`, and a
    /// packet stays in it, from [`OFFSET`] on. What is to be sent begins at 0.
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

    /// Does what is due, and writes what is to be sent first. A packet that has waited for a
    /// session and is longer than there is room stays for a call of [`Self::read`].
    ///
    /// # Errors
    /// [`Error::ConnectionExpired`] from when the peer has been given up, or the last
    /// session been erased, until something is written;
    /// [`Error::DestinationBufferTooSmall`] as [`Self::read`].
    pub fn tick(&self, dst: &mut [u8]) -> Result {
        self.with(|control, now| {
            control.tick(now);
            match control.emit_what_fits(&self.path, now, dst)? {
                Outcome::Done if control.expired => Err(Error::ConnectionExpired),
                outcome => Ok(outcome),
            }
        })
    }

    /// Begins a handshake now, whatever there is, and writes its initiation.
    ///
    /// # Errors
    /// [`Error::DestinationBufferTooSmall`] as [`Self::read`].
    pub fn force_handshake(&self, dst: &mut [u8]) -> Result {
        self.with(|control, now| {
            control.force_handshake(now);
            control.emit(&self.path, now, dst)
        })
    }

    /// In what time [`Self::tick`] has something to do; `None` if in no time, unless
    /// something is written or read.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.attention.load(Ordering::Acquire) {
            return Some(Duration::ZERO);
        }
        let now = clock::boot();
        let at = self.lock().next_deadline(now)?;
        Some(at.since(now))
    }

    /// Takes another preshared key for the handshakes to come.
    pub fn set_preshared_key(&self, key: PresharedKey) {
        self.update(|peer| peer.preshared_key = Some(key));
    }

    /// Takes another persistent keepalive, in seconds; 0 is off. When it has been off, the
    /// first is due at once.
    pub fn set_keepalive(&self, seconds: u16) {
        self.with(|control, _| control.forget_keepalive());
        self.update(|peer| peer.persistent_keepalive = Some(seconds));
    }

    /// Takes keys and rules for hybrid handshakes. Sessions that the rules no longer allow
    /// end.
    pub fn set_hybrid(&self, keys: HybridKeys) {
        self.with(|control, now| {
            let mut peer = PeerUpdate::new(*self.peer.public_key());
            peer.update_only = true;
            peer.pq_public_key = Some(keys.public_key);
            peer.post_quantum = Some(Some(keys.mode));
            peer.pq_latched = keys.latched;
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

    /// Where the peer was last heard of, by the messages of which it was said where they
    /// came from.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.lock_received().heard
    }

    /// What there is to tell.
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

    /// How many messages and packets have been dropped because of `cause`.
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

    /// A message that has opened may have let go what waited for it.
    fn after_keepalive(&self, dst: &mut [u8]) -> Result {
        if !self.attention.load(Ordering::Acquire) {
            return Ok(Outcome::Done);
        }
        let outcome = self.with(|control, now| control.emit(&self.path, now, dst));
        // What does not fit waits for the next call; the datagram has been read.
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

    /// Opens a data message in place: `message` has its header, `data` is what is behind that.
    /// How long the packet is with which `data` begins then, if there is one.
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

    /// How long a message is that carries a packet and fits: padded to 16 bytes as far as
    /// there is room, and as no packet becomes longer than others are (whitepaper §5.4.6).
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

    /// Such a packet has been taken: those after it may be padded as far.
    fn lengthen(&self, packet: usize) {
        if packet > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(packet, Ordering::Relaxed);
        }
    }

    /// Has control do what the way of a packet wants, if it wants anything.
    fn attend(&self) {
        if self.attention.load(Ordering::Acquire) {
            self.with(|_, _| {});
        }
    }

    /// Runs `f` with the lock of control held, and says afterwards what has happened.
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

    /// A handshake message came from there. It was authentic if the device sends there now.
    fn hear_of_handshake(&self, from: Option<SocketAddr>) {
        let endpoint = self.peer.endpoint().map(|endpoint| endpoint.remote);
        if from == endpoint {
            self.lock_received().hear(from);
        }
    }

    fn sink(&self) -> Option<&Sink> {
        self.sink.as_ref().or_else(|| log::process_sink())
    }

    /// Counts and tells why something was refused.
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

/// What a packet is by its version; it has been looked at.
fn packet_outcome(packet: &[u8]) -> Outcome {
    match packet.first().map(|first| first >> 4) {
        Some(6) => Outcome::Ipv6(packet.len()),
        _ => Outcome::Ipv4(packet.len()),
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}
