//! Path of packets between an adapter and the UDP sockets, through the protocol. It does not depend
//! on Windows, so its tests run on other systems too.
//!
//! Each source of packets has a thread. The adapter's thread seals packets and sends them. A
//! socket's thread opens datagrams and passes packets to the adapter. The thread that owns the
//! [`Forwarder`] handles handshakes, timers and configuration. The other threads notify it of work.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use taupe_packet::ip::Packet;
use taupe_protocol::crypto::{TAG_LEN, default_provider};
use taupe_protocol::message::DATA_HEADER_LEN;
use taupe_protocol::time::Instant;
use taupe_protocol::{
    DataPath, DropReason, Endpoint, HandshakeQueue, LaneId, Lanes, Notice, Outbound, Peer,
    ReceivedBatch, Staged, Wake, padded_len,
};
use taupe_runtime::clock::now;
use taupe_runtime::driver::{Driver, handshake_kind};
use taupe_runtime::nested::NestedPacket;
use taupe_runtime::services::{Event, Services};
use tracing::debug;

/// Length of the longest packet or datagram in bytes.
const MAX_PACKET: usize = 65_535;

/// Buffer size for a packet that is sealed in place.
const BUFFER_LEN: usize = DATA_HEADER_LEN + MAX_PACKET + 16 + TAG_LEN;

/// Pause after errors of a socket.
const PAUSE: Duration = Duration::from_millis(50);

/// Number of consecutive errors before a pause.
const ERRORS_BEFORE_PAUSE: u32 = 16;

/// Maximum number of attempts to end a socket's thread, with a pause before each.
const END_ATTEMPTS: usize = 40;

/// An adapter that threads share.
pub(super) trait Tap: Send + Sync + 'static {
    /// Waits for a packet that the system sends. Returns the packet's length, or `None` once the
    /// adapter is closed.
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Passes a packet to the system as received.
    fn write(&self, packet: &[u8]) -> io::Result<()>;

    fn close(&self);
}

/// A UDP socket of one address family, which sends nothing while it is closed.
pub(super) struct FamilySocket {
    pub(super) socket: UdpSocket,
    is_closed: AtomicBool,
}

impl FamilySocket {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self {
            socket,
            is_closed: AtomicBool::new(false),
        }
    }

    pub(super) fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
    }
}

/// UDP sockets of both address families on one port.
pub(super) struct UdpSockets {
    pub(super) v4: FamilySocket,
    /// `None` if the system has no IPv6.
    pub(super) v6: Option<FamilySocket>,
    pub(super) port: u16,
}

impl UdpSockets {
    fn send(&self, to: SocketAddr, message: &[u8]) {
        let socket = match to {
            SocketAddr::V4(_) => Some(&self.v4),
            SocketAddr::V6(_) => self.v6.as_ref(),
        };
        let Some(socket) = socket else {
            debug!(%to, "this system has no socket of that family");
            return;
        };
        if socket.is_closed.load(Ordering::Relaxed) {
            return;
        }
        // Lost handshake messages are sent again, and applications cope with lost data packets.
        if let Err(error) = socket.socket.send_to(message, to) {
            debug!(%to, %error, "sending failed");
        }
    }
}

/// Counts a socket's consecutive errors. An error may say that an earlier datagram did not arrive.
/// Anyone on the path can forge that, so the socket continues to receive.
#[derive(Default)]
struct Errors(u32);

impl Errors {
    /// Counts an error. Returns true, and restarts the count, if a pause is due.
    fn are_too_many(&mut self) -> bool {
        self.0 = (self.0 + 1) % ERRORS_BEFORE_PAUSE;
        self.0 == 0
    }
}

struct Shared<T> {
    tap: T,
    sockets: UdpSockets,
    path: Arc<DataPath>,
    /// Limit for padding, in bytes.
    mtu: usize,
    handshakes: Mutex<HandshakeQueue>,
    /// Error that ended the adapter's thread.
    failure: Mutex<Option<io::Error>>,
    notify: Wake,
    has_ended: AtomicBool,
}

