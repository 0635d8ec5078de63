//! The way of a packet through the protocol, in both directions. It takes no
//! lock of the control loop's.
//!
//! ```text
//! out: route → reserve → (caller) seal, send
//! in:  classify → find session → open → replay → source check → (caller) deliver
//! ```

mod session_table;

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use core::net::IpAddr;
use core::ops::{Deref, Range};
use std::sync::Arc;
use taupe_crypto::{Packet, TAG_LEN};

use crate::allowed_ips::AllowedIps;
use crate::drop_reason::{Counters, DropReason};
use crate::endpoint::Endpoint;
use crate::inner;
use crate::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, Malformed, classify, data_header};
use crate::peer::{CHUNK, Outbound, Peer, Received, Staged, Wake, WorkQueue};
use crate::time::Instant;

pub(crate) use session_table::{SessionTable, TableEntry};

/// What the threads that move packets share with the control loop.
pub struct DataPath {
    pub(crate) routes: ArcSwap<Routes>,
    pub(crate) sessions: SessionTable,
    pub(crate) work_queue: WorkQueue,
    counters: Counters,
}

/// Which peer an inner address belongs to; replaced whole when it changes, by a
/// copy that shares what has not.
#[derive(Clone, Default)]
pub struct Routes {
    pub(crate) allowed_ips: AllowedIps<Arc<Peer>>,
}

impl Routes {
    /// The peer whose allowed IPs hold `address` (the longest prefix wins).
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<&Arc<Peer>> {
        self.allowed_ips.lookup(address)
    }
}

/// Where the messages of one received batch went, as ranges of its buffer.
/// Reused from batch to batch.
#[derive(Default)]
pub struct ReceivedBatch {
    /// Inner packets to deliver, in order, cut to their true length.
    pub inner: Vec<Range<usize>>,
    /// Handshake messages and cookie replies for [`crate::Device::handle_message`].
    pub handshakes: Vec<Range<usize>>,
    /// Messages that were dropped, each by where it begins, and why.
    pub refused: Vec<(usize, DropReason)>,
}

impl ReceivedBatch {
    fn clear(&mut self) {
        self.inner.clear();
        self.handshakes.clear();
        self.refused.clear();
    }
}

impl DataPath {
    pub(crate) fn new(wake: Wake) -> Self {
        Self {
            routes: ArcSwap::default(),
            sessions: SessionTable::default(),
            work_queue: WorkQueue::new(wake),
            counters: Counters::default(),
        }
    }

    /// The routes as they are now. Hold them for one batch, not longer.
    #[must_use]
    pub fn routes(&self) -> impl Deref<Target = Arc<Routes>> + use<> {
        self.routes.load()
    }

    /// Asks to send `messages` messages of transport data to `peer`, of `bytes` in all as in UDP:
    /// each has [`DATA_OVERHEAD`] bytes more than its padded packet ([`padded_len`]).
    pub fn reserve(&self, now: Instant, peer: &Arc<Peer>, messages: u64, bytes: u64) -> Outbound {
        peer.reserve(&self.work_queue, now, messages, bytes)
    }

    /// Keeps packets for `peer` until a handshake has made a session; asks for
    /// the handshake. Beyond 128 packets the oldest is dropped.
    pub fn stage(&self, now: Instant, peer: &Arc<Peer>, packets: impl Iterator<Item = Staged>) {
        // Made before the peer is locked.
        let packets: Vec<Staged> = packets.collect();
        let dropped = peer.stage(&self.work_queue, now, packets);
        self.counters.add(DropReason::StagedOverflow, dropped);
    }

    /// Takes one received batch: `batch` is cut every `segment` bytes (UDP GRO),
    /// all from `from`. Transport data is opened in place; `sorted` is filled
    /// anew.
    pub fn receive(
        &self,
        now: Instant,
        from: Endpoint,
        batch: &mut [u8],
        segment: usize,
        sorted: &mut ReceivedBatch,
    ) {
        if batch.is_empty() {
            sorted.clear();
            self.refuse(sorted, 0, DropReason::Length);
            return;
        }
        let segment = segment.max(1);
        let datagrams = batch.chunks_mut(segment).enumerate();
        let datagrams = datagrams.map(|(i, datagram)| (i * segment, datagram));
        self.receive_each(now, from, datagrams, sorted);
    }

    /// Takes datagrams from `from` as [`Self::receive`] does, each with the place by
    /// which `sorted` is to name its first byte.
    pub fn receive_each<'a>(
        &self,
        now: Instant,
        from: Endpoint,
        datagrams: impl Iterator<Item = (usize, &'a mut [u8])>,
        sorted: &mut ReceivedBatch,
    ) {
        sorted.clear();
        let routes = self.routes.load();
        let mut run = Run::default();
        for (offset, datagram) in datagrams {
            match classify(datagram) {
                Ok(Kind::Data) => {
                    let Some((receiver, counter)) = data_header(datagram) else {
                        continue;
                    };
                    if run.receiver != receiver || run.packets.is_full() {
                        self.open(now, from, &routes, &mut run, sorted);
                        // In place: a run is long to be copied.
                        run.packets.clear();
                        run.offsets.clear();
                        run.receiver = receiver;
                    }
                    let data = &mut datagram[DATA_HEADER_LEN..];
                    run.packets.push(Packet { counter, data });
                    run.offsets.push(offset + DATA_HEADER_LEN);
                }
                Ok(_) => sorted.handshakes.push(offset..offset + datagram.len()),
                Err(Malformed::Length) => self.refuse(sorted, offset, DropReason::Length),
                Err(Malformed::Type) => self.refuse(sorted, offset, DropReason::Type),
            }
        }
        self.open(now, from, &routes, &mut run, sorted);
    }

