//! Datagrams from the peer: one call handles one datagram.

use core::net::SocketAddr;

use taupe_protocol::message::{Kind, Malformed, classify, data_header};
use taupe_protocol::{DropReason, Endpoint};

use super::{OFFSET, OVERHEAD, Outcome, Result, Tunnel, UNKNOWN_ENDPOINT};
use crate::clock;
use crate::error::Error;

impl Tunnel {
    /// Handles a datagram from the peer, and writes the packet in it or the answer to it. With an
    /// empty `src`, writes the next datagram to send. After [`Outcome::Network`] there may be more
    /// to send: call again with an empty `src` until [`Outcome::Done`].
    ///
    /// `from` is the source of the datagram, if it is known. Under load, handshake messages with a
    /// known source are answered with cookies, and others are refused.
    ///
    /// # Errors
    /// The reason for which the datagram was refused. [`Error::DestinationBufferTooSmall`] if `dst`
    /// is too short: the packet of a data message needs `src.len()` less [`OVERHEAD`] bytes. A
    /// datagram to send stays in the queue then.
    pub fn read(&self, from: Option<SocketAddr>, src: &[u8], dst: &mut [u8]) -> Result {
        match classify(src) {
            _ if src.is_empty() => self.with(|control, now| control.emit(&self.path, now, dst)),
            Ok(Kind::Data) if dst.len() + OFFSET >= src.len() => {
                let data = &mut dst[..src.len() - OFFSET];
                data.copy_from_slice(&src[OFFSET..]);
                match self.open(from, src, data)? {
                    Some(length) => Ok(packet_outcome(&data[..length])),
                    None => self.after_keepalive(dst),
                }
            }
            // The destination has room for the packet, but not for the tag behind it.
            Ok(Kind::Data) if dst.len() + OVERHEAD >= src.len() => {
                let mut data = src[OFFSET..].to_vec();
                match self.open(from, src, &mut data)? {
                    Some(length) => {
                        let packet = &data[..length];
                        dst[..length].copy_from_slice(packet);
                        Ok(packet_outcome(packet))
                    }
                    None => self.after_keepalive(dst),
                }
            }
            Ok(Kind::Data) => Err(Error::DestinationBufferTooSmall),
            Ok(kind) => self.handshake(from, kind, src, dst),
            Err(malformed) => Err(self.refuse(match malformed {
                Malformed::Length => DropReason::Length,
                Malformed::Type => DropReason::Type,
            })),
        }
    }

    /// Handles a datagram like [`Self::read`], but in place. The datagram is the first `length`
    /// bytes of `buffer`. A packet begins at [`OFFSET`], a datagram to send at 0.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_in_place(
        &self,
        from: Option<SocketAddr>,
        buffer: &mut [u8],
        length: usize,
    ) -> Result {
        let datagram = buffer.get_mut(..length);
        let datagram = datagram.ok_or(Error::DestinationBufferTooSmall)?;
        if let Ok(Kind::Data) = classify(datagram) {
            let (header, data) = datagram.split_at_mut(OFFSET);
            return match self.open(from, header, data)? {
                Some(length) => Ok(packet_outcome(&data[..length])),
                None => self.after_keepalive(buffer),
            };
        }
        let datagram = datagram.to_vec();
        self.read(from, &datagram, buffer)
    }

    /// Writes the next datagram to send after a keepalive has arrived: a keepalive may confirm the
    /// session for which packets wait.
    fn after_keepalive(&self, dst: &mut [u8]) -> Result {
        if !self.pending_work.is_noted() {
            return Ok(Outcome::Done);
        }
        let outcome = self.with(|control, now| control.emit(&self.path, now, dst));
        // A datagram that does not fit waits for the next call. The keepalive has been handled.
        match outcome {
            Err(Error::DestinationBufferTooSmall) => Ok(Outcome::Done),
            outcome => outcome,
        }
    }

    fn handshake(
        &self,
        from: Option<SocketAddr>,
        kind: Kind,
        src: &[u8],
        dst: &mut [u8],
    ) -> Result {
        self.with(|control, now| {
            if dst.len() < control.longest_answer(kind) {
                return Err(Error::DestinationBufferTooSmall);
            }
            if let Err(cause) = control.handshake(now, from, kind, src) {
                return Err(cause.into());
            }
            self.note_handshake_source(from);
            match control.emit(&self.path, now, dst) {
                Err(Error::DestinationBufferTooSmall) => Ok(Outcome::Done),
                outcome => outcome,
            }
        })
    }

    /// Opens a data message in place. `message` begins with its header, and `data` is the content
    /// behind it. Returns the length of the packet at the start of `data`, or `None` for a
    /// keepalive.
    fn open(
        &self,
        from: Option<SocketAddr>,
        message: &[u8],
        data: &mut [u8],
    ) -> Result<Option<usize>> {
        let header = data_header(message).ok_or_else(|| self.refuse(DropReason::Length))?;
        let now = clock::recent_boot();
        let origin = Endpoint::from(from.unwrap_or(UNKNOWN_ENDPOINT));
        let opened = self.path.receive_one(now, origin, header, data);
        let length = opened.map_err(|cause| self.log_drop(cause))?;
        let mut received = self.lock_received();
        received.note_source(from);
        received.loss.count(header);
        if let Some(length) = length {
            received.count(1, length as u64);
            drop(received);
            self.run_pending_work();
        }
        Ok(length)
    }

    /// Records the source of a handshake message, if the message was authentic: then the device has
    /// set the peer's endpoint to that source.
    pub(super) fn note_handshake_source(&self, from: Option<SocketAddr>) {
        let endpoint = self.peer.endpoint().map(|endpoint| endpoint.remote);
        if from == endpoint {
            self.lock_received().note_source(from);
        }
    }
}

/// Returns the outcome for a packet, by its IP version, which has been checked.
pub(super) fn packet_outcome(packet: &[u8]) -> Outcome {
    match packet.first().map(|first| first >> 4) {
        Some(6) => Outcome::Ipv6(packet.len()),
        _ => Outcome::Ipv4(packet.len()),
    }
}
