//! Makes a failing episode smaller, for as long as the same invariant fails.

use std::time::{Duration, Instant};

use taupe_crypto::Provider;

use crate::plan::{Class, SECOND};
use crate::recipe::Recipe;
use crate::violation::Violation;
use crate::world;

/// Shrinks `recipe`, which ends in `violation`, within `budget` of wall time.
/// Returns the smallest that was found and what it ends in.
#[must_use]
pub fn shrink(
    recipe: &Recipe,
    violation: &Violation,
    crypto: &'static Provider,
    budget: Duration,
) -> (Recipe, Violation) {
    let mut shrinker = Shrinker {
        best: recipe.clone(),
        violation: violation.clone(),
        crypto,
        end: Instant::now() + budget,
    };
    shrinker.shorten();
    shrinker.drop_edges();
    shrinker.drop_classes();
    shrinker.drop_events();
    shrinker.shorten();
    shrinker.drop_edges();
    (shrinker.best, shrinker.violation)
}

struct Shrinker {
    best: Recipe,
    violation: Violation,
    crypto: &'static Provider,
    end: Instant,
}

impl Shrinker {
    /// Nothing after the violation matters.
    fn shorten(&mut self) {
        let duration = self.violation.at.div_ceil(SECOND) * SECOND + SECOND;
        if duration < self.best.duration {
            let whole = crate::plan::Episode::generate(self.best.seed);
            let mut recipe = self.best.clone();
            recipe.duration = duration;
            recipe
                .events
                .retain(|event| whole.events.get(*event).is_some_and(|e| e.at < duration));
            self.keep_if_it_fails(recipe);
        }
    }

    fn drop_edges(&mut self) {
        for edge in self.best.edges.clone() {
            let mut recipe = self.best.clone();
            recipe.edges.retain(|kept| *kept != edge);
            self.keep_if_it_fails(recipe);
        }
    }

    fn drop_classes(&mut self) {
        let whole = crate::plan::Episode::generate(self.best.seed);
        for class in Class::ALL {
            let mut recipe = self.best.clone();
            recipe.events.retain(|event| {
                whole
                    .events
                    .get(*event)
                    .is_some_and(|planned| planned.action.class() != class)
            });
            if recipe.events.len() < self.best.events.len() {
                self.keep_if_it_fails(recipe);
            }
        }
    }

    /// Leaves out halves, quarters and so on, and at last single events.
    fn drop_events(&mut self) {
        let mut size = self.best.events.len() / 2;
        while size > 0 {
            let mut start = 0;
            while start < self.best.events.len() {
                let mut recipe = self.best.clone();
                let end = (start + size).min(recipe.events.len());
                recipe.events.drain(start..end);
                if !self.keep_if_it_fails(recipe) {
                    start += size;
                }
            }
            size /= 2;
        }
    }

    fn keep_if_it_fails(&mut self, recipe: Recipe) -> bool {
        if Instant::now() >= self.end {
            return false;
        }
        let outcome = world::run(&recipe.episode(), self.crypto, false);
        match outcome.violation {
            Some(violation) if violation.invariant == self.violation.invariant => {
                self.best = recipe;
                self.violation = violation;
                true
            }
            _ => false,
        }
    }
}
