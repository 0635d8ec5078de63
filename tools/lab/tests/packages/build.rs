//! The packages, and a minimal Debian.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use taupe_lab::peers::Implementation;
use taupe_lab::{Error, Result, cache, ensure};

/// The release of Debian.
const RELEASE: &str = "bookworm";

/// Version of the package whose program counts as another version's (`scripts/other-version`).
const OLD: &str = "0.0.9";

/// Returns the folder of a minimal Debian, which tests only read.
pub(crate) fn debian() -> PathBuf {
    cache::folder("debian").join(RELEASE)
}

/// Returns the folder of old.deb and new.deb.
pub(crate) fn packages() -> Result<PathBuf> {
    Ok(target()?.join("packages-of-tests"))
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

/// Makes both.
pub(crate) fn prepare() -> Result<()> {
    let folder = cache::folder("debian");
    let _lock = cache::lock(&folder, RELEASE)?;
    if !debian().is_dir() {
        let draft = folder.join(format!("{RELEASE}.draft"));
        if draft.exists() {
            fs::remove_dir_all(&draft).map_err(Error::io("an unfinished Debian"))?;
        }
        let mut command = Command::new("debootstrap");
        command.args(["--variant=minbase", RELEASE]).arg(&draft);
        succeed(&mut command)?;
        for heavy in ["var/cache/apt", "var/lib/apt/lists", "usr/share/locale"] {
            let _ = fs::remove_dir_all(draft.join(heavy));
        }
        for folder in [
            "var/cache/apt/archives/partial",
            "var/lib/apt/lists/partial",
        ] {
            let folder = draft.join(folder);
            fs::create_dir_all(&folder).map_err(Error::io("apt's folders"))?;
        }
        fs::rename(&draft, debian()).map_err(Error::io("a Debian"))?;
    }
    let taupe = Implementation::Taupe.install()?;
    let other = target()?.join("debug/taupe-other-version");
    ensure!(
        other.is_file(),
        "no {}: run scripts/other-version",
        other.display()
    );
    package(&taupe, None, "new.deb")?;
    package(&other, Some(OLD), "old.deb")
}

/// Packages a program, unless it is packaged already.
fn package(program: &Path, version: Option<&str>, name: &str) -> Result<()> {
    let made = packages()?.join(name);
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    let sources = workspace().join("packaging/debian");
    let sources = fs::read_dir(&sources).map_err(Error::io("packaging/debian"))?;
    let newest = sources
        .flatten()
        .filter_map(|entry| time(&entry.path()))
        .max();
    if time(&made) > time(program).max(newest) {
        return Ok(());
    }
    // A built tree, as packaging/deb takes it. The library is not tested here.
    let built = packages()?.join(format!("{name}.built"));
    let _ = fs::remove_dir_all(&built);
    let release = built.join("release");
    let pages = target()?.join("pages-of-tests");
    fs::create_dir_all(&release).map_err(Error::io("a folder"))?;
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace());
    command.args(["run", "--quiet", "-p", "taupe", "--example", "pages", "--"]);
    succeed(command.arg(&pages))?;
    symlink(program, release.join("taupe")).map_err(Error::io("a link"))?;
    symlink(&pages, release.join("pages")).map_err(Error::io("a link"))?;
    let mut command = Command::new(workspace().join("packaging/deb"));
    command.arg(&built).env("CARGO_TARGET_DIR", &built);
    command.env("PROGRAM_ONLY", "1");
    if let Some(version) = version {
        command.env("PACKAGE_VERSION", version);
    }
    succeed(&mut command)?;
    let entries = fs::read_dir(&built).map_err(Error::io("the packages"))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|it| it == "deb");
    let package = entries.flatten().map(|entry| entry.path()).find(is_package);
    let package = package.ok_or_else(|| Error::unmet("no package was made"))?;
    fs::rename(package, made).map_err(Error::io(name))?;
    fs::remove_dir_all(&built).map_err(Error::io("a folder"))
}

fn succeed(command: &mut Command) -> Result<()> {
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
