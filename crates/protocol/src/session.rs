//! Sessions: a pair of keys with an age, and the table that finds them by
//! receiver index.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use arrayvec::ArrayVec;
use taupe_crypto::{AeadKey, Packet, Provider};

use crate::hybrid::Suite;
use crate::limits::{REJECT_AFTER_MESSAGES, REJECT_AFTER_TIME};
use crate::message::{DATA_HEADER_LEN, write_data_header};
use crate::noise::TransportKeys;
use crate::path::DropReason;
use crate::peer::Peer;
use crate::replay::ReplayWindow;
use crate::time::Instant;
use crate::{lock, read, write};

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

const SHARDS: usize = 64;

/// Every session that can receive, with its peer, by local index.
///
/// Indices are random and chosen by this side, so that they need no hashing
/// against adversaries.
pub(crate) struct SessionTable {
    shards: [RwLock<Shard>; SHARDS],
}

type Shard = HashMap<u32, Arc<TableEntry>, BuildHasherDefault<IndexHasher>>;

pub(crate) struct TableEntry {
    pub(crate) session: Arc<Session>,
    pub(crate) peer: Arc<Peer>,
}

impl Default for SessionTable {
    fn default() -> Self {
        Self {
            shards: core::array::from_fn(|_| RwLock::default()),
        }
    }
}

impl SessionTable {
    pub(crate) fn find(&self, index: u32) -> Option<Arc<TableEntry>> {
        read(self.shard(index)).get(&index).cloned()
    }

    pub(crate) fn contains(&self, index: u32) -> bool {
        read(self.shard(index)).contains_key(&index)
    }

    pub(crate) fn insert(&self, session: Arc<Session>, peer: Arc<Peer>) {
        let index = session.local_index;
        let entry = Arc::new(TableEntry { session, peer });
        write(self.shard(index)).insert(index, entry);
    }

    pub(crate) fn remove(&self, session: &Session) {
        write(self.shard(session.local_index)).remove(&session.local_index);
    }

    /// Every session; for tests and counting.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|shard| {
                read(shard)
                    .values()
                    .map(|entry| Arc::clone(&entry.session))
                    .collect::<Vec<_>>()
            })
            .collect();
        all.sort_by_key(|session| session.local_index);
        all
    }

    fn shard(&self, index: u32) -> &RwLock<Shard> {
        &self.shards[index as usize % SHARDS]
    }
}

/// Random indices are their own hash.
#[derive(Default)]
struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }

    fn write_u32(&mut self, index: u32) {
        // The lowest six bits name the shard and are the same within it; the
        // table reads the lowest and the highest bits of a hash.
        self.0 = u64::from(index) << 32 | u64::from(index / SHARDS as u32);
    }
}
