//! Programs of this machine in a guest: a separate archive, unpacked over the image's file system,
//! so that the image does not depend on them.

use super::Guest;
use crate::error::{Error, Result};
use crate::process::{PATIENCE_FACTOR, attempt, run};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Their folder in the guest.
const FOLDER: &str = "/lab";

/// The core tests of the eBPF programs (`crates/transparent/tests/kernel`) that guests run, among those
/// that need only `ip`, `tc` and `tcpdump`. On an emulated processor each takes some ten times as long.
pub const EBPF_CORE: [&str; 9] = [
    "names_paths_and_directories",
    "sockets_older_than_the_tunnel",
    "datagrams_by_inherited_sockets",
    "inherited_connections",
    "every_transport_in_both_families",
    "new_uplinks_without_a_daemon",
    "removed_filter",
    "local_resolvers",
    "flow_flood_fills_only_its_share",
];

/// Returns the path of a copied program in a guest.
pub fn program(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{FOLDER}/{name}")
}

impl Guest {
    /// Runs a test of a copied program in a sandbox of the guest. The program is a
    /// [`Suite`](crate::sandbox::Suite).
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with the test's output; [`Error::Timeout`].
    pub fn run_test(&self, program: &str, test: &str, limit: Duration) -> Result<()> {
        // As on the host, except that `/sys` cannot be mounted twice. Standard input must stay open.
        let script = format!(
            "[ -p /tmp/open ] || mkfifo /tmp/open
             {PATIENCE_FACTOR}=5 TAUPE_BIN={FOLDER}/taupe PATH={FOLDER}:$PATH unshare -m -n -p -f --mount-proc=/proc \
             sh -c 'umount /sys; exec {FOLDER}/{program} --sandboxed {test}' <> /tmp/open 2>&1"
        );
        self.run_within(limit, &script).map(drop)
    }
}

/// Writes the image's file system, and these programs, to `target`: with their shared libraries, if
/// they are for this machine's processor. Temporary files are in a folder beside it.
pub(super) fn pack(
    image: &Path,
    programs: &[PathBuf],
    with_libraries: bool,
    target: &Path,
) -> Result<()> {
    let root = target.with_extension("root");
    let mut files = BTreeSet::new();
    for path in programs {
        files.insert(copy(path, &root, &program(path))?);
        if !with_libraries {
            continue;
        }
        for library in libraries(path)? {
            let name = library.display().to_string();
            files.insert(copy(&library, &root, &name)?);
        }
    }
    // Folders precede their contents.
    let folders = files.iter().flat_map(|file| Path::new(file).ancestors());
    let names: BTreeSet<&Path> = folders.filter(|path| *path != Path::new("")).collect();
    let names: String = names
        .iter()
        .map(|path| format!("{}\n", path.display()))
        .collect();

    let archive = target.with_extension("cpio");
    let mut cpio = Command::new("cpio");
    cpio.args(["--create", "--format=newc", "--owner=0:0", "--quiet"])
        .arg("--file")
        .arg(&archive)
        .current_dir(&root);
    run("the guest's programs", cpio, Some(&names))?;
    // The kernel unpacks one archive after the other.
    let what = target.display().to_string();
    let mut joined = File::create(target).map_err(Error::io(&*what))?;
    for part in [image, &archive] {
        let part = File::open(part).map_err(Error::io(part.display().to_string()));
        io::copy(&mut part?, &mut joined).map_err(Error::io(&*what))?;
    }
    for made in [fs::remove_file(archive), fs::remove_dir_all(root)] {
        made.map_err(Error::io(&*what))?;
    }
    Ok(())
}

/// Copies a file to a path below `root`, and returns this path, relative to `root`.
fn copy(from: &Path, root: &Path, to: &str) -> Result<String> {
    let relative = to.trim_start_matches('/').to_owned();
    let target = root.join(&relative);
    let what = || Error::io(format!("{} for the guest", from.display()));
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(what())?;
    }
    fs::copy(from, &target).map_err(what())?;
    Ok(relative)
}

/// Returns a program's shared libraries and its dynamic linker; empty for a static program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let mut ldd = Command::new("ldd");
    ldd.arg(program);
    let reported = attempt("this machine", ldd, None)?.stdout;
    if let Some(missing) = reported.lines().find(|line| line.contains("=> not found")) {
        return Err(Error::Missing {
            name: missing.trim().to_owned(),
            path: program.to_owned(),
            remedy: "install the library that the program is linked with".to_owned(),
        });
    }
    let words = reported.split_whitespace();
    Ok(words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}
