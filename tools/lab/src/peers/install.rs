//! Builds the programs of other projects, once, outside the source tree.

use super::{Description, Source};
use crate::cache;
use crate::error::{Error, Result};
use crate::process::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = "this machine";

/// Folder in the cache.
const FOLDER: &str = "peers";

/// Returns the path of the program, also if it is not installed yet.
fn path(of: &Description) -> PathBuf {
    match of.source {
        Source::Workspace => {
            let named = std::env::var_os("TAUPE_BIN").map(PathBuf::from);
            let built = || std::env::current_exe().ok().and_then(|exe| beside(&exe));
            let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/taupe");
            named.or_else(built).unwrap_or_else(usual)
        }
        Source::GoModule(..) | Source::Crate(..) => {
            // In a guest, it is in the test program's folder.
            let beside = std::env::current_exe().map(|exe| exe.with_file_name(file_name(of)));
            let beside = beside.ok().filter(|beside| beside.is_file());
            beside.unwrap_or_else(|| place(of).join("bin").join(file_name(of)))
        }
    }
}

/// Returns the name of the program's file.
fn file_name(of: &Description) -> &'static str {
    match of.source {
        Source::Workspace | Source::GoModule(..) => of.name,
        Source::Crate(_, program) => program,
    }
}

/// Returns the path of the program below the cache folder; `None` for Taupe, which is not there.
pub(super) fn path_in_cache(of: &Description) -> Option<PathBuf> {
    match of.source {
        Source::Workspace => None,
        Source::GoModule(..) | Source::Crate(..) => {
            let folder = Path::new(FOLDER).join(folder(of));
            Some(folder.join("bin").join(file_name(of)))
        }
    }
}

/// Finds Taupe's program in the target directory of this executable, which may differ from the
/// workspace's. The workspace's directory may contain an old program.
fn beside(executable: &Path) -> Option<PathBuf> {
    // TARGET/PROFILE/EXECUTABLE, or TARGET/PROFILE/deps/EXECUTABLE.
    let above = executable.ancestors().skip(2).take(2);
    above
        .map(|target| target.join("release/taupe"))
        .find(|path| path.is_file())
}

fn place(of: &Description) -> PathBuf {
    cache().join(folder(of))
}

fn folder(of: &Description) -> String {
    let Description { name, version, .. } = of;
    match of.processor {
        Some(processor) => format!("{name}-{version}-{processor}"),
        None => format!("{name}-{version}"),
    }
}

fn cache() -> PathBuf {
    cache::root().join(FOLDER)
}

/// Returns the path of the program, which must be installed.
pub(super) fn program(of: &Description) -> Result<PathBuf> {
    let path = path(of);
    if path.is_file() {
        return Ok(path);
    }
    let remedy = match of.source {
        Source::Workspace => "build it with `cargo build --release -p taupe`, or set TAUPE_BIN",
        _ => "`taupe-lab run` and the tests build it when they begin, which failed or was not done",
    };
    Err(Error::Missing {
        name: of.name.to_owned(),
        path,
        remedy: remedy.to_owned(),
    })
}

/// Returns the path of a file that was installed with the program.
pub(super) fn companion(of: &Description, name: &str) -> Result<PathBuf> {
    program(of)?;
    Ok(place(of).join(name))
}

/// Builds the program unless it is installed. A lock prevents simultaneous builds.
pub(super) fn install(of: &Description) -> Result<PathBuf> {
    if matches!(of.source, Source::Workspace) || path(of).is_file() {
        return program(of);
    }
    let (cache, place) = (cache(), place(of));
    let what = |path: &Path| path.display().to_string();
    let _lock = cache::lock(&cache, of.name)?;
    if !path(of).is_file() {
        let draft = cache.join(format!("{}.draft", of.name));
        for old in [&draft, &place] {
            if old.exists() {
                fs::remove_dir_all(old).map_err(Error::io(what(old)))?;
            }
        }
        let bin = draft.join("bin");
        fs::create_dir_all(&bin).map_err(Error::io(what(&bin)))?;
        match of.source {
            Source::GoModule(module, sum) => build_go(of, module, sum, &draft)?,
            Source::Crate(name, _) => build_crate(of, name, &draft)?,
            Source::Workspace => {}
        }
        fs::rename(&draft, &place).map_err(Error::io(what(&place)))?;
    }
    program(of)
}

