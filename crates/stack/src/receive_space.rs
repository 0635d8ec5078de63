//! The sequence number that a connection expects next (RCV.NXT, RFC 9293 §3.3.1).
//!
//! smoltcp does not report it. Its latest ACK has an older number while an ACK is delayed. The number
//! therefore follows from the effects of each segment: the bytes that it adds to the receive buffer,
//! and the state that its SYN or FIN changes.

use crate::packet::tcp;
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::TcpSeqNumber;

/// The next sequence number from the other side.
#[derive(Default)]
pub(crate) struct ReceiveSpace {
    next: Option<TcpSeqNumber>,
}

/// The part of a socket's state that a segment changes.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    state: State,
    queued: usize,
}

impl ReceiveSpace {
    /// Returns the number, or `None` before the other side's SYN.
    pub(crate) fn next(&self) -> Option<TcpSeqNumber> {
        self.next
    }

    /// Records the effects of a segment that the stack has handled.
    pub(crate) fn note_received(&mut self, before: Snapshot, after: Snapshot, packet: &[u8]) {
        if !is_synchronized(after.state) {
            return;
        }
        if !is_synchronized(before.state) {
            self.next = tcp(packet).map(|(_, _, segment)| segment.seq_number() + 1);
            return;
        }
        let is_end = has_end(after.state) && !has_end(before.state);
        let received = after.queued.saturating_sub(before.queued) + usize::from(is_end);
        self.next = self.next.map(|next| next + received);
    }
}

impl Snapshot {
    pub(crate) fn of(socket: &Socket<'_>) -> Self {
        Self {
            state: socket.state(),
            queued: socket.recv_queue(),
        }
    }
}

/// Returns true if the other side's SYN has arrived.
fn is_synchronized(state: State) -> bool {
    !matches!(state, State::Closed | State::Listen | State::SynSent)
}

/// Returns true if the other side's FIN has arrived.
fn has_end(state: State) -> bool {
    matches!(
        state,
        State::CloseWait | State::Closing | State::LastAck | State::TimeWait
    )
}
