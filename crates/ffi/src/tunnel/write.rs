//! Packets to the peer: one call seals one packet.

use core::sync::atomic::Ordering;

use taupe_protocol::{DropReason, Outbound, padded_len};

use super::{OFFSET, OVERHEAD, Outcome, Result, Tunnel};
use crate::clock;
use crate::error::Error;

/// The longest inner packet: sealed it has 65,600 bytes, boringtun's MAX_WIREGUARD_PACKET_SIZE.
const MAX_PACKET: usize = 65_600 - OVERHEAD;

impl Tunnel {
    /// Sends an IP packet to the peer, or a keepalive if `src` is empty. Writes the message that
    /// carries the packet to `dst`. Without a session, queues the packet and writes a handshake
    /// initiation.
    ///
    /// # Errors
    /// [`Error::DestinationBufferTooSmall`] if `dst` is shorter than the packet plus [`OVERHEAD`],
    /// or than a handshake message. [`Error::InvalidPacket`] if `src` is too long for a packet.
    pub fn write(&self, src: &[u8], dst: &mut [u8]) -> Result {
        if src.is_empty() {
            return self.write_keepalive(dst);
        }
        let now = clock::recent_boot();
        self.check_length(src.len())?;
        if let Some(length) = self.message_len(src.len(), dst.len()) {
            if let Outbound::Send(mut reservation) =
                self.path.reserve(now, &self.peer, 1, length as u64)
            {
                let message = &mut dst[..length];
                let (packet, rest) = message[OFFSET..].split_at_mut(src.len());
                packet.copy_from_slice(src);
                rest.fill(0);
                reservation.seal(message, length);
                self.note_length(src.len());
                self.sent.count(1, src.len() as u64);
                self.run_pending_work();
                return Ok(Outcome::Network(length));
            }
        } else if self.peer.has_session(now) {
            return Err(Error::DestinationBufferTooSmall);
        }
        let packet = core::iter::once(src);
        let outcome =
            self.with(|control, now| control.queue_packets(&self.path, now, packet, dst))?;
        self.note_length(src.len());
        Ok(outcome)
    }

    /// Sends a packet like [`Self::write`], but in place. The packet is `length` bytes of `buffer`
    /// from [`OFFSET`] on, and the message replaces it. `buffer` must have [`OVERHEAD`] bytes more.
    ///
    /// # Errors
    /// Those of [`Self::write`].
    pub fn write_in_place(&self, buffer: &mut [u8], length: usize) -> Result {
        let end = OFFSET
            .checked_add(length)
            .filter(|end| *end <= buffer.len());
        let end = end.ok_or(Error::DestinationBufferTooSmall)?;
        let now = clock::recent_boot();
        self.check_length(length)?;
        if length > 0
            && let Some(total) = self.message_len(length, buffer.len())
            && let Outbound::Send(mut reservation) =
                self.path.reserve(now, &self.peer, 1, total as u64)
        {
            let message = &mut buffer[..total];
            message[end..].fill(0);
            reservation.seal(message, total);
            self.note_length(length);
            self.sent.count(1, length as u64);
            self.run_pending_work();
            return Ok(Outcome::Network(total));
        }
        let packet = buffer[OFFSET..end].to_vec();
        self.write(&packet, buffer)
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

    /// Returns the length of the message for a packet, or `None` if `room` is too small. Pads the
    /// packet to a multiple of 16 bytes (whitepaper §5.4.6), but neither beyond `room` nor beyond
    /// the longest packet so far.
    pub(super) fn message_len(&self, packet: usize, room: usize) -> Option<usize> {
        let room = room.checked_sub(OVERHEAD).filter(|room| *room >= packet)?;
        let longest = self.longest.load(Ordering::Relaxed).max(packet);
        Some(padded_len(packet, longest).min(room) + OVERHEAD)
    }

    /// Refuses a packet that is too long.
    pub(super) fn check_length(&self, packet: usize) -> Result<()> {
        match packet > MAX_PACKET {
            true => Err(self.refuse(DropReason::Length)),
            false => Ok(()),
        }
    }

    /// Records the length of a packet, up to which later ones may be padded.
    pub(super) fn note_length(&self, packet: usize) {
        if packet > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(packet, Ordering::Relaxed);
        }
    }
}
