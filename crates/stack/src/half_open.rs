//! Connections that hosts in the tunnel open, from the SYN to the end of the handshake.
//!
//! A half-open connection has no buffers: the table holds its SYN and a seed (a SYN cache, RFC 4987
//! §3.4). The stack's reaction to a SYN depends on nothing else. For the SYN-ACK it runs with borrowed
//! buffers and is forgotten. When the acknowledgement has come, it runs again with buffers of its
//! own, and comes to the same state.
//!
//! Example: somebody sends 10,000 SYNs per second from addresses that do not exist. Each
//! half-open connection stays in the full table for 0.8 s, and a client whose round-trip time is
//! shorter connects at the first attempt.

use crate::buffers::{BufferBudget, Windows};
use crate::outgoing::Outgoing;
use crate::packet::{FourTuple, tcp, tcp_packet};
use crate::send_space::SendSpace;
use crate::stack_device::{StackDevice, interface, stack_time};
use crate::stream::Stream;
use core::time::Duration;
use smoltcp::iface::SocketSet;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::wire::{TcpRepr, TcpSeqNumber};
use std::collections::{BTreeMap, HashMap};
use taupe_protocol::time::Instant;

/// Half-open connections of all listeners of a tunnel. If one more begins, the oldest is dropped.
const MAX: usize = 8192;

/// Time from the SYN to the end of the handshake. A client that needs longer sends its SYN again.
const TIMEOUT: Duration = Duration::from_secs(7);

/// Times after the SYN at which the SYN-ACK is repeated.
const REPEATS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];

/// Least time between two answers to SYNs of another number (RFC 5961 §7).
const CHALLENGE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of half-open connections for which a timer retransmits SYN-ACKs. Above it, this is
/// probably a SYN flood with spoofed sources, and only retransmitted SYNs are answered.
const MAX_REPEATED: usize = 128;

/// The largest window of a SYN-ACK, in bytes (RFC 7323 §2.2).
const MAX_WINDOW: u32 = 65_535;

/// Capacity that an empty table retains.
const RETAINED: usize = 64;

/// Half-open connections.
pub(crate) struct HalfOpenTable {
    all: HashMap<FourTuple, HalfOpen>,
    /// Keys in the order in which the connections began.
    order: BTreeMap<u64, FourTuple>,
    begun: u64,
    /// Receive buffer of the stacks that answer SYNs. They read and write none of it, so the system
    /// commits no memory for it.
    borrowed: Vec<u8>,
    mtu: usize,
}

/// A half-open connection.
pub(crate) struct HalfOpen {
    number: u64,
    began: Instant,
    /// Time of the latest SYN-ACK.
    answered: Instant,
    /// Time of the latest SYN-ACK that answered a SYN of another number.
    challenged: Option<Instant>,
    /// Repetitions of the SYN-ACK.
    repeats: usize,
    syn: TcpRepr<'static>,
    seed: u64,
    windows: Windows,
    /// This side's initial sequence number.
    initial: TcpSeqNumber,
}

/// Result of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandshakeStep {
    /// The segment belongs to no half-open connection.
    Other,
    /// The segment is handled.
    Handled,
    /// The segment acknowledges a SYN-ACK that was not sent; answer it with a reset.
    Refuse,
    /// The segment ends the handshake: [`HalfOpenTable::take`] returns the connection.
    Complete,
}

