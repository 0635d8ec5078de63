//! Table of sessions by receiver index.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use crate::peer::{Peer, Session};
use crate::{read, write};

const SHARDS: usize = 64;

/// Every session that can receive, with its peer, by local index.
///
/// This side chooses indices at random, so that the hash function need not resist chosen inputs.
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
        let index = session.local_index();
        let entry = Arc::new(TableEntry { session, peer });
        write(self.shard(index)).insert(index, entry);
    }

    pub(crate) fn remove(&self, session: &Session) {
        write(self.shard(session.local_index())).remove(&session.local_index());
    }

    /// Returns every session; for tests and counting.
    #[cfg(feature = "testing")]
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
        all.sort_by_key(|session| session.local_index());
        all
    }

    fn shard(&self, index: u32) -> &RwLock<Shard> {
        &self.shards[index as usize % SHARDS]
    }
}

/// Hash function for random indices: the index itself.
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
        // The lowest six bits select the shard, and so are equal within it. The hash table uses
        // the lowest and the highest bits of a hash.
        self.0 = u64::from(index) << 32 | u64::from(index / SHARDS as u32);
    }
}
