//! Data path: carries packets in both directions. It takes no lock that the control loop holds
//! for long.
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
use crate::lanes::{LaneId, Lanes, Steering};
use crate::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, Malformed, classify, data_header};
use crate::peer::{CHUNK, Outbound, Peer, Received, Staged, Wake, WorkQueue};
use crate::time::Instant;

pub(crate) use session_table::{SessionTable, TableEntry};

/// State that the threads moving packets share with the control loop.
pub struct DataPath {
    pub(crate) routes: ArcSwap<Routes>,
    pub(crate) sessions: SessionTable,
    pub(crate) work_queue: WorkQueue,
    counters: Counters,
    steering: Steering,
}

/// Table that maps inner addresses to peers. A change replaces it with a modified copy, which
/// shares all unchanged nodes.
#[derive(Clone, Default)]
pub struct Routes {
    pub(crate) allowed_ips: AllowedIps<Arc<Peer>>,
}

impl Routes {
    /// Returns the peer whose allowed IPs contain `address` (the longest prefix wins).
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<&Arc<Peer>> {
        self.allowed_ips.lookup(address)
    }
}

/// Messages of one received batch by kind, as ranges of its buffer. Callers reuse it for the next
/// batch.
#[derive(Default)]
pub struct ReceivedBatch {
    /// Inner packets to deliver, in order, without their padding.
    pub inner: Vec<Range<usize>>,
    /// Handshake messages and cookie replies for [`crate::Device::handle_message`].
    pub handshakes: Vec<Range<usize>>,
    /// Messages that were dropped: the offset of each in the buffer, and the reason.
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
    pub(crate) fn new(wake: Wake, steering: Steering) -> Self {
        Self {
            routes: ArcSwap::default(),
            sessions: SessionTable::default(),
            work_queue: WorkQueue::new(wake),
            counters: Counters::default(),
            steering,
        }
    }

    /// Returns the current routes. Hold them for one batch only.
    #[must_use]
    pub fn routes(&self) -> impl Deref<Target = Arc<Routes>> + use<> {
        self.routes.load()
    }

    /// Returns the rule by which the device chooses the lane that receives a message.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Reserves counters as [`Self::reserve_on`] does, on the first lane.
    pub fn reserve(&self, now: Instant, peer: &Arc<Peer>, messages: u64, bytes: u64) -> Outbound {
        self.reserve_on(LaneId::FIRST, now, peer, messages, bytes)
    }

    /// Reserves counters of a lane for `messages` messages of transport data to `peer`. `bytes` is
    /// their total UDP payload: each message has [`DATA_OVERHEAD`] bytes more than its padded
    /// packet ([`padded_len`]).
    ///
    /// Any thread may reserve on any lane, but packets that must stay in order must be reserved
    /// and sent one after the other. If the device has several lanes and the peer has none, the
    /// call waits until the previous [`crate::Reservation`] for the peer has been dropped.
    pub fn reserve_on(
        &self,
        lane: LaneId,
        now: Instant,
        peer: &Arc<Peer>,
        messages: u64,
        bytes: u64,
    ) -> Outbound {
        peer.reserve(&self.work_queue, now, lane, messages, bytes)
    }

    /// Stores packets for `peer` until there is a session, and requests a handshake. Beyond 128
    /// packets the oldest is dropped.
    pub fn stage(&self, now: Instant, peer: &Arc<Peer>, packets: impl Iterator<Item = Staged>) {
        // Collected before the peer is locked.
        let packets: Vec<Staged> = packets.collect();
        let dropped = peer.stage(&self.work_queue, now, packets);
        self.counters.add(DropReason::StagedOverflow, dropped);
    }

    /// Takes one received batch as [`Self::receive_on`] does, on the first lane.
    pub fn receive(
        &self,
        now: Instant,
        from: Endpoint,
        batch: &mut [u8],
        segment: usize,
        sorted: &mut ReceivedBatch,
    ) {
        self.receive_on(LaneId::FIRST, now, from, batch, segment, sorted);
    }