/// Builds the program in `bin`, and copies the module's tests to `tests`. The Go toolchain checks
/// the modules that this one needs by its `go.sum`.
fn build_go(of: &Description, module: &str, sum: &str, draft: &Path) -> Result<()> {
    let mut download = go(draft);
    let version = format!("{module}@{}", of.version);
    download.args(["mod", "download", "-json", &version]);
    let reported = run(HERE, download, None)?.stdout;
    let malformed = |why: String| Error::Malformed {
        what: format!("output of `go mod download {version}`"),
        why,
    };
    let found = field(&reported, "Sum").ok_or_else(|| malformed(reported.clone()))?;
    if found != sum {
        return Err(Error::unmet(format!(
            "the checksum of {version} is {found} instead of {sum}, so the download is not the \
             module that was tested: try another module proxy (GOPROXY)"
        )));
    }
    let directory = field(&reported, "Dir").ok_or_else(|| malformed(reported.clone()))?;
    let mut build = go(draft);
    if let Some(processor) = of.processor {
        build.env("GOARCH", processor).env("CGO_ENABLED", "0");
    }
    build
        .current_dir(directory)
        .args(["build", "-trimpath", "-o"])
        .arg(draft.join("bin").join(of.name))
        .arg(".");
    run(HERE, build, None)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(Path::new(directory).join("tests"));
    run(HERE, with(copy, draft), None)?;
    // The downloaded modules are read-only, and no longer needed.
    let mut clean = go(draft);
    clean.args(["clean", "-modcache"]);
    run(HERE, clean, None)?;
    for used in ["go", "go-build"] {
        let used = draft.join(used);
        if used.exists() {
            fs::remove_dir_all(&used).map_err(Error::io(used.display().to_string()))?;
        }
    }
    Ok(())
}

/// Returns a field of the JSON that `go mod download` prints.
fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("\"{name}\": \"");
    let mut lines = json.lines();
    lines.find_map(|line| line.trim().strip_prefix(&*start)?.split('"').next())
}

/// Returns the Go toolchain, with its files below `draft`. If the installed toolchain is too old
/// for a module, it fetches a newer one from the module proxy.
fn go(draft: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(draft)
        .env("GOPATH", draft.join("go"))
        .env("GOCACHE", draft.join("go-build"))
        .env("GOTOOLCHAIN", "auto");
    go
}

/// Builds the program in `bin`.
fn build_crate(of: &Description, name: &str, draft: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["install", "--locked", "--version", of.version, name])
        .arg("--root")
        .arg(draft)
        .env("CARGO_TARGET_DIR", draft.join("target"));
    // These variables apply to the workspace that runs the tests, not to the crate being built.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(variable);
    }
    run(HERE, cargo, None)?;
    let target = draft.join("target");
    fs::remove_dir_all(&target).map_err(Error::io(target.display().to_string()))
}

fn with(mut command: Command, argument: &Path) -> Command {
    command.arg(argument);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_download() {
        let json =
            "{\n\t\"Path\": \"a/b\",\n\t\"Sum\": \"h1:x+/=\",\n\t\"GoModSum\": \"h1:y=\"\n}\n";
        assert_eq!(field(json, "Sum"), Some("h1:x+/="));
        assert_eq!(field(json, "Dir"), None);
    }

    #[test]
    fn taupe_is_taken_from_the_same_target_directory() {
        let target = std::env::temp_dir().join(format!("taupe-lab-target-{}", std::process::id()));
        let program = target.join("release/taupe");
        let executables = ["release/taupe-lab", "debug/taupe-lab", "debug/deps/bench-1"];
        let found = || executables.map(|one| beside(&target.join(one)));
        assert_eq!(found(), [None, None, None]);
        fs::create_dir_all(target.join("release")).unwrap();
        fs::File::create(&program).unwrap();
        let after = found();
        fs::remove_dir_all(&target).unwrap();
        assert_eq!(after, [(); 3].map(|()| Some(program.clone())));
    }
}
