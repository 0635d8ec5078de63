//! The plan of an episode, generated from its seed before it runs.
//!
//! Everything is a list, so that a failing episode can be shrunk: any event, class of events, pair
//! or host can be left out, and the rest still replays.

use core::fmt;

use taupe_protocol::hybrid::Suite;
use taupe_protocol::update::PostQuantum;

mod action;
mod generate;
mod hybrid;
mod quality;

pub use action::{Action, Class, Hostile, Pattern};
pub use quality::Quality;

/// Nanoseconds of virtual time.
pub type Nanos = u64;
/// A millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// A second.
pub const SECOND: Nanos = 1000 * MILLISECOND;
/// A minute.
pub const MINUTE: Nanos = 60 * SECOND;
/// An hour.
pub const HOUR: Nanos = 60 * MINUTE;

/// Time without traffic after the plan: longer than the network's delays (300 s), the life of keys
/// (540 s) and the retries of a handshake (107 s) together.
pub const QUIET_PERIOD: Nanos = 1100 * SECOND;

/// A run generated from one seed.
#[derive(Clone)]
pub struct Episode {
    /// The seed, also for random numbers drawn while it runs.
    pub seed: u64,
    /// Number of devices: 2 to 8.
    pub hosts: usize,
    /// Duration of the events; [`QUIET_PERIOD`] follows.
    pub duration: Nanos,
    /// Pairs of peers.
    pub edges: Vec<Edge>,
    /// Events in order of time.
    pub events: Vec<Planned>,
}

/// Two hosts that are each other's peers from the start.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The lower host.
    pub a: usize,
    /// The higher host.
    pub b: usize,
    /// True if they have a preshared key.
    pub preshared: bool,
    /// True if `a` has an endpoint of `b`, and the reverse; at least one is.
    pub endpoint: [bool; 2],
    /// Persistent keepalive of `a` and of `b`, in seconds.
    pub keepalive: [u16; 2],
    /// Their hybrid handshakes, if they have any.
    pub hybrid: Option<Agreed>,
    /// True if datagrams of more than 1,280 bytes with headers are lost.
    pub narrow: bool,
}

/// Settings of two hosts for hybrid handshakes with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The suite, which determines whose static keys are configured.
    pub suite: Suite,
    /// Settings of `a` and `b`.
    pub settings: [PostQuantum; 2],
}

/// A planned event.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Time since the start.
    pub at: Nanos,
    /// The action.
    pub action: Action,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} {:?}", Time(self.at), self.action)
    }
}

/// Formats a time as hours, minutes and seconds.
pub struct Time(pub Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0 / SECOND, self.0 % SECOND);
        let text = format!(
            "{}:{:02}:{:02}.{:06}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            nanos / 1000
        );
        f.pad(&text)
    }
}

impl Episode {
    /// Generates the episode of a seed.
    #[must_use]
    pub fn generate(seed: u64) -> Self {
        let mut episode = generate::episode(seed);
        hybrid::add(&mut episode);
        episode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan() {
        let text = |seed| -> Vec<String> {
            let episode = Episode::generate(seed);
            episode.events.iter().map(ToString::to_string).collect()
        };
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    #[test]
    fn every_class_of_events_occurs() {
        let mut missing: Vec<Class> = Class::ALL.to_vec();
        for seed in 0..40 {
            let episode = Episode::generate(seed);
            assert!(episode.events.is_sorted_by_key(|event| event.at));
            for event in &episode.events {
                missing.retain(|class| *class != event.action.class());
                for host in event.action.hosts(&episode.edges) {
                    assert!(host < episode.hosts);
                }
            }
        }
        assert_eq!(missing, []);
    }
}
