//! The tunnel: WireGuard's state machine and its UDP sockets.

use crate::failure::ConnectFailure;
use crate::handshakes::Handshakes;
use crate::outgoing::{Outgoing, Slot};
use crate::{NoticeHandler, OpenError};
use core::ops::Range;
use mio::event::Event as Readiness;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::time::Instant;
use taupe_protocol::update::{DeviceStatus, DeviceUpdate};
use taupe_protocol::{
    DataPath, DropReason, Endpoint, LaneId, Lanes, Notice, Outbound, Peer, ReceivedBatch, Staged,
    inner,
};
use taupe_runtime::clock::now;
use taupe_runtime::driver::{Driver, handshake_kind};
use taupe_runtime::services::{Event, Services};
use tracing::debug;

/// The longest datagram, in bytes.
pub(crate) const MAX_DATAGRAM: usize = 65_536;

/// Requested size of the sockets' kernel buffers, in bytes, for bursts. The system may grant less
/// to an unprivileged process.
const SYSTEM_BUFFER: usize = 4 << 20;

pub(crate) struct Tunnel {
    driver: Driver,
    path: Arc<DataPath>,
    sockets: Vec<BoundSocket>,
    batch: ReceivedBatch,
    handshakes: Handshakes,
    notices: Option<NoticeHandler>,
    /// True after a notice that a peer is silent, until one that it answers.
    silence_reported: bool,
    /// Sealed messages that the system did not accept yet.
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
}

struct BoundSocket {
    socket: UdpSocket,
    token: Token,
    is_ipv4: bool,
    /// True if the socket may have datagrams.
    is_readable: bool,
}

/// Result of reading a socket.
pub(crate) enum Received {
    /// A decrypted packet, at this range of the buffer.
    Packet(Range<usize>),
    /// A datagram without an inner packet, or an error.
    Other,
    /// No datagram is queued.
    Nothing,
}

impl Tunnel {
    /// Binds a socket for each family. One of the two may fail. `tokens` are for IPv4 and IPv6.
    pub(crate) fn new(
        update: DeviceUpdate,
        listen_port: u16,
        services: Services,
        notices: Option<NoticeHandler>,
        registry: &Registry,
        tokens: [Token; 2],
    ) -> Result<Self, OpenError> {
        let mut sockets = Vec::new();
        let mut refused = None;
        for (token, any) in tokens.into_iter().zip([
            IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ]) {
            match bind(SocketAddr::new(any, listen_port)) {
                Ok(mut socket) => {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    let registered = registry.register(&mut socket, token, interest);
                    registered.map_err(OpenError::Events)?;
                    sockets.push(BoundSocket {
                        socket,
                        token,
                        is_ipv4: any.is_ipv4(),
                        is_readable: false,
                    });
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    return Err(OpenError::PortTaken(listen_port));
                }
                Err(error) => refused = Some(error),
            }
        }
        if let (true, Some(error)) = (sockets.is_empty(), refused) {
            return Err(OpenError::Socket(error));
        }
        // The packet path runs in this thread, which polls it itself: no wake-up is needed.
        let mut driver = Driver::new(default_provider(), services, Arc::new(|| {}), Lanes::One);
        let update = driver.prepare(update)?;
        driver.apply(update)?;
        driver.device_mut().set_up(now());
        let mut tunnel = Self {
            path: Arc::clone(driver.data_path()),
            driver,
            sockets,
            batch: ReceivedBatch::default(),
            handshakes: Handshakes::default(),
            notices,
            silence_reported: false,
            waiting: VecDeque::new(),
        };
        tunnel.run_pending();
        Ok(tunnel)
    }

    /// Returns the half of the device that carries transport data.
    pub(crate) fn path(&self) -> &Arc<DataPath> {
        &self.path
    }

    /// Returns configuration and state of the peers.
    pub(crate) fn status(&self) -> DeviceStatus {
        self.driver.device().status()
    }

    /// Returns the UDP port, or `None` if the system does not report it.
    pub(crate) fn port(&self) -> Option<u16> {
        let address = self.sockets.first()?.socket.local_addr();
        Some(address.ok()?.port())
    }

    /// Records the readiness that an event reports. Returns `None` if the event is about another
    /// source, else true if a socket may accept datagrams again.
    pub(crate) fn note(&mut self, event: &Readiness) -> Option<bool> {
        let mut sockets = self.sockets.iter_mut();
        let bound = sockets.find(|bound| bound.token == event.token())?;
        bound.is_readable |= event.is_readable();
        Some(event.is_writable())
    }

    /// Returns true if a socket may have datagrams.
    pub(crate) fn is_readable(&self) -> bool {
        self.sockets.iter().any(|bound| bound.is_readable)
    }

    /// Returns the reason why `address` does not answer: the host, or the tunnel's peer.
    pub(crate) fn failure_for(&self, now: Instant, address: IpAddr) -> ConnectFailure {
        match self.path.routes().lookup(address) {
            Some(peer) if peer.has_session(now) => ConnectFailure::Silence,
            _ => ConnectFailure::Tunnel,
        }
    }

    /// Returns true if the user has been or will soon be notified that a peer does not answer.
    pub(crate) fn has_reported_silence(&self) -> bool {
        let mut peers = self.driver.device().status().peers.into_iter();
        self.silence_reported
            || (self.notices.is_some() && peers.any(|peer| peer.unanswered.is_some()))
    }

