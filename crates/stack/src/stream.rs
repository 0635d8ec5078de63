//! A TCP connection through the tunnel, with a TCP/IP stack of its own.
//!
//! smoltcp's interface offers each packet to all its sockets in turn, so one stack with a thousand
//! sockets would take a thousand times as long per packet. Here each stack has one socket, the
//! program finds it by addresses and ports, and only connections with pending work are polled.

use crate::buffers::Windows;
use crate::failure::ConnectFailure;
use crate::keepalive::{Keepalive, ProbeTimer};
use crate::loss_recovery::LossRecovery;
use crate::outgoing::Outgoing;
use crate::packet::{FourTuple, IcmpError, IcmpProblem, bare_segment, tcp, tcp_packet};
use crate::receive_space::{ReceiveSpace, Snapshot};
use crate::send_space::SendSpace;
use crate::stack_device::{StackDevice, interface, stack_time};
use core::time::Duration;
use smoltcp::iface::{Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::wire::{TcpRepr, TcpSeqNumber};
use std::net::SocketAddr;
use taupe_protocol::time::Instant;

/// The smallest MTU that a router's message can set, in bytes: every IPv4 host accepts 576 (RFC 791),
/// and every IPv6 link carries 1280 (RFC 8200 §5).
const MIN_PATH_MTU_V4: usize = 576;
const MIN_PATH_MTU_V6: usize = 1280;

/// Bytes of IPv4 and TCP headers without options.
const HEADERS: usize = 40;

/// A TCP connection.
pub struct Stream {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    mtu: usize,
    local: SocketAddr,
    remote: SocketAddr,
    pub(crate) windows: Windows,
    /// Time of the last segment from the other side.
    last_segment: Instant,
    /// Time since which data or an end waits for an acknowledgement.
    unacknowledged_since: Option<Instant>,
    send_space: SendSpace,
    receive_space: ReceiveSpace,
    probe_timer: ProbeTimer,
    loss_recovery: LossRecovery,
    /// True if the last [`Stream::send`] had no room for everything.
    is_stalled: bool,
}

impl Stream {
    /// Begins to connect. `seed` must be random: the initial sequence number derives from it.
    /// Returns `None` if no host can have one of the addresses.
    pub(crate) fn connect(
        now: Instant,
        four_tuple: FourTuple,
        mtu: usize,
        windows: Windows,
        seed: u64,
    ) -> Option<Self> {
        let FourTuple { local, remote } = four_tuple;
        Self::new(now, four_tuple, mtu, windows, seed, |socket, interface| {
            let context = interface.context();
            socket.connect(context, remote, local).is_ok()
        })
    }

    /// Creates a connection whose SYN was answered at `answered` by a stack with this MTU, receive
    /// buffer and seed. Returns `None` if the stack refuses the SYN.
    pub(crate) fn accept(
        answered: Instant,
        four_tuple: FourTuple,
        mtu: usize,
        windows: Windows,
        seed: u64,
        syn: &[u8],
    ) -> Option<Self> {
        let listen = |socket: &mut Socket<'static>, _: &mut Interface| {
            socket.listen(four_tuple.local).is_ok()
        };
        let mut stream = Self::new(answered, four_tuple, mtu, windows, seed, listen)?;
        // The other side has the SYN-ACK.
        let mut discarded = Outgoing::new(mtu);
        stream.feed(answered, syn, &mut discarded);
        stream.send(answered, &mut discarded);
        (stream.state() == State::SynReceived).then_some(stream)
    }

    /// Creates a connection with a socket that `open` opens. Returns `None` if `open` fails.
    fn new(
        now: Instant,
        FourTuple { local, remote }: FourTuple,
        mtu: usize,
        windows: Windows,
        seed: u64,
        open: impl FnOnce(&mut Socket<'static>, &mut Interface) -> bool,
    ) -> Option<Self> {
        let mut socket = socket(windows);
        let mut interface = interface(now, local.ip(), mtu, seed);
        if !open(&mut socket, &mut interface) {
            return None;
        }
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Some(Self {
            interface,
            sockets,
            handle,
            mtu,
            local,
            remote,
            windows,
            last_segment: now,
            unacknowledged_since: None,
            send_space: SendSpace::default(),
            receive_space: ReceiveSpace::default(),
            probe_timer: ProbeTimer::default(),
            loss_recovery: LossRecovery::default(),
            is_stalled: false,
        })
    }

    /// Returns this side's address and port.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the other side's address and port.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the TCP socket, which holds the buffers.
    pub fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Returns the state of the TCP socket.
    #[must_use]
    pub fn state(&self) -> State {
        self.sockets.get::<Socket<'_>>(self.handle).state()
    }

    /// Returns true until the connection is established or closed.
    #[must_use]
    pub fn is_connecting(&self) -> bool {
        let state = self.state();
        matches!(state, State::Listen | State::SynSent | State::SynReceived)
    }

    /// Returns true if sent data is not acknowledged yet.
    fn has_unacknowledged(&self) -> bool {
        self.sockets.get::<Socket<'_>>(self.handle).send_queue() > 0
    }

    /// Sets TCP keepalive. `None` turns it off; a probe that the stack has scheduled is still sent.
    pub fn set_keepalive(&mut self, keepalive: Option<Keepalive>) {
        self.socket().set_keep_alive(None);
        self.probe_timer.set(self.last_segment, keepalive);
    }

    /// Returns true if the connection is open and waits for no acknowledgement, so that only probes
    /// can find out if the other side is there.
    fn is_idle(&self) -> bool {
        let state = self.state();
        let is_open = matches!(
            state,
            State::Established | State::CloseWait | State::FinWait2
        );
        is_open && self.unacknowledged_since.is_none()
    }

    /// Returns the time at which the connection is dead unless a segment arrives: [`DEAD_PEER`]
    /// after the last one, while data or a FIN is unacknowledged. If the connection is
    /// idle, the time at which the last keepalive probe counts as unanswered.
    #[must_use]
    pub fn dead_at(&self) -> Option<Instant> {
        match self.unacknowledged_since {
            Some(since) => Some(since.max(self.last_segment) + DEAD_PEER),
            None => self.probe_timer.dead_at().filter(|_| self.is_idle()),
        }
    }

    /// Handles a packet of this connection.
    pub(crate) fn handle_packet(&mut self, now: Instant, packet: &[u8], outgoing: &mut Outgoing) {
        let Some((_, _, segment)) = tcp(packet) else {
            return;
        };
        if segment.rst() && !self.accepts_reset(now, segment.seq_number(), outgoing) {
            return;
        }
        // A forged segment with another number does not keep the connection alive.
        if segment.ack() && self.send_space.note_acknowledgement(segment.ack_number()) {
            self.last_segment = now;
            if self.probe_timer.is_probing() {
                self.socket().set_keep_alive(None);
            }
            self.probe_timer.note_segment(now);
        }
        self.feed(now, packet, outgoing);
        if let Some(duplicate) = self.loss_recovery.inspect(packet, self.mtu - HEADERS) {
            for _ in 0..LossRecovery::DUPLICATES {
                self.feed(now, &duplicate, outgoing);
            }
        }
    }

    /// Returns true if a reset has exactly the expected sequence number. If the number is another one in
    /// the window, sends a challenge ACK (RFC 5961 §3.2): a host that has lost the connection answers it
    /// with a reset of the expected number. smoltcp accepts every number in the window, which an attacker
    /// soon guesses.
    fn accepts_reset(
        &mut self,
        now: Instant,
        number: TcpSeqNumber,
        outgoing: &mut Outgoing,
    ) -> bool {
        let (Some(oldest), Some(next)) = (self.send_space.oldest(), self.receive_space.next())
        else {
            return true;
        };
        if self.is_connecting() || next == number {
            return true;
        }
        let offset = number.0.wrapping_sub(next.0).cast_unsigned();
        if usize::try_from(offset).is_ok_and(|offset| offset >= self.socket().recv_capacity()) {
            return false;
        }
        // A segment below the window makes smoltcp send an ACK, at most once per second.
        let before = TcpRepr {
            seq_number: next - 1,
            ack_number: Some(oldest),
            ..bare_segment(self.remote.port(), self.local.port())
        };
        let before = tcp_packet(self.remote.ip().into(), self.local.ip().into(), &before);
        self.feed(now, &before, outgoing);
        false
    }

    fn feed(&mut self, now: Instant, packet: &[u8], outgoing: &mut Outgoing) {
        let before = Snapshot::of(self.socket());
        let (mut device, interface, sockets) = self.parts(now, Some(packet), outgoing);
        interface.poll_ingress_single(stack_time(now), &mut device, sockets);
        let after = Snapshot::of(self.socket());
        self.receive_space.note_received(before, after, packet);
    }

    /// Returns the device with its interface and socket.
    fn parts<'a>(
        &'a mut self,
        now: Instant,
        incoming: Option<&'a [u8]>,
        outgoing: &'a mut Outgoing,
    ) -> (
        StackDevice<'a>,
        &'a mut Interface,
        &'a mut SocketSet<'static>,
    ) {
        let device = StackDevice {
            now,
            incoming,
            outgoing,
            send_space: &mut self.send_space,
            mtu: self.mtu,
        };
        (device, &mut self.interface, &mut self.sockets)
    }

    /// Queues all segments that can be sent now, as far as there is room. Returns true if all were.
    pub(crate) fn send(&mut self, now: Instant, outgoing: &mut Outgoing) -> bool {
        if self.is_idle()
            && let Some(interval) = self.probe_timer.take_due(now)
        {
            // The stack sends a probe at once.
            self.socket().set_keep_alive(Some(interval.into()));
        }
        let (mut device, interface, sockets) = self.parts(now, None, outgoing);
        let mut is_stalled = true;
        while device.outgoing.has_room() {
            let sent = interface.poll_egress(stack_time(now), &mut device, sockets);
            if sent == PollResult::None {
                is_stalled = false;
                break;
            }
        }
        self.is_stalled = is_stalled;
        if let Some(mtu) = self.send_space.take_confirmed_mtu() {
            self.lower_mtu(now, mtu);
        }
        let has_end = matches!(
            self.state(),
            State::FinWait1 | State::Closing | State::LastAck
        );
        let unacknowledged = has_end || self.has_unacknowledged();
        self.unacknowledged_since =
            unacknowledged.then(|| self.unacknowledged_since.unwrap_or(now));
        !self.is_stalled
    }

    /// Returns the time at which [`Net::pump`](crate::net::Net::pump) must run. Returns `None` while there is no room:
    /// the deadline would have passed already, and the loop would spin until the system accepts
    /// datagrams again.
    pub fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if self.is_stalled {
            return None;
        }
        let at = self.interface.poll_at(stack_time(now), &self.sockets);
        let at = at.map(|at| Instant(u64::try_from(at.total_micros()).unwrap_or(0) * 1000));
        let probe = self.probe_timer.next_probe().filter(|_| self.is_idle());
        [at, probe].into_iter().flatten().min()
    }

    /// Handles an ICMP error about a segment of this connection. Returns the reason if it ends the
    /// attempt to connect.
    ///
    /// The error is ignored unless it quotes a sequence number in flight (RFC 5927 §4.1). An
    /// established connection survives all of them (RFC 5927 §4.2); only the path MTU may shrink.
    pub fn handle_icmp_error(&mut self, now: Instant, error: IcmpError) -> Option<ConnectFailure> {
        if !self.send_space.is_in_flight(error.sequence) {
            return None;
        }
        match error.problem {
            IcmpProblem::TooLong(mtu) => {
                self.handle_path_mtu(now, mtu);
                None
            }
            problem if self.state() == State::SynSent => ConnectFailure::from_icmp(problem),
            _ => None,
        }
    }

    /// Handles a router's message that the path MTU is `mtu` bytes.
    fn handle_path_mtu(&mut self, now: Instant, mtu: usize) {
        let mtu = match self.local {
            SocketAddr::V4(_) => mtu.max(MIN_PATH_MTU_V4),
            // RFC 8201 §4: less than every link carries is ignored.
            SocketAddr::V6(_) if mtu < MIN_PATH_MTU_V6 => return,
            SocketAddr::V6(_) => mtu,
        };
        if self.send_space.judge_mtu(now, mtu) {
            self.lower_mtu(now, mtu);
        }
    }

    fn lower_mtu(&mut self, now: Instant, mtu: usize) {
        if mtu < self.mtu && !self.is_connecting() {
            self.mtu = mtu;
            self.send_space.note_mtu(mtu);
            // The stack uses the seed only to connect.
            self.interface = interface(now, self.local.ip(), mtu, 0);
        }
    }
}

/// Creates a socket with buffers of these sizes.
fn socket(windows: Windows) -> Socket<'static> {
    let buffer = |length| SocketBuffer::new(vec![0; length]);
    let mut socket = Socket::new(buffer(windows.receive), buffer(windows.send));
    socket.set_congestion_control(CongestionControl::Cubic);
    // The writer has coalesced small writes, or wants them sent at once.
    socket.set_nagle_enabled(false);
    socket
}

/// A connection with unacknowledged data is closed after this time without any segment (RFC 9293
/// §3.8.3 R2: at least 100 s).
pub const DEAD_PEER: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
