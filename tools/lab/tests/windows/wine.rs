//! Wine, with a prefix for each test.

use rustix::mount::{MountFlags, mount};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

const TARGET: &str = "x86_64-pc-windows-gnu";

/// Builds the programs, and creates the prefix from which all tests start.
pub(crate) fn prepare() -> Result<()> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo.args(["build", "--quiet", "--target", TARGET]);
    cargo.args(["-p", "taupe", "-p", "taupe-ffi", "--bin", "taupe", "--lib"]);
    succeed(&mut cargo)?;
    shared().map(drop)
}

/// Returns the prefix from which all tests start; creates it if necessary.
fn shared() -> Result<PathBuf> {
    let path = succeed(Command::new(root().join("scripts/wine")).arg("--prefix"))?;
    Ok(PathBuf::from(path.trim_end()))
}

/// Returns cargo's folder for unoptimised Windows programs.
pub(crate) fn built() -> PathBuf {
    target().join(TARGET).join("debug")
}

/// Returns the words before a program's path that run it under Wine. The shared prefix is the lower
/// layer of a file system with this test's changes on top, so Wine treats it as another prefix, and
/// no program outside this sandbox serves it.
pub(crate) fn launcher() -> Result<[String; 3]> {
    let (own, changed, work) = (scratch("wine"), scratch("changed"), scratch("work"));
    for folder in [&own, &changed, &work] {
        fs::create_dir_all(folder).map_err(Error::io(folder.display().to_string()))?;
    }
    let shared = shared()?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={}\0",
        shared.display(),
        changed.display(),
        work.display()
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).ok();
    mount(c"overlay", &own, c"overlay", MountFlags::empty(), options)
        .map_err(Error::io("the prefix of this test"))?;
    let prefix = format!("TAUPE_WINEPREFIX={}", own.display());
    let script = root().join("scripts/wine").display().to_string();
    Ok(["env".to_owned(), prefix, script])
}

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn succeed(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(Error::io(name.clone()))?;
    let result = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "{name}: {}: {result}",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the root of the source tree.
pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap_or(root)
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
