//! An episode as a short text: a seed, and the remaining parts of its plan.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use crate::plan::{Action, Episode, Nanos, SECOND};

/// A seed with the parts of its plan to play.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    /// The seed.
    pub seed: u64,
    /// The duration.
    pub duration: Nanos,
    /// Pairs, by their number in the full plan.
    pub edges: Vec<usize>,
    /// Events, by their number in the full plan.
    pub events: Vec<usize>,
}

/// Error of parsing a recipe.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RecipeError {
    /// The text does not have four parts.
    #[error("a recipe is a seed, or SEED/SECONDS/PAIRS/EVENTS; {0:?} is neither")]
    Parts(String),
    /// A part is no number or list of numbers.
    #[error("{0:?} is no number, and no list of numbers such as 1,4-7,9")]
    Number(String),
}

impl Recipe {
    /// Returns the recipe of a seed's full plan.
    #[must_use]
    pub fn full(seed: u64) -> Self {
        let episode = Episode::generate(seed);
        Self {
            seed,
            duration: episode.duration,
            edges: (0..episode.edges.len()).collect(),
            events: (0..episode.events.len()).collect(),
        }
    }

    /// Returns the episode. Ignores numbers that the plan does not have, and events of pairs that
    /// are left out.
    #[must_use]
    pub fn episode(&self) -> Episode {
        let full = Episode::generate(self.seed);
        let mut edges: Vec<usize> = self.edges.clone();
        edges.retain(|edge| *edge < full.edges.len());
        let place = |edge: usize| edges.iter().position(|remaining| *remaining == edge);
        let events = self
            .events
            .iter()
            .filter_map(|event| full.events.get(*event))
            .filter(|event| event.at < self.duration)
            .filter_map(|event| {
                let mut event = *event;
                if let Some(edge) = event.action.edge_mut() {
                    *edge = place(*edge)?;
                }
                Some(event)
            })
            .collect();
        Episode {
            seed: self.seed,
            hosts: full.hosts,
            duration: self.duration,
            edges: edges.iter().map(|edge| full.edges[*edge]).collect(),
            events,
        }
    }
}

impl Action {
    /// Returns the pair that the event is about.
    fn edge_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Flow { edge, .. }
            | Self::Probe { edge }
            | Self::Bulk { edge, .. }
            | Self::Impair { edge, .. }
            | Self::Partition { edge, .. }
            | Self::Remove { edge, .. }
            | Self::Preshared { edge, .. }
            | Self::Endpoint { edge, .. }
            | Self::Hybrid { edge, .. }
            | Self::Keepalive { edge, .. } => Some(edge),
            _ => None,
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.duration.div_ceil(SECOND);
        write!(
            f,
            "{}/{seconds}/{}/{}",
            self.seed,
            List(&self.edges),
            List(&self.events)
        )
    }
}

impl FromStr for Recipe {
    type Err = RecipeError;

    fn from_str(text: &str) -> Result<Self, RecipeError> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [seed] => Ok(Self::full(number(seed)?)),
            [seed, seconds, edges, events] => Ok(Self {
                seed: number(seed)?,
                duration: number(seconds)?.saturating_mul(SECOND),
                edges: list(edges)?,
                events: list(events)?,
            }),
            _ => Err(RecipeError::Parts(text.to_owned())),
        }
    }
}

fn number(text: &str) -> Result<u64, RecipeError> {
    text.parse()
        .map_err(|_| RecipeError::Number(text.to_owned()))
}

fn list(text: &str) -> Result<Vec<usize>, RecipeError> {
    let mut numbers = Vec::new();
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)? as usize, number(last)? as usize);
        // No plan is that long.
        if last - first.min(last) > 1 << 20 {
            return Err(RecipeError::Number(range.to_owned()));
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

/// Formats numbers as ranges.
struct List<'a>(&'a [usize]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_round_trip_as_text() {
        for recipe in [
            Recipe::full(7),
            Recipe {
                seed: 1,
                duration: 90 * SECOND,
                edges: vec![0, 2, 3],
                events: vec![],
            },
        ] {
            assert_eq!(recipe.to_string().parse(), Ok(recipe));
        }
        assert_eq!("7".parse(), Ok(Recipe::full(7)));
        for bad in [
            "",
            "x",
            "1/2",
            "1/2/3/4/5",
            "1/2/a/3",
            "1/2/0/0-99999999999",
        ] {
            assert!(bad.parse::<Recipe>().is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_pairs_and_events_are_ignored() {
        let recipe: Recipe = "1/100/0,9999/0-9999".parse().unwrap();
        let episode = recipe.episode();
        assert_eq!(episode.edges.len(), 1);
        let outcome = crate::world::run(&episode, &taupe_crypto::AWS_LC, false);
        assert!(outcome.violation.is_none());
    }

    #[test]
    fn events_follow_their_pair() {
        let mut recipe = Recipe::full(3);
        let all = recipe.episode();
        assert!(all.edges.len() > 1);
        recipe.edges = vec![1];
        let one = recipe.episode();
        assert_eq!(
            (one.edges[0].a, one.edges[0].b),
            (all.edges[1].a, all.edges[1].b)
        );
        assert!(one.events.len() < all.events.len());
        for mut event in one.events {
            assert!(event.action.edge_mut().is_none_or(|edge| *edge == 0));
        }
    }
}