impl HalfOpenTable {
    /// Creates a table for a tunnel of this MTU.
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            all: HashMap::new(),
            order: BTreeMap::new(),
            begun: 0,
            borrowed: Vec::new(),
            mtu,
        }
    }

    /// Answers a SYN that belongs to no half-open connection. `seed` must be random: the initial
    /// sequence number derives from it. Ignores invalid SYNs.
    pub(crate) fn answer_syn(
        &mut self,
        now: Instant,
        (four_tuple, packet): (FourTuple, &[u8]),
        seed: u64,
        buffers: &mut BufferBudget,
        outgoing: &mut Outgoing,
    ) {
        let Some((source, destination, tcp)) = tcp(packet) else {
            return;
        };
        let checksums = ChecksumCapabilities::default();
        let Ok(syn) = TcpRepr::parse(&tcp, &source, &destination, &checksums) else {
            return;
        };
        if self.all.contains_key(&four_tuple) {
            return;
        }
        while self.all.len() >= MAX
            && let Some((_, oldest)) = self.order.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest, buffers);
        }
        self.begun += 1;
        let mut half_open = HalfOpen {
            number: self.begun,
            began: now,
            answered: now,
            challenged: None,
            repeats: 0,
            // The SYN-ACK does not acknowledge the data of the SYN, so the client retransmits it.
            syn: TcpRepr {
                payload: &[],
                ..syn
            },
            seed,
            windows: buffers.promise(),
            initial: TcpSeqNumber(0),
        };
        let initial = half_open.send(now, four_tuple, self.mtu, &mut self.borrowed, outgoing);
        let Some(initial) = initial else {
            buffers.withdraw(half_open.windows);
            return;
        };
        half_open.initial = initial;
        self.order.insert(half_open.number, four_tuple);
        self.all.insert(four_tuple, half_open);
    }

    /// Handles a segment of a half-open connection.
    pub(crate) fn handle_segment(
        &mut self,
        now: Instant,
        four_tuple: FourTuple,
        packet: &[u8],
        buffers: &mut BufferBudget,
        outgoing: &mut Outgoing,
    ) -> HandshakeStep {
        let Some(half_open) = self.all.get_mut(&four_tuple) else {
            return HandshakeStep::Other;
        };
        let Some((source, destination, tcp)) = tcp(packet) else {
            return HandshakeStep::Handled;
        };
        if !tcp.verify_checksum(&source, &destination) {
            return HandshakeStep::Handled;
        }
        let next = half_open.syn.seq_number + 1;
        let offset = tcp.seq_number().0.wrapping_sub(next.0) as u32;
        match (tcp.rst(), tcp.syn(), tcp.ack()) {
            // RFC 5961 §3.2: only the exact sequence number resets.
            (true, _, _) => {
                if offset == 0 {
                    self.remove(&four_tuple, buffers);
                }
                HandshakeStep::Handled
            }
            (_, true, false) if !tcp.fin() => {
                // RFC 5961 §4.2: a SYN of another number may be forged, so the connection stays. A
                // client that has restarted answers this SYN-ACK with a reset of the expected
                // number, and repeats its SYN.
                if tcp.seq_number() == half_open.syn.seq_number {
                    half_open.answered = now;
                } else if half_open
                    .challenged
                    .is_some_and(|at| now.since(at) < CHALLENGE_INTERVAL)
                {
                    return HandshakeStep::Handled;
                } else {
                    half_open.challenged = Some(now);
                }
                half_open.send(now, four_tuple, self.mtu, &mut self.borrowed, outgoing);
                HandshakeStep::Handled
            }
            (_, true, _) | (_, _, false) => HandshakeStep::Handled,
            (_, false, true) if tcp.ack_number() != half_open.initial + 1 => HandshakeStep::Refuse,
            (_, false, true) if offset > MAX_WINDOW => HandshakeStep::Handled,
            (_, false, true) => HandshakeStep::Complete,
        }
    }

    /// Removes a half-open connection whose handshake is complete.
    pub(crate) fn take(
        &mut self,
        four_tuple: &FourTuple,
        buffers: &mut BufferBudget,
    ) -> Option<HalfOpen> {
        let half_open = self.forget(four_tuple)?;
        buffers.keep(half_open.windows);
        Some(half_open)
    }

    /// Drops a half-open connection, if there is one.
    pub(crate) fn remove(&mut self, four_tuple: &FourTuple, buffers: &mut BufferBudget) {
        if let Some(half_open) = self.forget(four_tuple) {
            buffers.withdraw(half_open.windows);
        }
    }

    fn forget(&mut self, four_tuple: &FourTuple) -> Option<HalfOpen> {
        let half_open = self.all.remove(four_tuple)?;
        self.order.remove(&half_open.number);
        if self.all.is_empty() {
            self.all.shrink_to(RETAINED);
        }
        Some(half_open)
    }

    /// Returns the time at which [`HalfOpenTable::handle_deadline`] must run.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.all.get(self.order.first_key_value()?.1)?;
        let end = oldest.began + TIMEOUT;
        let repeats = self.repeatable().filter_map(|(_, one)| one.next_repeat());
        repeats.chain([end]).min()
    }

    /// Drops half-open connections that are too old, and repeats SYN-ACKs.
    pub(crate) fn handle_deadline(
        &mut self,
        now: Instant,
        buffers: &mut BufferBudget,
        outgoing: &mut Outgoing,
    ) {
        while let Some((_, oldest)) = self.order.first_key_value()
            && let Some(half_open) = self.all.get(oldest)
            && now >= half_open.began + TIMEOUT
        {
            let oldest = *oldest;
            self.remove(&oldest, buffers);
        }
        let is_due = |one: &HalfOpen| one.next_repeat().is_some_and(|at| at <= now);
        let due = self.repeatable().filter(|(_, one)| is_due(one));
        for four_tuple in due.map(|(four_tuple, _)| *four_tuple).collect::<Vec<_>>() {
            if let Some(half_open) = self.all.get_mut(&four_tuple) {
                half_open.answered = now;
                half_open.repeats += 1;
                half_open.send(now, four_tuple, self.mtu, &mut self.borrowed, outgoing);
            }
        }
    }

    /// Returns the half-open connections whose SYN-ACKs are repeated.
    fn repeatable(&self) -> impl Iterator<Item = (&FourTuple, &HalfOpen)> {
        let are_few = self.all.len() <= MAX_REPEATED;
        self.all.iter().take(if are_few { MAX_REPEATED } else { 0 })
    }
}

