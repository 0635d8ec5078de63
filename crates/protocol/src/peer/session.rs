//! A session: a pair of keys with an age.

use arrayvec::ArrayVec;
use std::sync::Mutex;
use taupe_crypto::{AeadKey, Packet, Provider};

use crate::drop_reason::DropReason;
use crate::handshake::noise::TransportKeys;
use crate::limits::{REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME};
use crate::lock;
use crate::message::{DATA_HEADER_LEN, write_data_header};
use crate::peer::replay::ReplayWindow;
use crate::suite::Suite;
use crate::time::Instant;

/// Who sent the initiation that led to a session. Only the initiator renews it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// This side.
    Initiator,
    /// The other side.
    Responder,
}

/// Packets that one call of the AEAD takes.
pub(crate) const CHUNK: usize = 64;

/// A session: what two peers share after a handshake.
pub struct Session {
    local_index: u32,
    remote_index: u32,
    role: Role,
    suite: Option<Suite>,
    born: Instant,
    sealer: Box<dyn AeadKey>,
    opener: Box<dyn AeadKey>,
    replay: Mutex<ReplayWindow>,
}

impl Session {
    pub(crate) fn new(
        crypto: &Provider,
        keys: &TransportKeys,
        role: Role,
        local_index: u32,
        remote_index: u32,
        born: Instant,
        suite: Option<Suite>,
    ) -> Self {
        Self {
            local_index,
            remote_index,
            role,
            suite,
            born,
            sealer: crypto.aead.key(&keys.send),
            opener: crypto.aead.key(&keys.receive),
            replay: Mutex::default(),
        }
    }

    /// The index by which the other side names this session.
    #[must_use]
    pub fn local_index(&self) -> u32 {
        self.local_index
    }

    /// The index by which this side names it to the other.
    #[must_use]
    pub fn remote_index(&self) -> u32 {
        self.remote_index
    }

    /// Which side started it.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The hybrid handshake it comes from; `None` for an ordinary one.
    #[must_use]
    pub fn suite(&self) -> Option<Suite> {
        self.suite
    }

    /// When its keys were derived.
    #[must_use]
    pub fn born(&self) -> Instant {
        self.born
    }

    /// Whether it may send at `now`.
    #[must_use]
    pub fn may_send(&self, now: Instant) -> bool {
        now.since(self.born) < REJECT_AFTER_TIME
    }

    /// Whether it may receive at `now`.
    #[must_use]
    pub fn may_receive(&self, now: Instant) -> bool {
        self.may_send(now)
    }

    /// Seals messages in place. `batch` is cut every `stride` bytes; each
    /// message is [`DATA_HEADER_LEN`] bytes of room, the padded packet, and room
    /// for the tag. Their counters follow one another from `first`.
    pub(crate) fn seal(&self, first: u64, batch: &mut [u8], stride: usize) {
        self.seal_each(first, batch.chunks_mut(stride.max(1)));
    }

    /// Seals messages in place, each of them as [`Self::seal`] does.
    pub(crate) fn seal_each<'a>(&self, first: u64, messages: impl Iterator<Item = &'a mut [u8]>) {
        let mut packets = ArrayVec::<Packet<'_>, CHUNK>::new();
        let mut counter = first;
        for message in messages {
            write_data_header(message, self.remote_index, counter);
            if let Some(data) = message.get_mut(DATA_HEADER_LEN..) {
                packets.push(Packet { counter, data });
            }
            counter = counter.wrapping_add(1);
            if packets.is_full() {
                self.sealer.seal(&mut packets);
                packets.clear();
            }
        }
        self.sealer.seal(&mut packets);
    }

    /// Opens packets in place and marks those that are authentic, below
    /// Reject-After-Messages and not seen before; `refuse` is told of each of the
    /// others, by its place, and why.
    pub(crate) fn open(
        &self,
        packets: &mut [Packet<'_>],
        accepted: &mut [bool],
        mut refuse: impl FnMut(usize, DropReason),
    ) {
        self.opener.open(packets, accepted);
        let mut replay = lock(&self.replay);
        for (place, (packet, accepted)) in packets.iter().zip(accepted.iter_mut()).enumerate() {
            let cause = if !*accepted {
                DropReason::NotAuthentic
            } else if packet.counter >= REJECT_AFTER_MESSAGES {
                DropReason::Exhausted
            } else if !replay.accept(packet.counter) {
                DropReason::Replayed
            } else {
                continue;
            };
            *accepted = false;
            refuse(place, cause);
        }
    }

    /// One above the greatest counter received; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn replay_next(&self) -> u64 {
        lock(&self.replay).next()
    }

    /// Bytes that its replay window holds; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn replay_bytes(&self) -> usize {
        lock(&self.replay).allocated()
    }
}
