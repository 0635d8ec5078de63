//! Frames that wait because their owner is not known yet.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use taupe_protocol::time::Instant;

use super::packet::Flow;

/// The time for which a frame waits.
const WAIT: Duration = Duration::from_millis(20);

const MOST: usize = 256;

pub(super) struct Waiting {
    until: Instant,
    flow: Flow,
    /// Number of the last listing of the adapters when the frame arrived.
    pub(super) listing: u64,
    pub(super) adapter: u32,
    pub(super) frame: Vec<u8>,
}

/// The waiting frames in the order of their arrival.
#[derive(Default)]
pub(super) struct Queue(VecDeque<Waiting>);

/// The error if a frame has been dropped for lack of room.
pub(super) struct Full;

impl Queue {
    /// Queues a frame. If there is no room, drops the last frame of the flow that has most frames,
    /// possibly the new one.
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

    /// Drops all frames and returns their number.
    pub(super) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.0).len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next frame that has waited long enough.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Waiting> {
        let has_waited = self.next_deadline().is_some_and(|until| until <= now);
        has_waited.then(|| self.0.pop_front())?
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.0.front().map(|first| first.until)
    }
}
