//! Future events in order of time.

use core::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::host::HybridConf;
use crate::network::Datagrams;
use crate::plan::Nanos;

/// Events in order of time, and among equal times in order of their insertion.
#[derive(Default)]
pub(crate) struct Queue {
    heap: BinaryHeap<Reverse<Queued>>,
    number: u64,
}

impl Queue {
    /// Adds an event.
    pub(crate) fn push(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        self.heap.push(Reverse(Queued {
            at,
            number: self.number,
            event,
        }));
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(queued)| queued.at)
    }

    /// Removes and returns the next event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(queued)| queued.event)
    }

    /// Removes all events, in any order.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Event> {
        self.heap.drain().map(|Reverse(queued)| queued.event)
    }
}

/// A future event.
pub(crate) enum Event {
    /// Datagrams arrive at an address.
    Arrive(Datagrams),
    /// The next action of the plan.
    Planned(usize),
    /// The second half of an action.
    FollowUp(FollowUp),
    /// A pair sends packets of its pattern.
    Flow { edge: usize, turn: u64 },
    /// A step of a probe.
    Probe { edge: usize, turn: u64 },
    /// A check of all hosts.
    Tick,
}

/// The second half of an action.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowUp {
    Start {
        host: usize,
        incarnation: u64,
        reboot: bool,
    },
    Wake {
        host: usize,
    },
    Up {
        host: usize,
    },
    Add {
        host: usize,
        other: usize,
    },
    ConfigureKey {
        host: usize,
        other: usize,
    },
    Preshared {
        host: usize,
        other: usize,
        number: u64,
    },
    ConfigurePqKey {
        host: usize,
        other: usize,
    },
    Hybrid {
        host: usize,
        other: usize,
        conf: Option<HybridConf>,
    },
    RestoreAllowedIps {
        host: usize,
        from: usize,
        to: usize,
    },
    Ambush {
        host: usize,
    },
    EdgeOfWindow {
        host: usize,
        incarnation: u64,
    },
}

impl FollowUp {
    pub(crate) fn host(self) -> usize {
        match self {
            Self::Start { host, .. }
            | Self::Wake { host }
            | Self::Up { host }
            | Self::Add { host, .. }
            | Self::ConfigureKey { host, .. }
            | Self::Preshared { host, .. }
            | Self::ConfigurePqKey { host, .. }
            | Self::Hybrid { host, .. }
            | Self::RestoreAllowedIps { host, .. }
            | Self::Ambush { host }
            | Self::EdgeOfWindow { host, .. } => host,
        }
    }
}

struct Queued {
    at: Nanos,
    number: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
