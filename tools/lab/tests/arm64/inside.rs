//! Tests of other suites, run in the guest.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use taupe_lab::guest::{EBPF_CORE, Guest, GuestOptions, Kernel};
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use crate::cross;

/// Time limit of one test.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// A test program of a package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
}

const fn lab(name: &'static str) -> Program {
    let package = "taupe-lab";
    Program { package, name }
}

const INTEROP: Program = lab("interop");
pub(crate) const TRANSPARENT: Program = lab("transparent");
const EXEC: Program = lab("exec");
const HYBRID: Program = lab("hybrid");
const QUICK: Program = lab("quick");
const KERNEL: Program = Program {
    package: "taupe-transparent",
    name: "kernel",
};
const PROGRAMS: [Program; 6] = [INTEROP, TRANSPARENT, EXEC, HYBRID, QUICK, KERNEL];

/// Tests of a test program.
type Tests = (Program, &'static [&'static str]);

/// The tests that always run.
const CORE: &[Tests] = &[
    (INTEROP, &["this-kernel/initiates/ipv4/plain"]),
    (
        TRANSPARENT,
        &["selected_and_unselected", "missing_guarantees_are_reported"],
    ),
];

/// The others.
const REST: &[Tests] = &[
    (
        INTEROP,
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
    (TRANSPARENT, &["killed_then_up_then_down", "foreground"]),
    (EXEC, &["only_the_tunnel_is_visible", "hybrid_peer"]),
    (
        HYBRID,
        &["hybrid_768_over_1280", "ordinary_peers_beside_hybrid_ones"],
    ),
    (
        QUICK,
        &[
            "full_tunnel_dual",
            "hooks_in_order",
            "reload_keeps_unchanged_settings",
        ],
    ),
    (KERNEL, &EBPF_CORE),
];

fn asked_for() -> Option<String> {
    std::env::var("ARM64").ok()
}

/// Checks whether all tests are asked for.
pub(crate) fn is_whole() -> bool {
    asked_for().as_deref() == Some("whole")
}

/// Checks whether other tests than the core tests are asked for, by name or all of them.
pub(crate) fn is_more() -> bool {
    asked_for().is_some()
}

/// Returns the tests to run, with their programs.
fn tests() -> Result<Vec<(Program, String)>> {
    let all = |lists: &[&[Tests]]| {
        let tests = lists.iter().copied().flatten();
        let tests =
            tests.flat_map(|(program, names)| names.iter().map(move |name| (program, name)));
        tests
            .map(|(program, name)| (*program, (*name).to_owned()))
            .collect()
    };
    match asked_for().as_deref() {
        None => Ok(all(&[CORE])),
        Some("whole") => Ok(all(&[CORE, REST])),
        Some(names) => names.split(',').map(test).collect(),
    }
}

/// Parses `PROGRAM/TEST`.
fn test(text: &str) -> Result<(Program, String)> {
    let parsed = text.split_once('/').and_then(|(program, test)| {
        let program = PROGRAMS.into_iter().find(|known| known.name == program)?;
        Some((program, test.to_owned()))
    });
    let programs = PROGRAMS.map(|program| program.name).join(", ");
    let told = format!("ARM64: \"{text}\" is no PROGRAM/TEST, with one of {programs}");
    parsed.ok_or_else(|| Error::unmet(told))
}

/// Returns the test programs that are needed.
pub(crate) fn programs() -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for (program, _) in tests()? {
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    Ok(programs)
}

/// Builds another program that tests of hybrid handshakes start.
pub(crate) fn install_peer() -> Result<Option<PathBuf>> {
    let is_needed = programs()?.contains(&HYBRID);
    let peer = is_needed.then(|| Implementation::WireguardGo.install_for_arm64());
    peer.transpose()
}

/// Checks whether a kernel lacks the feature that a test is about. On ARM before Linux 6.4, no eBPF
/// program can be attached to a function of the kernel. `check_hooks` and
/// `missing_guarantees_are_reported` test that Taupe reports this.
fn is_out_of_reach(kernel: Kernel, program: Program, test: &str) -> bool {
    kernel == Kernel::Arm64 && program == KERNEL && test == "inherited_connections"
}

/// Runs the tests on this kernel.
pub(crate) fn run(kernel: Kernel) -> Result<()> {
    let names = programs()?.into_iter().map(|program| program.name);
    let programs = names.chain(["taupe"]).map(cross::program);
    let options = GuestOptions {
        processors: 2,
        kernel,
        memory: 1024,
        programs: programs
            .chain(install_peer().transpose())
            .collect::<Result<_>>()?,
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(&Host::new("yard")?, "tap0", &[], &options)?;
    guest.run("cat /proc/version >&2")?;
    let mut failed = Vec::new();
    if let Err(error) = check_hooks(&guest, kernel) {
        eprintln!("{error}");
        failed.push("hooks".to_owned());
    }
    for (program, test) in tests()? {
        if is_whole() && is_out_of_reach(kernel, program, &test) {
            eprintln!("{}/{test}: not on this kernel", program.name);
            continue;
        }
        step(&format!("{}: {test}", program.name));
        if let Err(error) = guest.run_test(program.name, &test, LIMIT) {
            eprintln!("{error}");
            failed.push(format!("{}/{test}", program.name));
        }
    }
    // Debian's wg-quick prefers the kernel's WireGuard, and takes Taupe where there is none.
    if is_whole() {
        step("wg-quick without the kernel's WireGuard");
        let tested = guest
            .run("rmmod wireguard")
            .and_then(|_| guest.run_test(QUICK.name, "same_as_wg_quick", LIMIT));
        if let Err(error) = tested {
            eprintln!("{error}");
            failed.push("same_as_wg_quick".to_owned());
        }
    }
    let version = kernel.version()?;
    ensure!(failed.is_empty(), "{failed:?} failed on {version}");
    Ok(())
}

/// On ARM before Linux 6.4, no eBPF program can be attached to a function or a security hook of the
/// kernel, and `doctor` names those that Taupe lacks. On the other kernels all are attached.
pub(crate) fn check_hooks(guest: &Guest, kernel: Kernel) -> Result<()> {
    step("programs at functions and security hooks");
    let told = guest.run_within(LIMIT, "/lab/taupe doctor --json || true")?;
    let report: Value = serde_json::from_str(&told.stdout)
        .map_err(|error| Error::unmet(format!("doctor: {error}: {}", told.stdout)))?;
    let result = |name: &str| {
        let mut checks = report["checks"].as_array().into_iter().flatten();
        checks.find(|check| check["name"] == name)
    };
    let programs = result("transparent-mode").ok_or_else(|| Error::unmet(told.stdout.clone()))?;
    if kernel == Kernel::Arm64 {
        let text = programs["text"].as_str().unwrap_or_default();
        let refused = ["taupe_received", "taupe_sending", "taupe_family"];
        let fix = programs["fix"].as_str().unwrap_or_default();
        let is_told = programs["result"] == "warn"
            && refused.iter().all(|it| text.contains(it))
            && fix.contains("Linux 6.4");
        ensure!(is_told, "{programs}");
    } else {
        ensure!(programs["result"] == "ok", "{programs}");
        let lsm = result("bpf-lsm");
        ensure!(lsm.is_some_and(|lsm| lsm["result"] == "ok"), "{lsm:?}");
    }
    Ok(())
}
