//! Programs of this workspace for 64-bit ARM.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use taupe_lab::process::run;
use taupe_lab::{Error, Result};

use crate::inside::Program;

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

/// Returns the folder of the programs.
fn folder() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    // TARGET/debug/deps/arm64-…
    let target = own.ancestors().nth(3);
    let target = target.ok_or_else(|| Error::unmet(own.display().to_string()))?;
    Ok(target.join(TRIPLE).join("guest"))
}

/// Returns the path of a program that [`build`] has built.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    Ok(folder()?.join(name))
}

/// Builds `taupe` and these test programs.
pub(crate) fn build(tests: &[Program]) -> Result<()> {
    let folder = folder()?;
    fs::create_dir_all(&folder).map_err(Error::io(folder.display().to_string()))?;
    // All at once: with one set of features, no dependency is built twice.
    let mut arguments = vec!["build", "-p", "taupe", "--bin", "taupe"];
    for Program { package, name } in tests {
        arguments.extend(["-p", package, "--test", name]);
    }
    let here = "this machine";
    let mut cargo = Command::new("scripts/cross");
    cargo
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(["cargo", TRIPLE])
        .args(&arguments)
        .args([
            "--quiet",
            "--locked",
            "--message-format=json-render-diagnostics",
        ]);
    let built = run(here, cargo, None)?.stdout;
    let executables = built.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?.to_owned();
        Some((name, message["executable"].as_str()?.to_owned()))
    });
    for (name, executable) in executables {
        let mut strip = Command::new("aarch64-linux-gnu-strip");
        strip.arg("-o").arg(folder.join(name)).arg(executable);
        run(here, strip, None)?;
    }
    Ok(())
}
