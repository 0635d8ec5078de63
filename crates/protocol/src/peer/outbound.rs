//! Permission to send a batch, and packets that wait for a session.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::peer::Session;

/// Answer to a request to send a batch.
pub enum Outbound {
    /// Seal and send the batch.
    Send(Reservation),
    /// There is no usable session: stage the packets.
    Stage,
    /// The peer has no endpoint: answer the inner sender with an ICMP error.
    NoEndpoint,
}

/// Counters reserved for one batch. If it is dropped, these counters are never used.
pub struct Reservation {
    pub(super) session: Arc<Session>,
    pub(super) first: u64,
    pub(super) messages: u64,
    pub(super) endpoint: Endpoint,
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
    pub fn seal(self, batch: &mut [u8], stride: usize) -> usize {
        let reserved = usize::try_from(self.messages)
            .unwrap_or(usize::MAX)
            .saturating_mul(stride);
        let ready = batch.len().min(reserved);
        self.session.seal(self.first, &mut batch[..ready], stride);
        ready
    }

    /// Seals messages in place, each in the layout of [`Self::seal`]. Messages beyond the
    /// reserved number stay unchanged.
    pub fn seal_each<'a>(self, messages: impl Iterator<Item = &'a mut [u8]>) {
        let reserved = usize::try_from(self.messages).unwrap_or(usize::MAX);
        self.session.seal_each(self.first, messages.take(reserved));
    }
}

/// A packet that waits for a session.
pub struct Staged {
    /// The inner packet, padded ([`crate::padded_len`]); empty for a keepalive.
    pub packet: Vec<u8>,
    /// ECN bits of the outer header (RFC 6040).
    pub ecn: u8,
}
