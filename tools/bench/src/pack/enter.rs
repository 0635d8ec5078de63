//! Entering a pack: its files become the root of this process, in a mount namespace of its own.

use super::Pack;
use super::manifest::FILES;
use crate::machine::COMMIT;
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};

/// First argument of the process that enters a pack.
pub const ENTER: &str = "--enter";

/// Environment variable with the [`EnterOrder`], as JSON.
const ORDER: &str = "TAUPE_LAB_ENTER";

/// Folder of the pack on which the new root is mounted.
pub(super) const ROOT: &str = "root";

/// Folders of the machine that the new root has too.
const SHARED: [&str; 3] = ["proc", "sys", "dev"];

/// Empty folders of the new root.
const EMPTY: [&str; 6] = ["etc", "mnt", "root", "run", "tmp", "var/lib"];

/// Options whose value is a path outside the pack.
const WITH_PATHS: [&str; 2] = ["--from", "--out"];

/// Order to the process that enters a pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EnterOrder {
    folder: PathBuf,
    /// Folder for the report, which has the same path outside and inside.
    out: PathBuf,
    /// Arguments for the lab inside.
    arguments: Vec<String>,
}

/// Returns the arguments of `taupe-lab` without those that name paths outside the pack.
pub fn inner_arguments(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut inner = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let option = argument.split('=').next().unwrap_or_default();
        if !WITH_PATHS.contains(&option) {
            inner.push(argument);
        } else if option == argument {
            // The value is the next argument.
            arguments.next();
        }
    }
    inner
}

/// Replaces this process with the lab inside the pack.
///
/// # Errors
///
/// [`Error::Unmet`] if the folder for the report would be hidden; [`Error::Start`].
pub fn start(pack: &Pack, out: &Path, arguments: Vec<String>) -> Result<Infallible> {
    check_out(out, &top_folders(pack)?)?;
    let order = EnterOrder {
        folder: pack.folder.clone(),
        out: out.to_owned(),
        arguments,
    };
    let order = serde_json::to_string(&order).map_err(|error| {
        Error::unmet(format!(
            "cannot encode the order to enter a pack as JSON: {error}"
        ))
    })?;
    let unshare = Path::new(super::PROGRAMS).join("unshare");
    // The pack's loader starts both programs, because the machine's loader may be too old for
    // them.
    let mut words = loaded(pack, &unshare);
    let flags = ["--mount", "--propagation", "private", "--"];
    words.extend(flags.map(OsString::from));
    words.extend(loaded(pack, &pack.manifest.program));
    words.push(ENTER.into());
    let (loader, rest) = words.split_at(1);
    let mut command = Command::new(loader.first().map_or("".as_ref(), OsString::as_os_str));
    command.args(rest).env(ORDER, order);
    Err(replace_process(command))
}

/// Replaces this process. Returns the error if that fails.
fn replace_process(mut command: Command) -> Error {
    let name = command.get_program().to_string_lossy().into_owned();
    Error::Start {
        source: command.exec(),
        command: name,
        place: "this machine".to_owned(),
    }
}

/// Returns the words that start a program of the pack with its loader.
fn loaded(pack: &Pack, program: &Path) -> Vec<OsString> {
    let folders = pack.manifest.library_path.iter();
    let folders: Vec<String> = folders
        .map(|folder| pack.path(folder).display().to_string())
        .collect();
    vec![
        pack.path(&pack.manifest.loader).into(),
        "--library-path".into(),
        folders.join(":").into(),
        pack.path(program).into(),
    ]
}

