//! Programs of this workspace for 64-bit ARM.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use taupe_lab::process::run;
use taupe_lab::{Error, Result};

use crate::inside::Program;

/// The target of most programs.
pub(crate) const GNU: &str = "aarch64-unknown-linux-gnu";
/// The target of the static program.
pub(crate) const MUSL: &str = "aarch64-unknown-linux-musl";
/// The target of the program of 32 bits.
const NARROW: &str = "armv7-unknown-linux-gnueabihf";

const HERE: &str = "this machine";

/// Returns cargo's folder of what it builds.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    // TARGET/debug/deps/arm64-…
    let target = own.ancestors().nth(3);
    let target = target.ok_or_else(|| Error::unmet(own.display().to_string()))?;
    Ok(target.to_owned())
}

fn folder(triple: &str) -> Result<PathBuf> {
    Ok(target()?.join(triple).join("guest"))
}

/// Returns the path of a program that [`build`] has built.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    Ok(folder(GNU)?.join(name))
}

/// Returns the path of `taupe` for ARMv7, which [`build_others`] has built.
pub(crate) fn program_of_32_bits() -> Result<PathBuf> {
    Ok(folder(NARROW)?.join("taupe"))
}

/// Returns the path of the optimised `taupe` for [`GNU`] or [`MUSL`], which [`build_others`] has
/// built.
pub(crate) fn released(triple: &str) -> Result<PathBuf> {
    Ok(target()?.join("cross").join(triple).join("taupe"))
}

fn scripts_cross() -> Command {
    let mut command = Command::new("scripts/cross");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    command
}

/// Builds the programs of `make arm64` and `make musl`, and a static one for ARMv7, whose libraries
/// the guest lacks.
pub(crate) fn build_others() -> Result<()> {
    let mut optimised = scripts_cross();
    optimised.args(["build", GNU, MUSL]);
    run(HERE, optimised, None)?;
    let flags = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        NARROW.to_uppercase().replace('-', "_")
    );
    let mut narrow = scripts_cross();
    narrow.env(flags, "-C target-feature=+crt-static");
    build_with(narrow, NARROW, &["-p", "taupe", "--bin", "taupe"])
}

/// Builds `taupe` and these test programs.
pub(crate) fn build(tests: &[Program]) -> Result<()> {
    // All at once: with one set of features, no dependency is built twice.
    let mut targets = vec!["-p", "taupe", "--bin", "taupe"];
    for Program { package, name } in tests {
        targets.extend(["-p", package, "--test", name]);
    }
    build_with(scripts_cross(), GNU, &targets)
}

/// Builds cargo's `targets`, and puts the programs without debug information into the triple's
/// [`folder`].
fn build_with(mut cargo: Command, triple: &str, targets: &[&str]) -> Result<()> {
    let folder = folder(triple)?;
    // If the build fails, the tests must not find programs of an earlier one.
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io(folder.display().to_string())(error));
        }
        _ => {}
    }
    fs::create_dir_all(&folder).map_err(Error::io(folder.display().to_string()))?;
    cargo.args(["cargo", triple, "build"]).args(targets).args([
        "--quiet",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]);
    let built = run(HERE, cargo, None)?.stdout;
    let executables = built.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?.to_owned();
        Some((name, message["executable"].as_str()?.to_owned()))
    });
    for (name, executable) in executables {
        let mut strip = Command::new(match triple {
            NARROW => "arm-linux-gnueabihf-strip",
            _ => "aarch64-linux-gnu-strip",
        });
        strip.arg("-o").arg(folder.join(name)).arg(executable);
        run(HERE, strip, None)?;
    }
    Ok(())
}