    /// Opens packets that follow one another in one session.
    fn open(
        &self,
        now: Instant,
        from: Endpoint,
        routes: &Routes,
        run: &mut Run<'_>,
        sorted: &mut ReceivedBatch,
    ) {
        let count = run.packets.len();
        if count == 0 {
            return;
        }
        let Run {
            packets, offsets, ..
        } = run;
        let entry = match self.usable(now, run.receiver) {
            Ok(entry) => entry,
            Err(cause) => {
                for offset in &*offsets {
                    self.refuse(sorted, offset - DATA_HEADER_LEN, cause);
                }
                return;
            }
        };
        let TableEntry { session, peer } = &*entry;
        let mut accepted = [false; CHUNK];
        session.open(packets, &mut accepted[..count], |place, cause| {
            self.refuse(sorted, offsets[place] - DATA_HEADER_LEN, cause);
        });

        let mut received = Received::default();
        let first = sorted.inner.len();
        let mut any = false;
        let opened = packets.iter().zip(&*offsets).zip(accepted);
        for ((packet, offset), _) in opened.filter(|(_, accepted)| *accepted) {
            any = true;
            match received.judge(routes, peer, packet) {
                Ok(Some(length)) => sorted.inner.push(*offset..*offset + length),
                Ok(None) => (),
                Err(cause) => self.refuse(sorted, *offset - DATA_HEADER_LEN, cause),
            }
        }
        if any && !peer.receive(&self.work_queue, now, session, from, received) {
            sorted.inner.truncate(first);
        }
    }

    /// Takes one message of transport data from `from`, as [`Self::receive`] takes many: what
    /// [`data_header`] says of its header, and all that is behind that, which is opened in place. Returns
    /// how long the packet is with which `data` begins then; `None` if there is none to deliver.
    ///
    /// # Errors
    /// Why the message was dropped. It has been counted.
    pub fn receive_one(
        &self,
        now: Instant,
        from: Endpoint,
        (receiver, counter): (u32, u64),
        data: &mut [u8],
    ) -> Result<Option<usize>, DropReason> {
        self.open_one(now, from, receiver, Packet { counter, data })
            .inspect_err(|cause| self.counters.add(*cause, 1))
    }

    fn open_one(
        &self,
        now: Instant,
        from: Endpoint,
        receiver: u32,
        packet: Packet<'_>,
    ) -> Result<Option<usize>, DropReason> {
        let entry = self.usable(now, receiver)?;
        let TableEntry { session, peer } = &*entry;
        let packet = &mut [packet];
        let mut refused = None;
        session.open(packet, &mut [false], |_, cause| refused = Some(cause));
        if let Some(cause) = refused {
            return Err(cause);
        }
        let mut received = Received::default();
        let verdict = received.judge(&self.routes.load(), peer, &packet[0]);
        let is_up = peer.receive(&self.work_queue, now, session, from, received);
        verdict.map(|length| length.filter(|_| is_up))
    }

    /// The session that this side calls `receiver`, if it may receive at `now`.
    fn usable(&self, now: Instant, receiver: u32) -> Result<Arc<TableEntry>, DropReason> {
        let entry = self
            .sessions
            .find(receiver)
            .ok_or(DropReason::UnknownSession)?;
        if !entry.session.may_receive(now) {
            return Err(DropReason::ExpiredSession);
        }
        Ok(entry)
    }

    fn refuse(&self, sorted: &mut ReceivedBatch, place: usize, cause: DropReason) {
        self.counters.add(cause, 1);
        sorted.refused.push((place, cause));
    }

    /// How many packets and messages have been dropped, by cause.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Received {
    /// Takes a packet of `peer`'s that has opened. How long what it holds is, if that is more
    /// than a keepalive, or why it must not be delivered.
    fn judge(
        &mut self,
        routes: &Routes,
        peer: &Arc<Peer>,
        packet: &Packet<'_>,
    ) -> Result<Option<usize>, DropReason> {
        let (plaintext, _) = packet
            .data
            .split_last_chunk::<TAG_LEN>()
            .ok_or(DropReason::Length)?;
        let message = (plaintext.len() + DATA_OVERHEAD) as u64;
        if plaintext.is_empty() {
            self.bytes += message;
            return Ok(None);
        }
        self.data = true;
        let view = inner::parse(plaintext).ok_or(DropReason::InnerMalformed)?;
        let owner = routes.lookup(view.source);
        if !owner.is_some_and(|owner| Arc::ptr_eq(owner, peer)) {
            return Err(DropReason::SourceNotAllowed);
        }
        self.bytes += message;
        Ok(Some(view.length))
    }
}

/// Packets that follow one another for one receiver index.
#[derive(Default)]
struct Run<'a> {
    receiver: u32,
    packets: ArrayVec<Packet<'a>, CHUNK>,
    offsets: ArrayVec<usize, CHUNK>,
}

/// The length to which a packet of `length` bytes is padded on a link of `mtu`
/// bytes (whitepaper §5.4.6, as the kernel's calculate_skb_padding): the next
/// multiple of 16, but never beyond the MTU. A packet longer than the MTU is
/// padded as what remains of it after full MTUs; 0 means no MTU.
#[must_use]
pub fn padded_len(length: usize, mtu: usize) -> usize {
    let aligned = |n: usize| n.next_multiple_of(crate::limits::PADDING);
    if mtu == 0 {
        return aligned(length);
    }
    let last = if length > mtu { length % mtu } else { length };
    length - last + aligned(last).min(mtu)
}

#[cfg(test)]
mod tests;