impl<T: Tap> Shared<T> {
    /// Sends packets from the adapter until it is closed.
    fn send_loop(&self) {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            match self.tap.read(&mut buffer[DATA_HEADER_LEN..][..MAX_PACKET]) {
                Ok(Some(length)) if !self.has_ended() => self.send(&mut buffer, length),
                Ok(_) => return,
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Seals and sends a packet. The buffer has room for the header before the packet.
    fn send(&self, buffer: &mut [u8], length: usize) {
        let Ok(packet) = Packet::parse(&buffer[DATA_HEADER_LEN..][..length]) else {
            return;
        };
        let Some(peer) = self.path.routes().lookup(packet.destination()).cloned() else {
            return;
        };
        if is_loop(&packet, self.sockets.port, &peer) {
            self.path.counters().add(DropReason::RoutingLoop, 1);
            return;
        }
        let length = packet.bytes().len();
        let padded = padded_len(length, self.mtu);
        let sealed = DATA_HEADER_LEN + padded + TAG_LEN;
        // The padding may contain remains of earlier packets.
        buffer[DATA_HEADER_LEN + length..sealed].fill(0);
        let now = now().boot;
        match self.path.reserve(now, &peer, 1, sealed as u64) {
            Outbound::Send(mut reservation) => {
                let to = reservation.endpoint().remote;
                let ready = reservation.seal(&mut buffer[..sealed], sealed);
                self.sockets.send(to, &buffer[..ready]);
            }
            Outbound::Stage => {
                let packet = buffer[DATA_HEADER_LEN..][..padded].to_vec();
                let staged = Staged {
                    packet,
                    ecn: 0,
                    lane: LaneId::FIRST,
                };
                self.path.stage(now, &peer, std::iter::once(staged));
            }
            // The packet is dropped without an error, as if the destination did not exist.
            Outbound::NoEndpoint => {}
        }
    }

    /// Passes on datagrams from a socket until the end.
    fn receive_loop(&self, socket_of: fn(&UdpSockets) -> Option<&FamilySocket>) {
        let Some(FamilySocket { socket, .. }) = socket_of(&self.sockets) else {
            return;
        };
        let (mut buffer, mut batch) = (vec![0; MAX_PACKET], ReceivedBatch::default());
        let mut errors = Errors::default();
        loop {
            let received = socket.recv_from(&mut buffer);
            if self.has_ended() {
                return;
            }
            match received {
                Ok((length, from)) => {
                    errors = Errors::default();
                    self.receive(from, &mut buffer[..length], &mut batch);
                }
                Err(error) => {
                    debug!(%error, "receiving failed");
                    if errors.are_too_many() {
                        thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    /// Opens a datagram and passes on its content.
    fn receive(&self, from: SocketAddr, datagram: &mut [u8], received: &mut ReceivedBatch) {
        let (from, length) = (Endpoint::from(from), datagram.len());
        self.path
            .receive(now().boot, from, datagram, length, received);
        for message in &received.handshakes {
            let mut waiting = lock(&self.handshakes);
            let dropped = waiting.push(from, &datagram[message.clone()]);
            self.path.counters().add(DropReason::BacklogFull, dropped);
            // The first message in the queue triggers the notification, so later ones need none.
            if waiting.len() == 1 {
                (self.notify)();
            }
        }
        for packet in &received.inner {
            if let Err(error) = self.tap.write(&datagram[packet.clone()]) {
                self.fail(error);
            }
        }
    }

    fn fail(&self, error: io::Error) {
        lock(&self.failure).get_or_insert(error);
        (self.notify)();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

pub(super) struct Forwarder<T> {
    pub(super) driver: Driver,
    /// True if handshake messages were left for later.
    has_handshakes: bool,
    shared: Arc<Shared<T>>,
    send_thread: Option<JoinHandle<()>>,
    receive_threads: Vec<JoinHandle<()>>,
}

impl<T: Tap> Forwarder<T> {
    /// Creates a device without a key, which is not up. Any thread calls `notify` when
    /// [`Self::settle`] has work to do; `notify` must return at once.
    pub(super) fn new(
        tap: T,
        sockets: UdpSockets,
        mtu: usize,
        services: Services,
        notify: Wake,
    ) -> Self {
        let driver = Driver::new(
            default_provider(),
            services,
            Arc::clone(&notify),
            Lanes::One,
        );
        let path = Arc::clone(driver.data_path());
        Self {
            driver,
            has_handshakes: false,
            shared: Arc::new(Shared {
                tap,
                sockets,
                path,
                mtu,
                handshakes: Mutex::default(),
                failure: Mutex::default(),
                notify,
                has_ended: AtomicBool::new(false),
            }),
            send_thread: None,
            receive_threads: Vec::new(),
        }
    }

    pub(super) fn sockets(&self) -> &UdpSockets {
        &self.shared.sockets
    }

    /// Sets the device up and starts the threads.
    ///
    /// # Errors
    ///
    /// Fails if no thread is left, or if a socket cannot be set to blocking.
    pub(super) fn start(&mut self) -> io::Result<()> {
        self.driver.device_mut().set_up(now());
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("adapter".into());
        self.send_thread = Some(thread.spawn(move || shared.send_loop())?);
        let sockets: [fn(&UdpSockets) -> Option<&FamilySocket>; 2] =
            [|sockets| Some(&sockets.v4), |sockets| sockets.v6.as_ref()];
        for socket_of in sockets {
            let Some(FamilySocket { socket, .. }) = socket_of(&self.shared.sockets) else {
                continue;
            };
            socket.set_nonblocking(false)?;
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("udp".into());
            let thread = thread.spawn(move || shared.receive_loop(socket_of))?;
            self.receive_threads.push(thread);
        }
        Ok(())
    }

    /// Does due work. The caller then calls [`Self::poll_notice`].
    ///
    /// # Errors
    ///
    /// Fails if the adapter is gone.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if let Some(failure) = lock(&self.shared.failure).take() {
            return Err(failure);
        }
        let handshakes = &self.shared.handshakes;
        let handled = self
            .driver
            .handle_handshakes(|count, taken| lock(handshakes).take(count, taken));
        self.has_handshakes = handled.left > 0;
        self.driver.run_due();
        Ok(())
    }

    /// Sends the protocol's datagrams, and returns the next notice.
    pub(super) fn poll_notice(&mut self) -> Option<Notice> {
        loop {
            match self.driver.poll_event()? {
                Event::Transmit {
                    endpoint, datagram, ..
                } => {
                    if let Some(kind) = handshake_kind(&datagram) {
                        debug!(to = %endpoint.remote, "sending a handshake {kind}");
                    }
                    self.shared.sockets.send(endpoint.remote, &datagram);
                }
                Event::Notice(notice) => return Some(notice),
            }
        }
    }

    /// Returns the time at which [`Self::settle`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.has_handshakes {
            return Some(Instant::default());
        }
        self.driver.next_deadline()
    }

    /// Erases the device's keys and ends the threads.
    pub(super) fn end(mut self) {
        self.driver.close();
        while self.poll_notice().is_some() {}
        self.shared.has_ended.store(true, Ordering::Release);
        self.shared.tap.close();
        if let Some(thread) = self.send_thread.take() {
            let _ = thread.join();
        }
        for _ in 0..END_ATTEMPTS {
            if self.receive_threads.iter().all(JoinHandle::is_finished) {
                break;
            }
            wake(self.shared.sockets.port);
            thread::sleep(PAUSE);
        }
    }
}

/// Sends an empty datagram to the sockets of both families, which ends a blocking read.
fn wake(port: u16) {
    let here: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    for here in here {
        let socket = UdpSocket::bind((here, 0));
        let _ = socket.and_then(|socket| socket.send_to(&[], (here, port)));
    }
}

/// Checks whether a packet is transport data that this device has sealed for the very peer that
/// it is routed to.
fn is_loop(packet: &Packet<'_>, own_port: u16, peer: &Peer) -> bool {
    NestedPacket::parse(packet).is_some_and(|nested| {
        let endpoint = peer.endpoint();
        endpoint.is_some_and(|own| nested.is_sealed_for(own_port, peer, own.remote))
    })
}

/// Locks a mutex, even if another thread has panicked while it held the lock.
fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
