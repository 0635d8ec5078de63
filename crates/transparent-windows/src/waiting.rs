//! Frames whose owner is not known yet.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use taupe_protocol::time::Instant;

use super::packet::Flow;

/// How long a frame waits.
const WAIT: Duration = Duration::from_millis(20);

/// Frames that wait at most.
const MOST: usize = 256;

/// A frame that waits.
pub(super) struct Waiting {
    until: Instant,
    flow: Flow,
    /// Which listing of the adapters was the last when it came.
    pub(super) listing: u64,
    pub(super) adapter: u32,
    pub(super) frame: Vec<u8>,
}

/// Those that wait, in their order.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Waiting>);

/// A frame has been dropped for want of room.
pub(super) struct Full;

impl Queue {
    /// Has a frame wait. Where there is no room, the last of the flow that has most of it goes,
    /// which may be this one.
    pub(super) fn push(
        &mut self,
        now: Instant,
        flow: Flow,
        listing: u64,
        adapter: u32,
        frame: &[u8],
    ) -> Result<(), Full> {
        let is_full = self.0.len() >= MOST;
        if is_full {
            let mut counts = HashMap::new();
            for waiting in &self.0 {
                *counts.entry(waiting.flow).or_insert(0) += 1;
            }
            let own = counts.get(&flow).copied().unwrap_or(0);
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            let Some((greedy, _)) = most.filter(|(_, count)| *count > own + 1) else {
                return Err(Full);
            };
            let last = self.0.iter().rposition(|it| it.flow == greedy);
            last.and_then(|last| self.0.remove(last));
        }
        self.0.push_back(Waiting {
            until: now + WAIT,
            flow,
            listing,
            adapter,
            frame: frame.to_vec(),
        });
        match is_full {
            true => Err(Full),
            false => Ok(()),
        }
    }

    /// Forgets all that wait; how many those were.
    pub(super) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next that has waited long enough.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Waiting> {
        let has_waited = self.next_deadline().is_some_and(|until| until <= now);
        has_waited.then(|| self.0.pop_front())?
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|first| first.until)
    }
}
