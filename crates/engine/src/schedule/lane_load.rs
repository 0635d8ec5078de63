//! Load of each lane, and its part of the load of the shared thread.
//!
//! A lane returns to the shared thread only if that can carry it beside the lanes that it has
//! already. For example, three lanes carry 0.6 Gbit/s each. The shared thread cannot carry all of
//! them, so they leave it together. After [`LIGHT_TIME`] the first one returns. The second one
//! would make the sum 1.2 Gbit/s, which is no light traffic, so it stays on its own threads. If
//! each looked only at its own load, all would return at once, and leave again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use taupe_protocol::time::Instant;

use super::LIGHT_TIME;
use super::load::{Load, Turn};

/// Load of a lane, from which the threads decide where its paths run.
#[derive(Default)]
pub(crate) struct LaneLoad {
    /// The last time at which a thread was busy with this lane, in nanoseconds of the boot clock.
    busy_at: AtomicU64,
    /// This lane's part of the load of the shared thread.
    shared: SharedLoad,
}

impl LaneLoad {
    pub(super) fn note_busy(&self, now: Instant) {
        self.busy_at.store(now.0, Ordering::Relaxed);
    }

    pub(super) fn is_busy(&self, now: Instant) -> bool {
        now.since(Instant(self.busy_at.load(Ordering::Relaxed))) < LIGHT_TIME
    }

    /// Returns the load of other lanes on the shared thread.
    pub(super) fn others_on(&self, shared_thread: &SharedLoad) -> Load {
        shared_thread.get().less(self.shared.get())
    }

    /// Records that a path with this load moves to the shared thread.
    pub(super) fn arrive_on(&self, shared_thread: &SharedLoad, path: Load) {
        for load in [&self.shared, shared_thread] {
            load.set(load.get().and(path));
        }
    }

    /// Records that the lane leaves the shared thread.
    pub(super) fn leave(&self) {
        self.shared.set(Load::default());
    }
}

/// Load of the shared thread, or of a lane on it: that of the last window, and that of the paths
/// that have arrived since. Written by several threads; a lost update lasts for one window.
#[derive(Default)]
pub(super) struct SharedLoad {
    bytes: AtomicU64,
    busy: AtomicU64,
}

impl SharedLoad {
    fn get(&self) -> Load {
        Load {
            bytes: self.bytes.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
        }
    }

    fn set(&self, load: Load) {
        self.bytes.store(load.bytes, Ordering::Relaxed);
        self.busy.store(load.busy, Ordering::Relaxed);
    }

    /// Sets the part of each lane, and the sum. `lanes` has the lane of each path of the shared
    /// thread, and true if the path has arrived in this window: such a lane has at least the load
    /// that it arrived with. `parts` has the lanes with packets.
    pub(super) fn divide<'a>(
        &self,
        lanes: impl Iterator<Item = (&'a Arc<LaneLoad>, bool)>,
        parts: &[(Arc<LaneLoad>, Load)],
    ) {
        let mut present: Vec<(&Arc<LaneLoad>, bool)> = Vec::new();
        for (lane, has_arrived) in lanes {
            match present.iter_mut().find(|(it, _)| Arc::ptr_eq(it, lane)) {
                Some((_, any)) => *any |= has_arrived,
                None => present.push((lane, has_arrived)),
            }
        }
        let mut sum = Load::default();
        for (lane, has_arrived) in present {
            let part = parts.iter().find(|(it, _)| Arc::ptr_eq(it, lane));
            let mut part = part.map_or(Load::default(), |(_, part)| *part);
            if has_arrived {
                part = part.max(lane.shared.get());
            }
            lane.shared.set(part);
            sum = sum.and(part);
        }
        self.set(sum);
    }
}

/// The lanes that have had packets on the shared thread in a window.
#[derive(Default)]
pub(super) struct Carried {
    /// With the bytes and the nanoseconds of their turns.
    lanes: Vec<(Arc<LaneLoad>, Load)>,
}

impl Carried {
    pub(super) fn note(&mut self, lane: &Arc<LaneLoad>, turn: &Turn) {
        let took = turn.ended.since(turn.read_at);
        let turn = Load {
            bytes: turn.bytes as u64,
            busy: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        };
        match self.lanes.iter_mut().find(|(it, _)| Arc::ptr_eq(it, lane)) {
            Some((_, sum)) => *sum = sum.and(turn),
            None => self.lanes.push((Arc::clone(lane), turn)),
        }
    }

    /// Divides the load of the window that has ended among the lanes, and begins the next window.
    pub(super) fn parts(&mut self, window: Load) -> Vec<(Arc<LaneLoad>, Load)> {
        let all = self.lanes.iter().map(|(_, sum)| *sum);
        let all = all.fold(Load::default(), Load::and);
        let part = |sum: u64, all: u64, of: u64| {
            let part = u128::from(of) * u128::from(sum) / u128::from(all.max(1));
            u64::try_from(part).unwrap_or(of)
        };
        let lanes = self.lanes.drain(..);
        let parts = lanes.map(|(lane, sum)| {
            let bytes = part(sum.bytes, all.bytes, window.bytes);
            let busy = part(sum.busy, all.busy, window.busy);
            (lane, Load { bytes, busy })
        });
        parts.collect()
    }
}
