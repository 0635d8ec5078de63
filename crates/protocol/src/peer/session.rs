//! Sessions: pairs of transport keys with an age.

use arrayvec::ArrayVec;
use std::sync::Arc;
use taupe_crypto::{AeadKey, Packet, Provider};

use crate::drop_reason::DropReason;
use crate::handshake::noise::TransportKeys;
use crate::lanes::{Run, SessionLanes};
use crate::limits::{REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME};
use crate::message::{DATA_HEADER_LEN, write_data_header};
use crate::peer::send_order::SendOrder;
use crate::peer::windows::Windows;
use crate::suite::Suite;
use crate::time::Instant;

/// Side that sent the initiation of a session. Only the initiator renews the session because of
/// its age (whitepaper §6.2); either side does after Rekey-After-Messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// This side.
    Initiator,
    /// The other side.
    Responder,
}

/// Maximum number of packets in one call of the AEAD.
pub(crate) const CHUNK: usize = 64;

/// A session between two peers, made by a handshake (whitepaper §5.4.5).
pub struct Session {
    local_index: u32,
    remote_index: u32,
    role: Role,
    suite: Option<Suite>,
    born: Instant,
    sealer: Box<dyn AeadKey>,
    opener: Box<dyn AeadKey>,
    lanes: SessionLanes,
    windows: Windows,
    /// Present if only one lane at a time may send.
    order: Option<Arc<SendOrder>>,
}

/// Facts of a session that both sides know after its handshake, from this side's view.
pub(crate) struct Agreed {
    pub(crate) role: Role,
    pub(crate) local_index: u32,
    pub(crate) remote_index: u32,
    pub(crate) suite: Option<Suite>,
    pub(crate) lanes: SessionLanes,
}

impl Session {
    pub(crate) fn new(
        crypto: &Provider,
        keys: &TransportKeys,
        agreed: Agreed,
        born: Instant,
    ) -> Self {
        let Agreed {
            role,
            local_index,
            remote_index,
            suite,
            lanes,
        } = agreed;
        Self {
            local_index,
            remote_index,
            role,
            suite,
            born,
            sealer: crypto.aead.key(&keys.send),
            opener: crypto.aead.key(&keys.receive),
            lanes,
            windows: Windows::new(lanes),
            order: lanes.is_ordered().then(Arc::default),
        }
    }

    /// Returns the index that the other side puts into messages to this side.
    #[must_use]
    pub fn local_index(&self) -> u32 {
        self.local_index
    }

    /// Returns the index that this side puts into messages to the other side.
    #[must_use]
    pub fn remote_index(&self) -> u32 {
        self.remote_index
    }

    /// Returns this side's role in the handshake.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the suite of the hybrid handshake that made the session; `None` for an ordinary
    /// one.
    #[must_use]
    pub fn suite(&self) -> Option<Suite> {
        self.suite
    }

    /// Returns the time at which the keys were derived.
    #[must_use]
    pub fn born(&self) -> Instant {
        self.born
    }

    pub(crate) fn lanes(&self) -> SessionLanes {
        self.lanes
    }

    /// Returns the order of the lanes if only one lane at a time may send.
    pub(crate) fn send_order(&self) -> Option<&Arc<SendOrder>> {
        self.order.as_ref()
    }

    /// Checks whether the session may send at `now` (Reject-After-Time).
    #[must_use]
    pub fn may_send(&self, now: Instant) -> bool {
        now.since(self.born) < REJECT_AFTER_TIME
    }

    /// Checks whether the session may receive at `now` (Reject-After-Time).
    #[must_use]
    pub fn may_receive(&self, now: Instant) -> bool {
        self.may_send(now)
    }

    /// Seals messages in place. Each `stride` bytes of `batch` are one message:
    /// [`DATA_HEADER_LEN`] bytes for the header, the padded packet, and room for the tag. Their
    /// counters are taken from `counters`.
    pub(crate) fn seal(&self, counters: &mut Run, batch: &mut [u8], stride: usize) {
        self.seal_each(counters, batch.chunks_mut(stride.max(1)));
    }

    /// Seals messages in place, each in the layout of [`Self::seal`].
    pub(crate) fn seal_each<'a>(
        &self,
        counters: &mut Run,
        messages: impl Iterator<Item = &'a mut [u8]>,
    ) {
        let mut packets = ArrayVec::<Packet<'_>, CHUNK>::new();
        for message in messages {
            let counter = counters.take();
            write_data_header(message, self.remote_index, counter);
            if let Some(data) = message.get_mut(DATA_HEADER_LEN..) {
                packets.push(Packet { counter, data });
            }
            if packets.is_full() {
                self.sealer.seal(&mut packets);
                packets.clear();
            }
        }
        self.sealer.seal(&mut packets);
    }

    /// Opens packets in place. Marks in `accepted` those that are authentic, below
    /// Reject-After-Messages and not received before. Calls `refuse` with the index of each other
    /// packet and the reason.
    pub(crate) fn open(
        &self,
        packets: &mut [Packet<'_>],
        accepted: &mut [bool],
        mut refuse: impl FnMut(usize, DropReason),
    ) {
        self.opener.open(packets, accepted);
        let mut windows = self.windows.lock();
        for (place, (packet, accepted)) in packets.iter().zip(accepted.iter_mut()).enumerate() {
            let cause = if !*accepted {
                DropReason::NotAuthentic
            } else if packet.counter >= REJECT_AFTER_MESSAGES {
                DropReason::Exhausted
            } else if !windows.accept(packet.counter) {
                DropReason::Replayed
            } else {
                continue;
            };
            *accepted = false;
            refuse(place, cause);
        }
    }

    /// Returns the greatest counter received plus one.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn replay_next(&self) -> u64 {
        self.windows.next()
    }

    /// Returns the number of lanes that wait until another has sent.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn waiting_lanes(&self) -> usize {
        self.order.as_ref().map_or(0, |order| order.waiting())
    }

    /// Returns the bytes allocated for the replay windows.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn replay_bytes(&self) -> usize {
        self.windows.allocated()
    }
}