/// Enters the pack that [`start`] has named, and replaces this process with the lab inside.
///
/// # Errors
///
/// [`Error::Io`] if a file system cannot be mounted; [`Error::Start`].
pub fn enter() -> Result<Infallible> {
    let order =
        std::env::var(ORDER).map_err(|_| Error::unmet("only `taupe-lab run --from` calls this"))?;
    let order: EnterOrder = serde_json::from_str(&order)
        .map_err(|error| Error::unmet(format!("{ORDER} is malformed: {error}")))?;
    let pack = Pack::open(&order.folder)?;
    let root = pack.folder.join(ROOT);
    build_root(&pack, &root, &order.out)?;
    rustix::process::chroot(&root).map_err(Error::io(format!("chroot to {}", root.display())))?;
    rustix::process::chdir("/").map_err(Error::io("chdir to /"))?;
    let inside = |place: &Path| Path::new("/").join(place);
    let mut command = Command::new(inside(&pack.manifest.program));
    command
        .args(&order.arguments)
        .arg("--out")
        .arg(&order.out)
        .env_clear()
        .env("PATH", inside(super::PROGRAMS.as_ref()))
        .env("HOME", "/root")
        .env("TAUPE_CACHE", inside(super::CACHE.as_ref()))
        .env("TAUPE_BIN", inside(super::TAUPE.as_ref()))
        .envs(pack.manifest.commit.iter().map(|commit| (COMMIT, commit)));
    Err(replace_process(command))
}

/// Mounts the new root: an empty file system with the folders of the pack, some folders of the
/// machine, and the folder for the report.
fn build_root(pack: &Pack, root: &Path, out: &Path) -> Result<()> {
    make(root)?;
    let failed = |path: &Path| Error::io(format!("mounting {}", path.display()));
    mount("pack", root, "tmpfs", MountFlags::empty(), None).map_err(failed(root))?;
    for name in top_folders(pack)? {
        let (from, to) = (pack.path(name.as_ref()), root.join(&name));
        make(&to)?;
        mount_bind(&from, &to).map_err(failed(&to))?;
    }
    for name in SHARED {
        let to = root.join(name);
        make(&to)?;
        mount_bind_recursive(Path::new("/").join(name), &to).map_err(failed(&to))?;
    }
    for name in EMPTY {
        make(&root.join(name))?;
    }
    let everyone = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(root.join("tmp"), everyone).map_err(Error::io("mode of /tmp"))?;
    symlink("/run", root.join("var/run")).map_err(Error::io("link /var/run"))?;
    // The report names the machine's system from this file. It names none if the copy fails.
    let _ = fs::copy("/etc/os-release", root.join("etc/os-release"));
    let to = root.join(out.strip_prefix("/").unwrap_or(out));
    make(&to)?;
    mount_bind(out, &to).map_err(failed(&to))
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io(folder.display().to_string()))
}

/// Returns the names of the folders at the root of the pack.
fn top_folders(pack: &Pack) -> Result<Vec<String>> {
    let files = pack.folder.join(FILES);
    let failed = || Error::io(files.display().to_string());
    let mut names = Vec::new();
    for entry in fs::read_dir(&files).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// Checks that the folder for the report can have the same path in the new root. It cannot lie
/// below a folder of the pack, which hides the machine's folder of this name, or below one of
/// [`SHARED`].
fn check_out(out: &Path, folders: &[String]) -> Result<()> {
    let folders = folders.iter().map(String::as_str).chain(SHARED);
    let mut folders = folders.map(|name| Path::new("/").join(name));
    let hidden = folders.find(|folder| out.starts_with(folder));
    ensure!(
        hidden.is_none() && out != Path::new("/"),
        "the pack has a {} of its own, so the report cannot be written to {}: choose another folder \
         with --out",
        hidden.as_deref().unwrap_or(Path::new("/")).display(),
        out.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_are_not_passed_on() {
        let inner = |line: &str| inner_arguments(line.split(' ').map(str::to_owned)).join(" ");
        for (line, expected) in [
            ("run --from /a --rounds 2 --out /b", "run --rounds 2"),
            ("run --out=/b --only cores --from=/a", "run --only cores"),
            ("run --only throughput", "run --only throughput"),
            ("run --from", "run"),
            ("run --outside x", "run --outside x"),
        ] {
            assert_eq!(inner(line), expected, "{line}");
        }
    }

    #[test]
    fn reports_are_not_written_below_hidden_folders() {
        let folders = ["usr", "lib64"].map(str::to_owned);
        let check = |out: &str| check_out(Path::new(out), &folders);
        for out in ["/tmp/out", "/home/user", "/user", "/lib/x"] {
            assert!(check(out).is_ok(), "{out}");
        }
        for out in ["/usr/local/out", "/lib64", "/dev/shm/x", "/proc", "/"] {
            let error = check(out).expect_err(out).to_string();
            assert!(
                error.contains("choose another folder with --out"),
                "{error}"
            );
        }
    }
}
