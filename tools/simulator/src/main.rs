#![forbid(unsafe_code)]
//! The simulator's command: see `--help`.

use core::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use taupe_crypto::Provider;
use taupe_simulator::plan::Episode;
use taupe_simulator::recipe::Recipe;
use taupe_simulator::shrink::shrink;
use taupe_simulator::stats::Stats;
use taupe_simulator::violation::{Invariant, Violation};
use taupe_simulator::{campaign, world};

/// Time within which a violation must be found with `--find`.
const FIND_BUDGET: Duration = Duration::from_secs(60);
const SHRINK_BUDGET: Duration = Duration::from_secs(30);
const PROGRESS: Duration = Duration::from_secs(5);
/// Number of trace lines shown after a failure; --replay shows all.
const TRACE_TAIL: usize = 60;

/// Simulates devices that speak the protocol, with their clocks, networks and attackers, and checks
/// invariants.
///
/// Exits with 0 if they hold, with 1 if not, with 2 if it cannot begin.
#[derive(Parser)]
#[command(name = "taupe-simulator")]
struct Options {
    /// Pair-hours to simulate. An hour counts if the pair rekeyed in it and passed data.
    #[arg(long, default_value_t = 100)]
    hours: u64,
    /// Only episodes with hybrid handshakes. An hour counts if the pair rekeyed by one.
    #[arg(long)]
    hybrid: bool,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Expects a violation of one of these invariants within 60 s, and exits with 0 only if one is
    /// found. For protocols with a defect: scripts/defects.
    #[arg(long, value_name = "INVARIANT", value_delimiter = ',')]
    find: Vec<String>,
    /// Episodes at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// The cryptography; default: `fake` if it was built, else `aws-lc`.
    #[arg(long)]
    backend: Option<Backend>,
    /// Plays one episode and prints its trace: a seed, or the recipe that a failure printed.
    #[arg(long, value_name = "RECIPE")]
    replay: Option<Recipe>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    Fake,
    AwsLc,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let crypto = match provider(options.backend) {
        Ok(crypto) => crypto,
        Err(why) => return refuse(why),
    };
    if let Some(recipe) = &options.replay {
        replay(recipe, crypto)
    } else if options.find.is_empty() {
        simulate(&options, crypto)
    } else {
        match options
            .find
            .iter()
            .map(|name| Invariant::of(name))
            .collect()
        {
            Ok(expected) => find(expected, &options, crypto),
            Err(why) => refuse(&why),
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("taupe-simulator: {why}");
    ExitCode::from(2)
}

fn provider(backend: Option<Backend>) -> Result<&'static Provider, &'static str> {
    match backend {
        Some(Backend::AwsLc) => Ok(&taupe_crypto::AWS_LC),
        #[cfg(feature = "fake")]
        Some(Backend::Fake) | None => Ok(&taupe_crypto::FAKE),
        #[cfg(not(feature = "fake"))]
        None => Ok(&taupe_crypto::AWS_LC),
        #[cfg(not(feature = "fake"))]
        Some(Backend::Fake) => Err("built without the fake backend: build with --features fake"),
    }
}

/// Runs until enough hours have passed or an invariant fails.
fn simulate(options: &Options, crypto: &'static Provider) -> ExitCode {
    let start = Instant::now();
    let mut shown = start;
    let mut total = Stats::default();
    let mut failed: Option<(u64, Violation)> = None;
    let wanted =
        |episode: &Episode| !options.hybrid || episode.edges.iter().any(|it| it.hybrid.is_some());
    campaign::run(options.seed, options.jobs, crypto, wanted, |report| {
        total += report.stats;
        total.episodes += 1;
        if let Some(violation) = report.violation {
            failed = Some((report.seed, violation));
            return ControlFlow::Break(());
        }
        let counted = if options.hybrid {
            total.hybrid_hours
        } else {
            total.pair_hours
        };
        if shown.elapsed() >= PROGRESS {
            shown = Instant::now();
            println!(
                "{counted} of {} pair-hours, {} episodes, {:.0} s",
                options.hours,
                total.episodes,
                start.elapsed().as_secs_f64()
            );
        }
        if counted < options.hours {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    println!("{total}");
    println!(
        "backend: {}; first seed: {}; jobs: {}; wall time: {:.1} s",
        crypto.name,
        options.seed,
        options.jobs,
        start.elapsed().as_secs_f64()
    );
    match failed {
        Some((seed, violation)) => {
            explain(seed, &violation, crypto);
            ExitCode::FAILURE
        }
        None => {
            println!("all invariants hold");
            ExitCode::SUCCESS
        }
    }
}

/// Prints a failing seed, and the smallest episode with the same violation.
fn explain(seed: u64, violation: &Violation, crypto: &'static Provider) {
    println!("\nFAILED: seed {seed}: {violation}");
    let full = Recipe::full(seed);
    show_tail(&full, crypto);
    println!("\nshrinking …");
    let (small, violation) = shrink(&full, violation, SHRINK_BUDGET, |recipe| {
        world::run(&recipe.episode(), crypto, false).violation
    });
    println!("{violation}");
    let episode = small.episode();
    println!(
        "{} pairs, {} events:",
        episode.edges.len(),
        episode.events.len()
    );
    for edge in &episode.edges {
        println!("  {edge:?}");
    }
    for event in &episode.events {
        println!("  {event}");
    }
    show_tail(&small, crypto);
    println!(
        "\nreplay with: taupe-simulator --backend {} --replay {small}",
        crypto.name
    );
}

fn show_tail(recipe: &Recipe, crypto: &'static Provider) {
    let trace = world::run(&recipe.episode(), crypto, true).trace;
    println!("the last of {} lines of trace:", trace.len());
    for line in &trace[trace.len().saturating_sub(TRACE_TAIL)..] {
        println!("{line}");
    }
}

fn replay(recipe: &Recipe, crypto: &'static Provider) -> ExitCode {
    let outcome = world::run(&recipe.episode(), crypto, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("{}", outcome.stats);
    match outcome.violation {
        Some(violation) => {
            println!("FAILED: {violation}");
            ExitCode::FAILURE
        }
        None => {
            println!("all invariants hold");
            ExitCode::SUCCESS
        }
    }
}

/// Runs until an invariant is violated, which must be one of those expected.
fn find(expected: Vec<Invariant>, options: &Options, crypto: &'static Provider) -> ExitCode {
    let start = Instant::now();
    let mut total = Stats::default();
    let mut found = None;
    campaign::run(
        options.seed,
        options.jobs,
        crypto,
        |_| true,
        |report| {
            total += report.stats;
            found = report.violation.map(|violation| (report.seed, violation));
            if found.is_some() || start.elapsed() >= FIND_BUDGET {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        },
    );
    let seconds = start.elapsed().as_secs_f64();
    let hours = total.pair_hours;
    let Some((seed, violation)) = found else {
        println!("no violation in {hours} pair-hours and {seconds:.1} s");
        return ExitCode::FAILURE;
    };
    println!("seed {seed}: {violation}");
    if !expected.contains(&violation.invariant) {
        println!("expected one of {expected:?}");
        return ExitCode::FAILURE;
    }
    println!(
        "found after {hours} pair-hours in {seconds:.1} s: {:?}",
        violation.invariant
    );
    ExitCode::SUCCESS
}
