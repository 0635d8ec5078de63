//! Permission to send a batch, and packets that wait for it.

use std::sync::Arc;

use crate::endpoint::Endpoint;
use crate::peer::Session;

/// Whether a batch may be sent.
pub enum Outbound {
    /// It may: seal and send it.
    Send(Reservation),
    /// There is no usable session: stage the packets.
    Stage,
    /// It is not known where the peer is reached: answer the inner sender with
    /// an ICMP error.
    NoEndpoint,
}

/// Counters that belong to one batch. Dropped unused, they are never used.
pub struct Reservation {
    pub(super) session: Arc<Session>,
    pub(super) first: u64,
    pub(super) messages: u64,
    pub(super) endpoint: Endpoint,
}

impl Reservation {
    /// Where the batch goes.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Seals the batch in place. It is cut every `stride` bytes; each message is
    /// [`crate::message::DATA_HEADER_LEN`] bytes of room, the padded packet, and
    /// room for the tag. Messages beyond those reserved are left as they are:
    /// the returned number tells how many bytes are ready.
    pub fn seal(self, batch: &mut [u8], stride: usize) -> usize {
        let reserved = usize::try_from(self.messages)
            .unwrap_or(usize::MAX)
            .saturating_mul(stride);
        let ready = batch.len().min(reserved);
        self.session.seal(self.first, &mut batch[..ready], stride);
        ready
    }

    /// Seals messages in place, each as [`Self::seal`] has it. Those beyond the
    /// reserved number are left as they are.
    pub fn seal_each<'a>(self, messages: impl Iterator<Item = &'a mut [u8]>) {
        let reserved = usize::try_from(self.messages).unwrap_or(usize::MAX);
        self.session.seal_each(self.first, messages.take(reserved));
    }
}

/// A packet that waits for a session.
pub struct Staged {
    /// The inner packet, padded ([`crate::padded_len`]), or nothing for a keepalive.
    pub packet: Vec<u8>,
    /// ECN bits for the outer header (RFC 6040).
    pub ecn: u8,
}
