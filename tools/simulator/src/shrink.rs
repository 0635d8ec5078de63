//! Shrinks a failing episode while the same invariant still fails.

use std::time::{Duration, Instant};

use crate::plan::{Class, SECOND};
use crate::recipe::Recipe;
use crate::violation::Violation;

/// Shrinks `recipe`, which ends in `violation`, within `budget` of wall time; `run` plays a recipe.
/// Returns the smallest recipe found and its violation.
#[must_use]
pub fn shrink(
    recipe: &Recipe,
    violation: &Violation,
    budget: Duration,
    run: impl Fn(&Recipe) -> Option<Violation>,
) -> (Recipe, Violation) {
    let mut shrinker = Shrinker {
        best: recipe.clone(),
        violation: violation.clone(),
        run,
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

struct Shrinker<F> {
    best: Recipe,
    violation: Violation,
    run: F,
    end: Instant,
}

impl<F: Fn(&Recipe) -> Option<Violation>> Shrinker<F> {
    /// Ends the episode soon after the violation.
    fn shorten(&mut self) {
        let duration = self.violation.at.div_ceil(SECOND) * SECOND + SECOND;
        if duration < self.best.duration {
            let full = crate::plan::Episode::generate(self.best.seed);
            let mut recipe = self.best.clone();
            recipe.duration = duration;
            recipe
                .events
                .retain(|event| full.events.get(*event).is_some_and(|e| e.at < duration));
            self.keep_if_it_fails(recipe);
        }
    }

    fn drop_edges(&mut self) {
        for edge in self.best.edges.clone() {
            let mut recipe = self.best.clone();
            recipe.edges.retain(|remaining| *remaining != edge);
            self.keep_if_it_fails(recipe);
        }
    }

    fn drop_classes(&mut self) {
        let full = crate::plan::Episode::generate(self.best.seed);
        for class in Class::ALL {
            let mut recipe = self.best.clone();
            recipe.events.retain(|event| {
                full.events
                    .get(*event)
                    .is_some_and(|planned| planned.action.class() != class)
            });
            if recipe.events.len() < self.best.events.len() {
                self.keep_if_it_fails(recipe);
            }
        }
    }

    /// Leaves out halves, quarters and so on, and finally single events.
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
        match (self.run)(&recipe) {
            Some(violation) if violation.invariant == self.violation.invariant => {
                self.best = recipe;
                self.violation = violation;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::violation::Invariant;

    #[test]
    fn shrinking_leaves_only_necessary_events() {
        let full = Recipe::full(3);
        let plan = full.episode();
        let (first, second) = (20, 33);
        let at = plan.events[second].at;
        let run = |recipe: &Recipe| {
            let fails = recipe.events.contains(&first)
                && recipe.events.contains(&second)
                && recipe.edges.contains(&1)
                && recipe.duration > at;
            let violation = Violation::new(Invariant::Liveness, String::new());
            fails.then_some(Violation { at, ..violation })
        };
        let violation = run(&full).unwrap();
        let (small, _) = shrink(&full, &violation, Duration::from_secs(20), run);
        assert_eq!(small.events, [first, second]);
        assert_eq!(small.edges, [1]);
        assert!(small.duration <= at + 2 * SECOND);
    }

    #[test]
    fn shrinking_ignores_other_invariants() {
        let full = Recipe::full(3);
        let violation = Violation::new(Invariant::Liveness, String::new());
        let (small, _) = shrink(&full, &violation, Duration::from_secs(20), |_| {
            Some(Violation::new(Invariant::Idle, String::new()))
        });
        assert_eq!(small, full);
    }
}
