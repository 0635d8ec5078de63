//! The same tests on older kernels, in virtual machines.

use crate::VIOLATION;
use std::time::Duration;
use taupe_lab::guest::{self, Guest, GuestOptions, Kernel};
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{SystemTest, scratch, step};
use taupe_lab::{Error, Result};

/// An emulated processor is slow, above all while other tests run.
const LIMIT: Duration = Duration::from_secs(300);

/// The kernels, and the tests that each runs.
const KERNELS: [(&str, Kernel, &[&str]); 2] = [
    (
        "debian_12",
        Kernel::Debian12,
        &["device", VIOLATION, "adapter_mode", "transparent_mode"],
    ),
    ("debian_11", Kernel::Debian11, &["device", VIOLATION]),
];

pub(crate) fn tests() -> impl Iterator<Item = SystemTest> {
    KERNELS.into_iter().map(|(name, kernel, tests)| {
        let limit = guest::BOOT + 4 * LIMIT;
        SystemTest::new(name, move || run(kernel, tests)).limit(limit)
    })
}

/// Installs the kernels.
pub(crate) fn prepare() -> Result<()> {
    KERNELS
        .iter()
        .try_for_each(|(_, kernel, _)| kernel.install().map(drop))
}

fn run(kernel: Kernel, tests: &[&str]) -> Result<()> {
    let host = Host::new("yard")?;
    // Debug information makes up most of the programs.
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let mut programs = Vec::new();
    for (name, path) in [
        ("confinement", own),
        ("taupe", Implementation::Taupe.program()?),
    ] {
        let target = scratch(name);
        let [from, to] = [&path, &target].map(|it| it.display().to_string());
        host.run(&["strip", "-o", &to, &from])?;
        programs.push(target);
    }
    programs.extend(["/usr/bin/tcpdump", "/bin/bash"].map(Into::into));
    let options = GuestOptions {
        processors: 2,
        memory: 768,
        kernel,
        programs,
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(&host, "tap0", &[], &options)?;
    guest.run("ln -s /lab/bash /bin/bash; cat /proc/version >&2")?;
    for test in tests {
        step(test);
        guest.run_test("confinement", test, LIMIT)?;
    }
    Ok(())
}
