//! The threads, and what is due beside them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use taupe_packet::ip::{Family, Packet};
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

use crate::socket::{DatagramSocket, FamilySocket, Interface, UdpSockets};

/// Length of the longest packet or datagram in bytes.
const MAX_PACKET: usize = 65_535;

/// Buffer size for a packet that is sealed in place.
const BUFFER_LEN: usize = DATA_HEADER_LEN + MAX_PACKET + 16 + TAG_LEN;

/// Pause after errors of a socket.
const PAUSE: Duration = Duration::from_millis(50);

/// Number of consecutive errors before a pause.
const ERRORS_BEFORE_PAUSE: u32 = 16;

/// Maximum number of attempts to end the sockets' threads, with a pause after each.
const END_ATTEMPTS: usize = 40;

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

struct Shared<I, S> {
    interface: I,
    sockets: ArcSwap<UdpSockets<S>>,
    path: Arc<DataPath>,
    /// Limit for padding, in bytes.
    mtu: AtomicUsize,
    handshakes: Mutex<HandshakeQueue>,
    /// Error that ended the interface's thread.
    failure: Mutex<Option<io::Error>>,
    notify: Wake,
    has_ended: AtomicBool,
}

impl<I: Interface, S: DatagramSocket> Shared<I, S> {
    /// Sends packets from the interface until it is closed.
    fn send_loop(&self) {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let packet = &mut buffer[DATA_HEADER_LEN..][..MAX_PACKET];
            match self.interface.read(packet) {
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
        let sockets = self.sockets.load();
        if is_loop(&packet, sockets.port(), &peer) {
            self.path.counters().add(DropReason::RoutingLoop, 1);
            return;
        }
        let length = packet.bytes().len();
        let padded = padded_len(length, self.mtu.load(Ordering::Relaxed));
        let sealed = DATA_HEADER_LEN + padded + TAG_LEN;
        // The padding may contain remains of earlier packets.
        buffer[DATA_HEADER_LEN + length..sealed].fill(0);
        let now = now().boot;
        match self.path.reserve(now, &peer, 1, sealed as u64) {
            Outbound::Send(mut reservation) => {
                let to = reservation.endpoint();
                let ready = reservation.seal(&mut buffer[..sealed], sealed);
                sockets.send(to, &buffer[..ready]);
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

    /// Passes on datagrams from a socket until it has ended.
    fn receive_loop(&self, sockets: &UdpSockets<S>, socket: &FamilySocket<S>) {
        let (mut buffer, mut batch) = (vec![0; MAX_PACKET], ReceivedBatch::default());
        let mut errors = Errors::default();
        loop {
            let received = socket.socket.receive(&mut buffer);
            if sockets.has_ended() {
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
    fn receive(&self, from: Endpoint, datagram: &mut [u8], received: &mut ReceivedBatch) {
        let length = datagram.len();
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
            if let Err(error) = self.interface.write(&datagram[packet.clone()]) {
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

/// A device between an interface and UDP sockets.
pub struct Forwarder<I, S> {
    /// The protocol's device.
    pub driver: Driver,
    /// True if handshake messages were left for later.
    has_handshakes: bool,
    shared: Arc<Shared<I, S>>,
    send_thread: Option<JoinHandle<()>>,
    receive_threads: Vec<JoinHandle<()>>,
}

impl<I: Interface, S: DatagramSocket> Forwarder<I, S> {
    /// Creates a device without a key, which is not up. `mtu` is the interface's, in bytes. Any
    /// thread calls `notify` when [`Self::settle`] has work to do; `notify` must return at once.
    pub fn new(
        interface: I,
        sockets: UdpSockets<S>,
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
                interface,
                sockets: ArcSwap::from_pointee(sockets),
                path,
                mtu: AtomicUsize::new(mtu),
                handshakes: Mutex::default(),
                failure: Mutex::default(),
                notify,
                has_ended: AtomicBool::new(false),
            }),
            send_thread: None,
            receive_threads: Vec::new(),
        }
    }

    /// Returns the interface.
    pub fn interface(&self) -> &I {
        &self.shared.interface
    }

    /// Returns the sockets.
    pub fn sockets(&self) -> Arc<UdpSockets<S>> {
        self.shared.sockets.load_full()
    }

    /// Tells the device the interface's MTU in bytes.
    pub fn set_mtu(&self, mtu: usize) {
        self.shared.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Starts the threads. The sockets must block.
    ///
    /// # Errors
    ///
    /// No thread is left.
    pub fn start(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("interface".into());
        self.send_thread = Some(thread.spawn(move || shared.send_loop())?);
        self.start_receiving(&self.sockets())
    }

    /// Replaces the sockets while the threads run. The old ones are closed when this returns, unless
    /// a thread is stuck in one.
    ///
    /// # Errors
    ///
    /// No thread is left. The new sockets then send, but do not receive in each family.
    pub fn replace_sockets(&mut self, sockets: UdpSockets<S>) -> io::Result<()> {
        let sockets = Arc::new(sockets);
        let old = self.shared.sockets.swap(Arc::clone(&sockets));
        self.end_receiving(&old);
        drop(old);
        self.start_receiving(&sockets)
    }

    fn start_receiving(&mut self, sockets: &Arc<UdpSockets<S>>) -> io::Result<()> {
        for family in Family::ALL {
            if sockets.of(family).is_none() {
                continue;
            }
            let (shared, sockets) = (Arc::clone(&self.shared), Arc::clone(sockets));
            let receive = move || {
                if let Some(socket) = sockets.of(family) {
                    shared.receive_loop(&sockets, socket);
                }
            };
            let thread = thread::Builder::new().name("udp".into()).spawn(receive)?;
            self.receive_threads.push(thread);
        }
        Ok(())
    }

    fn end_receiving(&mut self, sockets: &UdpSockets<S>) {
        for _ in 0..END_ATTEMPTS {
            sockets.end();
            self.receive_threads.retain(|thread| !thread.is_finished());
            if self.receive_threads.is_empty() {
                break;
            }
            thread::sleep(PAUSE);
        }
        // A thread that is left waits for a datagram, and ends with the next one.
        self.receive_threads.clear();
    }

    /// Does due work. The caller then calls [`Self::poll_notice`].
    ///
    /// # Errors
    ///
    /// The interface is gone.
    pub fn settle(&mut self) -> io::Result<()> {
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
    pub fn poll_notice(&mut self) -> Option<Notice> {
        loop {
            match self.driver.poll_event()? {
                Event::Transmit {
                    endpoint, datagram, ..
                } => {
                    if let Some(kind) = handshake_kind(&datagram) {
                        debug!(to = %endpoint.remote, "sending a handshake {kind}");
                    }
                    self.shared.sockets.load().send(endpoint, &datagram);
                }
                Event::Notice(notice) => return Some(notice),
            }
        }
    }

    /// Returns the time at which [`Self::settle`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.has_handshakes {
            return Some(Instant::default());
        }
        self.driver.next_deadline()
    }

    /// Erases the device's keys and ends the threads.
    pub fn end(mut self) {
        self.driver.close();
        while self.poll_notice().is_some() {}
        self.shared.has_ended.store(true, Ordering::Release);
        self.shared.interface.close();
        if let Some(thread) = self.send_thread.take() {
            let _ = thread.join();
        }
        let sockets = self.sockets();
        self.end_receiving(&sockets);
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
