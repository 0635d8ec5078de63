//! Permission to send a batch, and packets that wait for a session.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::lanes::{LaneId, Run};
use crate::peer::Session;
use crate::peer::send_order::SendTurn;

/// Answer to a request to send a batch.
pub enum Outbound {
    /// Seal and send the batch.
    Send(Reservation),
    /// There is no usable session: stage the packets.
    Stage,
    /// The peer has no endpoint: answer the inner sender with an ICMP error.
    NoEndpoint,
}

/// Counters reserved for one batch. Those that are left when it is dropped are never used.
///
/// Drop it after the batch has been sent. If the device has several lanes and the peer has none,
/// the other lanes wait until then before they reserve counters of this peer. A thread that
/// reserves again while it has a reservation may wait forever.
#[must_use = "the counters are lost if nothing is sealed with them"]
pub struct Reservation {
    pub(super) session: Arc<Session>,
    pub(super) counters: Run,
    pub(super) messages: u64,
    pub(super) endpoint: Endpoint,
    /// The lane's turn, which ends when the reservation is dropped.
    pub(super) _turn: Option<SendTurn>,
}

impl Reservation {
    /// Returns the destination of the batch.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Seals the batch in place. Each `stride` bytes of `batch` are one message:
    /// [`crate::message::DATA_HEADER_LEN`] bytes for the header, the padded packet, and room for
    /// the tag. Returns the number of bytes sealed; messages beyond the reserved number stay
    /// unchanged.
    ///
    /// The next call continues with the remaining counters, so that none is used twice.
    pub fn seal(&mut self, batch: &mut [u8], stride: usize) -> usize {
        let stride = stride.max(1);
        let reserved = usize::try_from(self.messages).unwrap_or(usize::MAX);
        let ready = batch.len().min(reserved.saturating_mul(stride));
        self.messages -= ready.div_ceil(stride) as u64;
        let Self {
            session, counters, ..
        } = self;
        session.seal(counters, &mut batch[..ready], stride);
        ready
    }

    /// Seals messages in place, each in the layout of [`Self::seal`]. Messages beyond the
    /// reserved number stay unchanged.
    pub fn seal_each<'a>(&mut self, messages: impl Iterator<Item = &'a mut [u8]>) {
        let Self {
            session, counters, ..
        } = self;
        let reserved = usize::try_from(self.messages).unwrap_or(usize::MAX);
        let left = &mut self.messages;
        let reserved = messages.take(reserved).inspect(|_| *left -= 1);
        session.seal_each(counters, reserved);
    }
}

/// A packet that waits for a session.
pub struct Staged {
    /// The inner packet, padded ([`crate::padded_len`]); empty for a keepalive.
    pub packet: Vec<u8>,
    /// ECN bits of the outer header (RFC 6040).
    pub ecn: u8,
    /// The lane of its flow; [`LaneId::FIRST`] if the caller has no lanes.
    pub lane: LaneId,
}
