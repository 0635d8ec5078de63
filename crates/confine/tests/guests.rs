//! The escape tests on older kernels, in virtual machines. Debian 12's kernel 6.1 has an older Landlock,
//! Debian 11's kernel 5.10 has none.

#![cfg(target_os = "linux")]

#[path = "escapes.rs"]
mod escapes;

use std::env;
use std::process::ExitCode;
use std::time::Duration;
use taupe_lab::guest::{self, Guest, GuestOptions, Kernel};
use taupe_lab::host::Host;
use taupe_lab::sandbox::{Suite, SystemTest, figure, scratch};
use taupe_lab::{Error, Result, ensure};

/// Variable by which this program runs the escape tests themselves.
const INSIDE: &str = "TAUPE_ESCAPES";

/// With `ESCAPES=whole`, as in the long tests, both kernels run the tests of all processes. Otherwise
/// Debian 12's runs those of the packet process.
const EXTENT: &str = "ESCAPES";

/// Each attempt is a process, which an emulated processor is slow to start.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let is_inside = |variable: &&str| env::var_os(variable).is_some();
    if [INSIDE, escapes::ATTEMPT].iter().any(is_inside) {
        return escapes::main();
    }
    let is_whole = env::var(EXTENT).is_ok_and(|extent| extent == "whole");
    let (kernels, filter): (&[_], _) = match is_whole {
        true => (
            &[
                ("debian_12", Kernel::Debian12),
                ("debian_11", Kernel::Debian11),
            ],
            "",
        ),
        false => (&[("debian_12", Kernel::Debian12)], "packets"),
    };
    let tests = kernels.iter().map(|(name, kernel)| {
        let test = move || escapes_on(*kernel, filter);
        SystemTest::new(*name, test).limit(guest::BOOT + LIMIT)
    });
    let suite = Suite::new(tests.collect());
    let suite = kernels.iter().fold(suite, |suite, (_, kernel)| {
        suite.prepare(|| kernel.install().map(drop))
    });
    suite.main()
}

/// Runs the tests whose names contain `filter`.
fn escapes_on(kernel: Kernel, filter: &str) -> Result<()> {
    let host = Host::new("yard")?;
    // Debug information makes up most of the program.
    let program = scratch("escapes");
    let own = env::current_exe().map_err(Error::io("own executable"))?;
    let (from, to) = (own.display().to_string(), program.display().to_string());
    host.run(&["strip", "-o", &to, &from])?;
    let options = GuestOptions {
        kernel,
        programs: vec![program.clone()],
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(&host, "tap0", &[], &options)?;
    let output = guest.run_within(
        LIMIT,
        &format!(
            "echo 127.0.0.1 localhost > /etc/hosts
             {INSIDE}=1 {} --test-threads 1 {filter} 2>&1",
            guest::program(&program)
        ),
    )?;
    let text = &output.stdout;
    for missing in text
        .lines()
        .filter(|line| line.starts_with("this kernel: "))
    {
        figure("missing", missing);
    }
    let result = text.lines().find(|line| line.starts_with("test result: "));
    figure("escapes", result);
    ensure!(result.is_some_and(|it| it.contains(" ok. ")), "{text}");
    Ok(())
}
