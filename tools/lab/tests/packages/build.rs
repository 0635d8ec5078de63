//! The packages and the image.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use taupe_lab::peers::Implementation;
use taupe_lab::{Error, Result, ensure};

use crate::systems::System;

/// Version of the package whose program counts as another version's (`scripts/other-version`).
const OLD: &str = "0.0.9";

/// Time of its files, in seconds since 1970. systemd sees by the time that a unit has changed.
const OLD_TIME: &str = "1700000000";

/// Returns the folder of old.deb and new.deb.
pub(crate) fn packages() -> Result<PathBuf> {
    Ok(target()?.join("packages-of-tests"))
}

/// Name of the container image.
pub(crate) const IMAGE: &str = "taupe:0-test";

/// Returns the archive of the image.
pub(crate) fn image() -> Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    };
    Ok(packages()?.join(format!("taupe-0-test-image-{architecture}.tar.gz")))
}

/// Makes the image of the static programs, which `make musl` has built.
pub(crate) fn prepare_image() -> Result<()> {
    let mut command = Command::new(workspace().join("packaging/image"));
    command.arg(packages()?).env("CARGO_TARGET_DIR", target()?);
    succeed(command.env("PACKAGE_VERSION", "0-test"))
}

/// Returns cargo's folder.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let folder = own.ancestors().nth(3).map(Path::to_owned);
    folder.ok_or_else(|| Error::unmet(format!("no target folder above {}", own.display())))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Makes the systems and the packages.
pub(crate) fn prepare() -> Result<()> {
    for system in System::all() {
        system.prepare()?;
    }
    let taupe = Implementation::Taupe.install()?;
    let other = target()?.join("debug/taupe-other-version");
    ensure!(
        other.is_file(),
        "no {}: run scripts/other-version",
        other.display()
    );
    let page = taupe.with_file_name("taupe-web");
    ensure!(
        page.is_file(),
        "no {}: run cargo build --release -p taupe-web",
        page.display()
    );
    package(&taupe, &page, None, "new.deb")?;
    package(&other, &page, Some(OLD), "old.deb")
}

fn time(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

/// Returns the latest time of a change to a file in a folder.
fn newest_of(folder: &Path) -> Result<Option<SystemTime>> {
    let entries = fs::read_dir(folder).map_err(Error::io(folder.display().to_string()))?;
    let mut newest = None;
    for path in entries.flatten().map(|entry| entry.path()) {
        newest = newest.max(match path.is_dir() {
            true => newest_of(&path)?,
            false => time(&path),
        });
    }
    Ok(newest)
}

/// Packages a program and the server of its page, unless they are packaged already.
fn package(program: &Path, page: &Path, version: Option<&str>, name: &str) -> Result<()> {
    let made = packages()?.join(name);
    let programs = time(program).max(time(page));
    let newest = newest_of(&workspace().join("packaging"))?.max(programs);
    if time(&made) > newest {
        return Ok(());
    }
    // A built tree, as packaging/deb takes it. The library and the pages are not tested here.
    let built = packages()?.join(format!("{name}.built"));
    let _ = fs::remove_dir_all(&built);
    let release = built.join("release");
    let pages = release.join("pages");
    fs::create_dir_all(&pages).map_err(Error::io("a folder"))?;
    for page in ["taupe.1", "taupe.bash", "_taupe", "taupe.fish"] {
        fs::write(pages.join(page), "of a test\n").map_err(Error::io(page))?;
    }
    symlink(program, release.join("taupe")).map_err(Error::io("a link"))?;
    symlink(page, release.join("taupe-web")).map_err(Error::io("a link"))?;
    let mut command = Command::new(workspace().join("packaging/deb"));
    command.arg(&built).env("CARGO_TARGET_DIR", &built);
    command.env("PROGRAM_ONLY", "1");
    if let Some(version) = version {
        command.env("PACKAGE_VERSION", version);
        command.env("SOURCE_DATE_EPOCH", OLD_TIME);
    }
    succeed(&mut command)?;
    let entries = fs::read_dir(&built).map_err(Error::io("the packages"))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|it| it == "deb");
    let package = entries.flatten().map(|entry| entry.path()).find(is_package);
    let package = package.ok_or_else(|| Error::unmet("no package was made"))?;
    fs::rename(package, made).map_err(Error::io(name))?;
    fs::remove_dir_all(&built).map_err(Error::io("a folder"))
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .map_err(Error::io(format!("{command:?}")))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
