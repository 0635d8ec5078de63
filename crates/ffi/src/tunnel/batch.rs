//! Batches: one call takes the peer's lock once for many packets, and the AEAD works on several
//! packets at a time.

use core::cell::RefCell;
use core::net::SocketAddr;

use taupe_protocol::message::{Kind, classify, data_header};
use taupe_protocol::{Endpoint, HandshakeId, Outbound, ReceivedBatch, newest_first};

use super::read::packet_outcome;
use super::{OFFSET, OVERHEAD, Outcome, Result, Tunnel, UNKNOWN_ENDPOINT};
use crate::clock;
use crate::error::Error;

thread_local! {
    static RECEIVED_BATCH: RefCell<ReceivedBatch> = RefCell::default();
}

/// Layout of packets or messages in one buffer: number `i` is `sizes[i]` bytes at `i * stride`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// Bytes from one start to the next; at least the largest size.
    pub stride: usize,
    /// Sizes in bytes.
    pub sizes: &'a [usize],
}

impl Strided<'_> {
    /// Returns true if all fit into a buffer of `length` bytes and none overlap.
    fn fits(&self, length: usize) -> bool {
        let Some(last) = self.sizes.len().checked_sub(1) else {
            return true;
        };
        let within = self.sizes.iter().all(|size| *size <= self.stride);
        let end = last
            .checked_mul(self.stride)
            .and_then(|start| start.checked_add(self.sizes[last]));
        within && end.is_some_and(|end| end <= length)
    }
}

impl Tunnel {
    /// Seals packets. Message `i` is written to `dst` at `i * dst_stride`, and its size to
    /// `dst_sizes[i]`. Returns the number of messages to send. Without a session all packets are
    /// queued, and there is at most one message, a handshake initiation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if packets lie outside `src`, a packet is empty, or `dst_sizes`
    /// is too short. [`Error::DestinationBufferTooSmall`] if a message does not fit. No packet has
    /// been accepted then.
    pub fn write_batch(
        &self,
        src: &[u8],
        packets: Strided<'_>,
        dst: &mut [u8],
        dst_stride: usize,
        dst_sizes: &mut [usize],
    ) -> Result<usize> {
        let sizes = packets.sizes;
        let count = sizes.len();
        if !packets.fits(src.len()) || dst_sizes.len() < count || sizes.contains(&0) {
            return Err(Error::InvalidArgument);
        }
        let Some(longest) = sizes.iter().max() else {
            return Ok(0);
        };
        let needed = count.checked_mul(dst_stride);
        if needed.is_none_or(|needed| needed > dst.len()) || dst_stride < longest + OVERHEAD {
            return Err(Error::DestinationBufferTooSmall);
        }
        self.check_length(*longest)?;
        let mut bytes = 0;
        for (size, length) in sizes.iter().zip(dst_sizes.iter_mut()) {
            let fits = self.message_len(*size, dst_stride);
            *length = fits.ok_or(Error::DestinationBufferTooSmall)?;
            bytes += *length as u64;
        }
        let now = clock::boot();
        let reserved = self.path.reserve(now, &self.peer, count as u64, bytes);
        let Outbound::Send(mut reservation) = reserved else {
            let all = sizes.iter().enumerate();
            let all = all.map(|(i, size)| &src[i * packets.stride..][..*size]);
            let outcome =
                self.with(|control, now| control.queue_packets(&self.path, now, all, dst))?;
            self.note_length(*longest);
            let Outcome::Network(length) = outcome else {
                return Ok(0);
            };
            dst_sizes[0] = length;
            return Ok(1);
        };
        let mut carried = 0;
        for (i, (size, place)) in sizes.iter().zip(dst.chunks_mut(dst_stride)).enumerate() {
            let (packet, rest) = place[OFFSET..dst_sizes[i]].split_at_mut(*size);
            packet.copy_from_slice(&src[i * packets.stride..][..*size]);
            rest.fill(0);
            carried += *size as u64;
        }
        let places = dst.chunks_mut(dst_stride).zip(dst_sizes.iter());
        reservation.seal_each(places.map(|(place, length)| &mut place[..*length]));
        self.note_length(*longest);
        self.sent.count(count as u64, carried);
        self.run_pending_work();
        Ok(count)
    }

    /// Opens datagrams in place. A packet begins [`OFFSET`] bytes after the start of its datagram,
    /// and `results` has its length. Returns the number of packets. Handshake messages are handled
    /// last, the newest handshake first. Afterwards call [`Tunnel::read`] with an empty datagram
    /// for the datagrams to send.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if datagrams lie outside `buffer` or `results` is too short. The
    /// error of a single datagram is in its result.
    pub fn read_batch(
        &self,
        from: Option<SocketAddr>,
        buffer: &mut [u8],
        datagrams: Strided<'_>,
        results: &mut [Result],
    ) -> Result<usize> {
        let Strided { stride, sizes } = datagrams;
        if !datagrams.fits(buffer.len()) || results.len() < sizes.len() {
            return Err(Error::InvalidArgument);
        }
        if sizes.is_empty() {
            return Ok(0);
        }
        // `chunks` does not allow a length of 0.
        let stride = stride.max(1);
        let now = clock::boot();
        let origin = Endpoint::from(from.unwrap_or(UNKNOWN_ENDPOINT));
        let results = &mut results[..sizes.len()];
        results.fill(Ok(Outcome::Done));

        let mut headers = Vec::with_capacity(sizes.len());
        headers.extend(buffer.chunks(stride).zip(sizes).map(|(place, size)| {
            let datagram = place.get(..*size)?;
            let is_data = matches!(classify(datagram), Ok(Kind::Data));
            data_header(datagram).filter(|_| is_data)
        }));
        let (mut packets, mut bytes) = (0, 0);
        let (mut handshakes, mut refused) = (Vec::new(), Vec::new());
        RECEIVED_BATCH.with_borrow_mut(|batch| {
            let places = buffer.chunks_mut(stride).zip(sizes).enumerate();
            let places = places.map(|(i, (place, size))| (i * stride, &mut place[..*size]));
            self.path.receive_each(now, origin, places, batch);
            refused.extend_from_slice(&batch.refused);
            for packet in &batch.inner {
                results[packet.start / stride] = Ok(packet_outcome(&buffer[packet.clone()]));
                packets += 1;
                bytes += packet.len() as u64;
            }
            handshakes.extend(batch.handshakes.iter().cloned());
        });
        for (place, cause) in &refused {
            results[place / stride] = Err((*cause).into());
        }
        let mut received = self.lock_received();
        for (result, header) in results.iter().zip(headers) {
            if let (Ok(_), Some(header)) = (result, header) {
                received.loss.count(header);
                received.note_source(from);
            }
        }
        received.count(packets, bytes);
        drop(received);
        for (_, cause) in refused {
            self.log_drop(cause);
        }
        newest_first(&mut handshakes, |message| {
            HandshakeId::of(origin.remote, &buffer[message.clone()])
        });
        for message in handshakes {
            let result = &mut results[message.start / stride];
            let message = &buffer[message];
            if let Ok(kind) = classify(message) {
                let taken = self.with(|control, now| control.handshake(now, from, kind, message));
                *result = match taken {
                    Ok(()) => {
                        self.note_handshake_source(from);
                        Ok(Outcome::Done)
                    }
                    Err(cause) => Err(cause.into()),
                };
            }
        }
        self.run_pending_work();
        Ok(packets as usize)
    }
}
