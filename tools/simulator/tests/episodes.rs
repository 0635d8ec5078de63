//! Short runs, and all seeds that once revealed a defect.

use taupe_crypto::Provider;
use taupe_simulator::recipe::Recipe;
use taupe_simulator::stats::Stats;
use taupe_simulator::world;

/// Plays episodes until `hours` pair-hours have counted.
fn run(crypto: &'static Provider, first: u64, hours: u64) -> Stats {
    let mut total = Stats::default();
    for seed in first.. {
        let outcome = world::run(&Recipe::full(seed).episode(), crypto, false);
        if let Some(violation) = outcome.violation {
            panic!("seed {seed}: {violation}");
        }
        total += outcome.stats;
        if total.pair_hours >= hours {
            break;
        }
    }
    total
}

#[test]
fn invariants_hold_with_real_cryptography() {
    let total = run(&taupe_crypto::AWS_LC, 20_000, 3);
    assert!(total.hostile > 1000 && total.delivered > 1000 && total.probes_passed > 0);
}

#[cfg(feature = "fake")]
#[test]
fn invariants_hold_with_fake_cryptography() {
    let total = run(&taupe_crypto::FAKE, 30_000, 12);
    assert!(total.hostile > 1000 && total.delivered > 1000 && total.probes_passed > 0);
}

#[test]
fn an_episode_repeats_bit_by_bit() {
    let episode = Recipe::full(20_004).episode();
    let play = || {
        let outcome = world::run(&episode, &taupe_crypto::AWS_LC, true);
        (outcome.stats, outcome.trace)
    };
    let (first, second) = (play(), play());
    assert!(!first.1.is_empty());
    assert_eq!(first, second);
}

#[test]
fn seeds_of_old_failures_pass() {
    for line in include_str!("../seeds.txt").lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let recipe: Recipe = line.split_whitespace().next().unwrap().parse().unwrap();
        #[cfg(feature = "fake")]
        let crypto = &taupe_crypto::FAKE;
        #[cfg(not(feature = "fake"))]
        let crypto = &taupe_crypto::AWS_LC;
        let outcome = world::run(&recipe.episode(), crypto, false);
        assert!(
            outcome.violation.is_none(),
            "{line}: {}",
            outcome.violation.unwrap()
        );
    }
}
