//! How packets of the latest flows are rewritten, so that the next ones need no
//! lock.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use taupe_protocol::time::Instant;

use super::{Shared, rewrite::Rewrite};
use crate::flows::{Traffic, Tuple};

/// Flows that are remembered at most; a power of two.
const PLACES: usize = 16;

/// How long. The table has to learn that a flow is in use; the shortest life is
/// ten times that.
const LIFE: Duration = Duration::from_secs(1);

/// What one half remembers.
///
/// It cannot lie: whatever changes a flow so that this does not hold any more
/// changes the table's generation.
#[derive(Debug, Default)]
pub(super) struct Memory {
    places: [Option<Remembered>; PLACES],
}

#[derive(Debug)]
struct Remembered {
    tuple: Tuple,
    rewrite: Rewrite,
    traffic: Option<Arc<Traffic>>,
    generation: u64,
    since: Instant,
}

impl Memory {
    /// Remembers what the table, which the caller has locked, has just said.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        shared: &Shared,
        tuple: Tuple,
        (rewrite, traffic): (Rewrite, Option<Arc<Traffic>>),
    ) {
        self.places[place(&tuple)] = Some(Remembered {
            tuple,
            rewrite,
            traffic,
            generation: shared.generation.load(Ordering::Acquire),
            since: now,
        });
    }

    /// What the table would say, and where bytes are counted.
    pub(super) fn find(
        &self,
        now: Instant,
        shared: &Shared,
        tuple: &Tuple,
    ) -> Option<(&Rewrite, Option<&Traffic>)> {
        let known = self.places[place(tuple)].as_ref()?;
        let holds = known.tuple == *tuple
            && known.generation == shared.generation.load(Ordering::Acquire)
            && now.since(known.since) < LIFE;
        holds.then_some((&known.rewrite, known.traffic.as_deref()))
    }
}

/// The ports tell the flows of one host apart, the address those to one service.
fn place(tuple: &Tuple) -> usize {
    let ports = tuple.local.port ^ tuple.remote.port;
    let mixed = ports ^ (ports >> 4) ^ tuple.remote.ip as u16;
    usize::from(mixed) % PLACES
}