    /// Returns the time at which [`Tunnel::run_pending`] must run.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.driver.next_deadline()
    }

    /// Runs the protocol's pending work. Call it last in each turn.
    pub(crate) fn run_pending(&mut self) {
        self.driver.run_due();
        self.handle_events();
    }

    /// Shuts the tunnel down and erases its keys.
    pub(crate) fn close(&mut self) {
        self.driver.close();
        self.handle_events();
    }

    /// Receives a datagram from one of the sockets. Handshake messages are queued for
    /// [`Tunnel::handle_handshakes`].
    pub(crate) fn receive(&mut self, socket: usize, buffer: &mut [u8]) -> Received {
        let Some(bound) = self.sockets.get_mut(socket).filter(|one| one.is_readable) else {
            return Received::Nothing;
        };
        let (length, from) = match bound.socket.recv_from(buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bound.is_readable = false;
                return Received::Nothing;
            }
            // An earlier datagram was refused (ICMP), or a signal came.
            Err(error) => {
                debug!(%error, "receiving");
                return Received::Other;
            }
        };
        let (now, from) = (now().boot, Endpoint::from(from));
        let Some(datagram) = buffer.get_mut(..length) else {
            return Received::Other;
        };
        self.path
            .receive(now, from, datagram, length.max(1), &mut self.batch);
        let handshake = self.batch.handshakes.pop();
        let handshake = handshake.and_then(|message| datagram.get(message));
        let dropped = self.handshakes.note(from, handshake);
        self.path.counters().add(DropReason::BacklogFull, dropped);
        self.batch
            .inner
            .pop()
            .map_or(Received::Other, Received::Packet)
    }

    /// Returns true if handshake messages are queued.
    pub(crate) fn has_handshakes(&self) -> bool {
        !self.handshakes.is_empty()
    }

    /// Handles queued handshake messages if the sockets are empty or many datagrams have been read
    /// since.
    pub(crate) fn handle_handshakes(&mut self) {
        let are_empty = !self.is_readable();
        let handshakes = &mut self.handshakes;
        self.driver
            .handle_handshakes(|count, taken| handshakes.take(are_empty, count, taken));
        self.handle_events();
    }

    pub(crate) fn sockets(&self) -> usize {
        self.sockets.len()
    }

    /// Seals and sends queued packets until the system accepts no more.
    pub(crate) fn send(&mut self, outgoing: &mut Outgoing) {
        let now = now().boot;
        let mut done = 0;
        while self.flush() {
            let slots = outgoing.slots();
            let Some(first) = slots.get(done).copied() else {
                break;
            };
            let destination =
                |slot| inner::parse(outgoing.packet(slot)).map(|view| view.destination);
            let routes = self.path.routes();
            let lookup = |slot| destination(slot).and_then(|address| routes.lookup(address));
            let Some(peer) = lookup(first) else {
                done += 1;
                continue;
            };
            let stride = first.message();
            let is_alike = |slot: Slot| {
                slot.message() == stride
                    && lookup(slot).is_some_and(|other| Arc::ptr_eq(other, peer))
            };
            let alike = slots[done..]
                .iter()
                .take_while(|slot| is_alike(**slot))
                .count();
            let run = done..done + alike.max(1);
            let bytes = stride * run.len();
            match self.path.reserve(now, peer, run.len() as u64, bytes as u64) {
                Outbound::Send(mut reservation) => {
                    let to = reservation.endpoint().remote;
                    let messages = outgoing.messages(run.clone());
                    let ready = reservation.seal(messages, stride);
                    let mut messages = messages[..ready].chunks(stride);
                    let sockets = &self.sockets;
                    let refused = messages.find(|message| !transmit(sockets, to, message));
                    let rest = refused.into_iter().chain(messages);
                    self.waiting
                        .extend(rest.map(|message| (to, message.to_vec())));
                }
                Outbound::Stage => stage(&self.path, now, peer, outgoing, run.clone()),
                Outbound::NoEndpoint => {}
            }
            done = run.end;
        }
        outgoing.remove(done);
    }

    /// Sends the messages that the system did not accept before. Returns true if none is left.
    fn flush(&mut self) -> bool {
        while let Some((to, message)) = self.waiting.front() {
            if !transmit(&self.sockets, *to, message) {
                return false;
            }
            self.waiting.pop_front();
        }
        true
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.driver.poll_event() {
            match event {
                Event::Transmit {
                    endpoint, datagram, ..
                } => {
                    if let Some(kind) = handshake_kind(&datagram) {
                        debug!(to = %endpoint.remote, "sending a handshake {kind}");
                    }
                    // A lost handshake message is retransmitted later.
                    transmit(&self.sockets, endpoint.remote, &datagram);
                }
                Event::Notice(notice) => {
                    if let Some(notify) = &self.notices {
                        self.silence_reported = matches!(notice, Notice::PeerUnreachable { .. });
                        notify(notice);
                    }
                }
            }
        }
    }
}

fn stage(path: &DataPath, now: Instant, peer: &Arc<Peer>, outgoing: &Outgoing, run: Range<usize>) {
    let packets = outgoing.slots()[run].iter().map(|slot| Staged {
        packet: outgoing.padded(*slot).to_vec(),
        ecn: 0,
        lane: LaneId::FIRST,
    });
    path.stage(now, peer, packets);
}

/// Sends a message. Returns `false` if the system has no room now. Drops the message on any other
/// error.
fn transmit(sockets: &[BoundSocket], to: SocketAddr, message: &[u8]) -> bool {
    let Some(bound) = sockets.iter().find(|bound| bound.is_ipv4 == to.is_ipv4()) else {
        debug!(%to, "this system has no socket of that family");
        return true;
    };
    match bound.socket.send_to(message, to) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
        Err(error) => debug!(%to, %error, "sending failed"),
        Ok(_) => {}
    }
    true
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    let _ = socket.set_recv_buffer_size(SYSTEM_BUFFER);
    let _ = socket.set_send_buffer_size(SYSTEM_BUFFER);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(UdpSocket::from_std(socket.into()))
}

#[cfg(test)]
mod tests;
