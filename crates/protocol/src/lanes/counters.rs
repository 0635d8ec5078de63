//! Counters of the messages that each lane sends.
//!
//! Blocks of 64 counters are dealt out to the lanes in turn. A lane numbers its messages by
//! *positions*, one by one:
//!
//! ```text
//! counter    0…63     64…127   128…191  192…255  256…319
//! block      0        1        2        3        4          (2 lanes)
//! lane       0        1        0        1        0
//! position   0…63     0…63     64…127   64…127   128…191
//! ```
//!
//! So counters of different lanes differ, and the counters of a lane differ because its position
//! never decreases.

use crate::lanes::{LaneId, Lanes};
use crate::limits::REJECT_AFTER_MESSAGES;

/// Counters of a block.
pub(crate) const BLOCK: u64 = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 6;

/// The next counter of each lane of a session that sends.
pub(crate) enum LaneCounters {
    /// The peer has no lanes: all lanes of this device share consecutive counters.
    Consecutive { next: u64 },
    /// Each lane has counters of its own.
    Striped(Box<Striped>),
}

/// The next positions of two or more lanes.
pub(crate) struct Striped {
    lanes: Lanes,
    /// The next position of each lane.
    next: [u64; Lanes::Sixteen.count()],
    /// The greatest block of which a counter has been reserved.
    newest: u64,
}

/// Reserved counters of one lane, the next one first.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    next: u64,
    /// Number of counters of the other lanes between two blocks of this lane.
    others: u64,
}

impl Run {
    /// Returns consecutive counters from `first`.
    pub(crate) const fn consecutive(first: u64) -> Self {
        Self {
            next: first,
            others: 0,
        }
    }

    /// Returns the next counter. The caller takes no more than were reserved.
    pub(crate) fn take(&mut self) -> u64 {
        let counter = self.next;
        self.next = counter.wrapping_add(1);
        if self.next.is_multiple_of(BLOCK) {
            self.next = self.next.wrapping_add(self.others);
        }
        counter
    }
}

/// A reservation.
pub(crate) struct Reserved {
    pub(crate) run: Run,
    /// One more than the greatest counter of the run.
    pub(crate) end: u64,
}

impl LaneCounters {
    /// Returns the counters of a new session.
    pub(crate) fn new(lanes: Lanes) -> Self {
        match lanes {
            Lanes::One => Self::Consecutive { next: 0 },
            lanes => Self::Striped(Box::new(Striped {
                lanes,
                next: [0; Lanes::Sixteen.count()],
                newest: 0,
            })),
        }
    }

    /// Reserves `count` counters for a lane. Returns `None` and changes nothing if one of them is
    /// not below [`REJECT_AFTER_MESSAGES`].
    pub(crate) fn reserve(&mut self, lane: LaneId, count: u64) -> Option<Reserved> {
        match self {
            Self::Consecutive { next } => {
                let end = next.checked_add(count)?;
                if end > REJECT_AFTER_MESSAGES {
                    return None;
                }
                let run = Run::consecutive(*next);
                *next = end;
                Some(Reserved { run, end })
            }
            Self::Striped(striped) => striped.reserve(lane, count),
        }
    }

    /// Checks whether all counters are used, except those of lanes that have fallen behind.
    pub(crate) fn is_exhausted(&self) -> bool {
        match self {
            Self::Consecutive { next } => *next >= REJECT_AFTER_MESSAGES,
            // The last block counts as used, although some counters may be left in it.
            Self::Striped(striped) => striped.newest >= (REJECT_AFTER_MESSAGES - 1) >> BLOCK_BITS,
        }
    }

    /// Returns the greatest of the lanes' next counters.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn next(&self) -> u64 {
        match self {
            Self::Consecutive { next } => *next,
            Self::Striped(striped) => {
                let next = striped.lanes.ids().zip(striped.next);
                let next =
                    next.filter_map(|(lane, position)| counter(striped.lanes, lane, position));
                next.max().unwrap_or(0)
            }
        }
    }

    /// Raises the next counters to `to`, or to each lane's counters near it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn raise(&mut self, to: u64) {
        match self {
            Self::Consecutive { next } => *next = to.max(*next),
            Self::Striped(striped) => striped.newest = striped.newest.max(to >> BLOCK_BITS),
        }
    }
}

impl Striped {
    fn reserve(&mut self, lane: LaneId, count: u64) -> Option<Reserved> {
        let lane = self.lanes.wrap(lane.number() as u64);
        let number = lane.number() as u64;
        // A lane that has fallen behind moves on to its first block that is at most one block of
        // each lane older than the newest: a receiver with one window for all lanes accepts only
        // counters near the newest.
        let slack = self.lanes.count() as u64;
        let oldest = self.newest.saturating_sub(slack);
        let row = oldest.saturating_sub(number).div_ceil(slack);
        let next = &mut self.next[lane.number()];
        let first = row.checked_mul(BLOCK)?.max(*next);
        // Even for no messages, one counter is reserved.
        let last = first.checked_add(count.max(1) - 1)?;
        let greatest = counter(self.lanes, lane, last)?;
        let end = greatest.checked_add(1)?;
        if end > REJECT_AFTER_MESSAGES {
            return None;
        }
        let run = Run {
            next: counter(self.lanes, lane, first)?,
            others: BLOCK * (slack - 1),
        };
        *next = last + 1;
        self.newest = self.newest.max(greatest >> BLOCK_BITS);
        Some(Reserved { run, end })
    }
}

/// Returns the counter at a position of a lane; `None` if there is no such counter.
pub(super) fn counter(lanes: Lanes, lane: LaneId, position: u64) -> Option<u64> {
    let row = position >> BLOCK_BITS;
    let block = row.checked_mul(lanes.count() as u64)?;
    let block = block.checked_add(lane.number() as u64)?;
    let start = block.checked_mul(BLOCK)?;
    Some(start | (position % BLOCK))
}

/// Returns the lane of a counter, and its position there.
pub(crate) fn position(lanes: Lanes, counter: u64) -> (LaneId, u64) {
    let block = counter >> BLOCK_BITS;
    let row = block >> lanes.log2();
    (lanes.wrap(block), row << BLOCK_BITS | (counter % BLOCK))
}
