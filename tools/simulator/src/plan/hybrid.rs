//! Hybrid handshakes in a plan. They use a random stream of their own, and two of three seeds have
//! none.

use taupe_protocol::hybrid::Suite;
use taupe_protocol::update::PostQuantum;

use super::{Action, Agreed, Episode, Hostile, MILLISECOND, MINUTE, Nanos, Planned, SECOND};
use crate::random::Random;

/// With this stream none of the seeds in `seeds.txt` has hybrid handshakes, so their episodes stay
/// unchanged.
const STREAM: u64 = 0x50_0af0;

/// Adds hybrid handshakes to an episode, if its seed has any.
pub(super) fn add(episode: &mut Episode) {
    let mut generator = Generator {
        random: Random::new(episode.seed, STREAM),
    };
    if !generator.random.once_in(3) {
        return;
    }
    for edge in &mut episode.edges {
        edge.hybrid = generator.agreed();
        edge.narrow = generator.random.once_in(3);
    }
    let mut events = core::mem::take(&mut episode.events);
    for edge in 0..episode.edges.len() {
        generator.pair_events(edge, episode.duration, &mut events);
    }
    for host in 0..episode.hosts {
        generator.host_events(host, episode.duration, &mut events);
    }
    events.sort_by_key(|event| event.at);
    episode.events = events;
}

struct Generator {
    random: Random,
}

impl Generator {
    /// Returns the settings of a pair; one of four pairs is ordinary.
    fn agreed(&mut self) -> Option<Agreed> {
        use PostQuantum::{Off, Prefer, Require};
        if self.random.once_in(4) {
            return None;
        }
        let settings = match self.random.below(8) {
            0..4 => [Require, Require],
            4 => [Prefer, Prefer],
            5 => [Require, Prefer],
            6 => [Prefer, Require],
            _ => [[Off, Prefer], [Prefer, Off]][self.random.index(2)],
        };
        let suite = Suite::ALL[self.random.index(Suite::ALL.len())];
        Some(Agreed { suite, settings })
    }

    /// Returns times at a mean distance of `every`.
    fn times(&mut self, duration: Nanos, every: Nanos) -> Vec<Nanos> {
        super::generate::times(&mut self.random, duration, every)
    }

    fn pair_events(&mut self, edge: usize, duration: Nanos, events: &mut Vec<Planned>) {
        for at in self.times(duration, 60 * MINUTE) {
            let action = Action::Hybrid {
                edge,
                side: self.random.index(2),
                agreed: self.agreed(),
                gap: self.random.spread(MILLISECOND, 3 * MINUTE),
            };
            events.push(Planned { at, action });
        }
    }

    fn host_events(&mut self, host: usize, duration: Nanos, events: &mut Vec<Planned>) {
        for at in self.times(duration, 3 * MINUTE) {
            let kind = Hostile::HYBRID[self.random.index(Hostile::HYBRID.len())];
            let count = self.random.spread(1, 12) as u8;
            let action = Action::Attack { host, kind, count };
            events.push(Planned { at, action });
        }
        for at in self.times(duration, 90 * MINUTE) {
            let gap = self.random.spread(MILLISECOND, 20 * SECOND);
            events.push(Planned {
                at,
                action: Action::Seed { host, gap },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_old_failures_have_no_hybrid_handshakes() {
        let seeds = include_str!("../../seeds.txt").lines().filter_map(|line| {
            let recipe = line.split_whitespace().next().filter(|word| *word != "#")?;
            recipe.split('/').next()?.parse().ok()
        });
        for seed in seeds.filter(|seed: &u64| !HYBRID_SEEDS.contains(seed)) {
            let episode = Episode::generate(seed);
            assert!(
                episode.edges.iter().all(|edge| edge.hybrid.is_none()),
                "{seed}"
            );
        }
    }

    /// Seeds in `seeds.txt` about hybrid handshakes.
    const HYBRID_SEEDS: [u64; 0] = [];

    #[test]
    fn every_suite_and_setting_occurs() {
        let drawn: Vec<Agreed> = (0..200)
            .flat_map(|seed| Episode::generate(seed).edges)
            .filter_map(|edge| edge.hybrid)
            .collect();
        for suite in Suite::ALL {
            for setting in PostQuantum::ALL {
                let found = drawn
                    .iter()
                    .any(|agreed| agreed.suite == suite && agreed.settings.contains(&setting));
                assert!(found, "{suite:?} {setting:?}");
            }
        }
    }
}
