//! Runs many episodes on several threads, until enough hours have passed or one fails.

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use taupe_crypto::Provider;

use crate::plan::Episode;
use crate::stats::Stats;
use crate::violation::Violation;
use crate::world;

/// Result of an episode.
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The counters.
    pub stats: Stats,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
}

/// Runs the episodes of the seeds from `first` on for which `wanted` is true, `jobs` at once, and
/// reports each until the caller breaks.
pub fn run(
    first: u64,
    jobs: usize,
    crypto: &'static Provider,
    wanted: impl Fn(&Episode) -> bool + Sync,
    mut report: impl FnMut(Report) -> ControlFlow<()>,
) {
    let next = AtomicU64::new(first);
    let stop = AtomicBool::new(false);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let sender = sender.clone();
            let (next, stop, wanted) = (&next, &stop, &wanted);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let episode = Episode::generate(seed);
                    if !wanted(&episode) {
                        continue;
                    }
                    let outcome = world::run(&episode, crypto, false);
                    let report = Report {
                        seed,
                        stats: outcome.stats,
                        violation: outcome.violation,
                    };
                    if sender.send(report).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for done in &receiver {
            if report(done).is_break() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