    /// Takes one batch that a lane has received from `from`, with datagrams of `segment` bytes each
    /// (UDP GRO). Transport data is decrypted in place. `sorted` is cleared and filled with the
    /// result.
    ///
    /// Messages that [`Self::steering`] assigns to another lane are accepted as well. If there are
    /// many, new sessions of the peer are received on one lane.
    pub fn receive_on(
        &self,
        lane: LaneId,
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
        self.receive_each_on(lane, now, from, datagrams, sorted);
    }

    /// Takes datagrams from `from` as [`Self::receive`] does. Each comes with the offset that
    /// `sorted` uses for its first byte.
    pub fn receive_each<'a>(
        &self,
        now: Instant,
        from: Endpoint,
        datagrams: impl Iterator<Item = (usize, &'a mut [u8])>,
        sorted: &mut ReceivedBatch,
    ) {
        self.receive_each_on(LaneId::FIRST, now, from, datagrams, sorted);
    }

    fn receive_each_on<'a>(
        &self,
        lane: LaneId,
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
                        self.open(lane, now, from, &routes, &mut run, sorted);
                        // Cleared in place: a run is too large to move.
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
        self.open(lane, now, from, &routes, &mut run, sorted);
    }

    /// Opens consecutive packets of one session.
    fn open(
        &self,
        lane: LaneId,
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
            receiver,
            packets,
            offsets,
        } = run;
        let entry = match self.find_live_session(now, *receiver) {
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
            match received.check_inner(routes, peer, packet) {
                Ok(Some(length)) => sorted.inner.push(*offset..*offset + length),
                Ok(None) => (),
                Err(cause) => self.refuse(sorted, *offset - DATA_HEADER_LEN, cause),
            }
        }
        let spread = self.steering.spread(*receiver);
        if spread.width() > Lanes::One {
            let counters = packets
                .iter()
                .zip(accepted)
                .filter(|(_, accepted)| *accepted);
            received.count_lanes(
                lane,
                counters.map(|(packet, _)| spread.lane(packet.counter)),
            );
        }
        if any && !peer.receive(&self.work_queue, now, session, from, received) {
            sorted.inner.truncate(first);
        }
    }

    /// Takes one message of transport data from `from`, as [`Self::receive`] does for a batch.
    /// The caller passes the header's fields, from [`data_header`], and all bytes after the
    /// header, which are decrypted in place. Returns the length of the packet at the start of
    /// `data`; `None` if there is none to deliver.
    ///
    /// # Errors
    /// The reason why the message was dropped. It has been counted.
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
        let entry = self.find_live_session(now, receiver)?;
        let TableEntry { session, peer } = &*entry;
        let packet = &mut [packet];
        let mut refused = None;
        session.open(packet, &mut [false], |_, cause| refused = Some(cause));
        if let Some(cause) = refused {
            return Err(cause);
        }
        let mut received = Received::default();
        let verdict = received.check_inner(&self.routes.load(), peer, &packet[0]);
        let is_up = peer.receive(&self.work_queue, now, session, from, received);
        verdict.map(|length| length.filter(|_| is_up))
    }

    /// Returns the session with local index `receiver`, if it may receive at `now`.
    fn find_live_session(
        &self,
        now: Instant,
        receiver: u32,
    ) -> Result<Arc<TableEntry>, DropReason> {
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

    /// Returns the drop counters, by reason.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Received {
    /// Accounts for accepted messages that arrived on `lane`. `lanes` are their own lanes.
    fn count_lanes(&mut self, lane: LaneId, lanes: impl Iterator<Item = LaneId>) {
        for right in lanes {
            self.spread += 1;
            self.misplaced += u32::from(right != lane);
        }
    }

    /// Accounts for a decrypted packet of `peer`. Returns the length of the inner packet, `None`
    /// for a keepalive, or the reason why the packet must not be delivered.
    fn check_inner(
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

/// Consecutive packets for one receiver index.
#[derive(Default)]
struct Run<'a> {
    receiver: u32,
    packets: ArrayVec<Packet<'a>, CHUNK>,
    offsets: ArrayVec<usize, CHUNK>,
}

/// Returns the padded length of a packet of `length` bytes on a link with this MTU (whitepaper
/// §5.4.6, as the kernel's `calculate_skb_padding`): the next multiple of 16, but at most the
/// MTU. For a packet longer than the MTU, the remainder after full MTUs is padded like this. An
/// `mtu` of 0 means none.
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