impl HalfOpen {
    fn next_repeat(&self) -> Option<Instant> {
        REPEATS.get(self.repeats).map(|after| self.began + *after)
    }

    /// Sends a SYN-ACK. Returns its sequence number, or `None` if the stack refuses the SYN or if
    /// there is no room.
    fn send(
        &self,
        now: Instant,
        four_tuple: FourTuple,
        mtu: usize,
        borrowed: &mut Vec<u8>,
        outgoing: &mut Outgoing,
    ) -> Option<TcpSeqNumber> {
        if borrowed.len() < self.windows.receive {
            *borrowed = vec![0; self.windows.receive];
        }
        let mut socket = Socket::new(
            SocketBuffer::new(&mut borrowed[..self.windows.receive]),
            SocketBuffer::new(&mut [][..]),
        );
        socket.listen(four_tuple.local).ok()?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        sockets.add(socket);
        let mut interface = interface(now, four_tuple.local.ip(), mtu, self.seed);
        let syn = self.syn_packet(four_tuple);
        let mut send_space = SendSpace::default();
        let mut device = StackDevice {
            now,
            incoming: Some(&syn),
            outgoing,
            send_space: &mut send_space,
            mtu,
        };
        interface.poll_ingress_single(stack_time(now), &mut device, &mut sockets);
        interface.poll_egress(stack_time(now), &mut device, &mut sockets);
        send_space.oldest()
    }

    /// Returns the connection, ready for the segment that ends its handshake.
    pub(crate) fn open(&self, four_tuple: FourTuple, mtu: usize) -> Option<Stream> {
        let syn = self.syn_packet(four_tuple);
        let (windows, seed) = (self.windows, self.seed);
        Stream::accept(self.answered, four_tuple, mtu, windows, seed, &syn)
    }

    pub(crate) fn windows(&self) -> Windows {
        self.windows
    }

    fn syn_packet(&self, FourTuple { local, remote }: FourTuple) -> Vec<u8> {
        tcp_packet(remote.ip().into(), local.ip().into(), &self.syn)
    }
}

#[cfg(test)]
mod tests;
