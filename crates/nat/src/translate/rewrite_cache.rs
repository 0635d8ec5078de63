//! A small cache of rewrites for recent flows, so that their next packets need no lock.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use taupe_protocol::time::Instant;

use super::{Shared, rewrite::Rewrite};
use crate::flows::{Traffic, Tuple};

/// Maximum number of cached flows; a power of two.
const SLOTS: usize = 16;

/// Lifetime of an entry. The table must learn that a flow is in use; its shortest timeout is ten
/// times as long.
const LIFETIME: Duration = Duration::from_secs(1);

/// The cache of one half.
///
/// Its entries are never stale: every change of a flow that would make an entry wrong changes the
/// table's generation.
#[derive(Debug, Default)]
pub(super) struct RewriteCache {
    slots: [Option<Entry>; SLOTS],
}

#[derive(Debug)]
struct Entry {
    tuple: Tuple,
    rewrite: Rewrite,
    traffic: Option<Arc<Traffic>>,
    generation: u64,
    since: Instant,
}

impl RewriteCache {
    /// Caches what the table has just returned. The caller holds the table's lock.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        shared: &Shared,
        tuple: Tuple,
        (rewrite, traffic): (Rewrite, Option<Arc<Traffic>>),
    ) {
        self.slots[slot(&tuple)] = Some(Entry {
            tuple,
            rewrite,
            traffic,
            generation: shared.generation.load(Ordering::Acquire),
            since: now,
        });
    }

    /// Returns the cached rewrite and the byte counters, if the entry is valid.
    pub(super) fn find(
        &self,
        now: Instant,
        shared: &Shared,
        tuple: &Tuple,
    ) -> Option<(&Rewrite, Option<&Traffic>)> {
        let known = self.slots[slot(tuple)].as_ref()?;
        let is_valid = known.tuple == *tuple
            && known.generation == shared.generation.load(Ordering::Acquire)
            && now.since(known.since) < LIFETIME;
        is_valid.then_some((&known.rewrite, known.traffic.as_deref()))
    }
}

/// Returns the slot of a tuple. Ports distinguish the flows of one host, the remote address those
/// to one service.
fn slot(tuple: &Tuple) -> usize {
    let ports = tuple.local.port ^ tuple.remote.port;
    let mixed = ports ^ (ports >> 4) ^ tuple.remote.ip as u16;
    usize::from(mixed) % SLOTS
}
