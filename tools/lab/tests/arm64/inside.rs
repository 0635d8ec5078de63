//! Tests of other suites, run in the guest.

use std::time::Duration;

use taupe_lab::guest::{EBPF_CORE, Guest, GuestOptions, Kernel};
use taupe_lab::host::Host;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::cross;

/// Time limit of one test.
const LIMIT: Duration = Duration::from_secs(900);

/// Tests of a test program.
type Tests = (&'static str, &'static [&'static str]);

/// The tests that always run.
const CORE: &[Tests] = &[
    ("interop", &["this-kernel/initiates/ipv4/plain"]),
    (
        "transparent",
        &["selected_and_unselected", "missing_guarantees_are_reported"],
    ),
];

/// The others.
const REST: &[Tests] = &[
    (
        "interop",
        &[
            "this-kernel/initiates/ipv6/plain",
            "this-kernel/initiates/ipv4/psk",
            "this-kernel/initiates/ipv6/psk",
            "this-kernel/initiates/ipv4/rekey",
            "this-kernel/responds/ipv4/plain",
            "this-kernel/responds/ipv6/plain",
            "this-kernel/responds/ipv4/psk",
            "this-kernel/responds/ipv6/psk",
            "this-kernel/responds/ipv6/rekey",
        ],
    ),
    ("transparent", &["killed_then_up_then_down", "foreground"]),
    ("exec", &["only_the_tunnel_is_visible", "hybrid_peer"]),
    (
        "hybrid",
        &["hybrid_768_over_1280", "ordinary_peers_beside_hybrid_ones"],
    ),
    (
        "quick",
        &[
            "same_as_wg_quick",
            "full_tunnel_dual",
            "hooks_in_order",
            "reload_keeps_unchanged_settings",
        ],
    ),
    ("kernel", &EBPF_CORE),
];

fn asked_for() -> Option<String> {
    std::env::var("ARM64").ok()
}

/// Checks whether more than the core tests is asked for.
pub(crate) fn is_whole() -> bool {
    asked_for().is_some()
}

/// Returns the packages whose test programs are needed, with these.
pub(crate) fn programs() -> &'static [(&'static str, &'static [&'static str])] {
    match is_whole() {
        false => &[("taupe-lab", &["interop", "transparent"])],
        true => &[
            (
                "taupe-lab",
                &["interop", "transparent", "exec", "hybrid", "quick"],
            ),
            ("taupe-transparent", &["kernel"]),
        ],
    }
}

/// Runs the tests on this kernel.
pub(crate) fn run(kernel: Kernel) -> Result<()> {
    let names = programs().iter().flat_map(|(_, names)| names.iter());
    let programs = names.chain([&"taupe"]).map(|name| cross::program(name));
    let options = GuestOptions {
        processors: 2,
        kernel,
        memory: 1024,
        programs: programs.collect::<Result<_>>()?,
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(&Host::new("yard")?, "tap0", &[], &options)?;
    guest.run("cat /proc/version >&2")?;
    let named = |tests: &[Tests]| {
        let pairs = tests.iter();
        let pairs =
            pairs.flat_map(|(program, tests)| tests.iter().map(move |test| (*program, *test)));
        pairs
            .map(|(program, test)| (program.to_owned(), test.to_owned()))
            .collect::<Vec<_>>()
    };
    let tests = match asked_for().as_deref() {
        None => named(CORE),
        Some("whole") => [named(CORE), named(REST)].concat(),
        Some(names) => names
            .split(',')
            .filter_map(|name| name.split_once('/'))
            .map(|(program, test)| (program.to_owned(), test.to_owned()))
            .collect(),
    };
    ensure!(!tests.is_empty(), "ARM64 names no PROGRAM/TEST");
    let mut failed = Vec::new();
    for (program, test) in tests {
        step(&format!("{program}: {test}"));
        if let Err(error) = guest.run_test(&program, &test, LIMIT) {
            eprintln!("{error}");
            failed.push(format!("{program}/{test}"));
        }
    }
    let version = kernel.version()?;
    ensure!(failed.is_empty(), "{failed:?} failed on {version}");
    Ok(())
}
