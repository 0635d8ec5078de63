//! A pack: a folder with everything that a run needs, for a machine without package registries and
//! without the programs of the lab.
//!
//! A pack contains a small root file system: programs, their libraries and their loader, at the
//! paths that they have on this machine. `run --from` enters it in a mount namespace of its own
//! ([`enter`]), so every program finds its libraries as usual, and needs no file of the other
//! machine.
//!
//! ```text
//! pack.json     the list of files, and what they are for
//! taupe-lab     starts the lab with the pack's own loader and libraries
//! files/        the root file system
//! ```

pub mod enter;
mod libraries;
mod manifest;

pub use manifest::Pack;

use crate::contestant::{self, PackPlace};
use crate::machine;
use manifest::{Manifest, PackFile};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::process;

/// Cache folder of the lab below the root of a pack, for programs of other projects.
const CACHE: &str = "cache";

/// Path of Taupe's program below the root of a pack.
const TAUPE: &str = "usr/bin/taupe";

/// Path of this program below the root of a pack.
const LAB: &str = "usr/bin/taupe-lab";

/// Folder of all other programs below the root of a pack.
const PROGRAMS: &str = "usr/bin";

/// Largest size of a pack, compressed, in bytes.
pub const BUDGET: u64 = 45 << 20;

const HERE: &str = "this machine";

/// Programs that runs start.
const TOOLS: [&str; 13] = [
    "cat", "date", "ip", "iperf3", "nft", "ping", "qperf", "ss", "tc", "tee", "timeout", "unshare",
    "wg",
];

/// Contestants that a pack contains only if they are requested. The kernel is one of them, because
/// most borrowed machines have a kernel without WireGuard.
const ON_REQUEST: [&str; 3] = ["direct-past-taupe", "taupe-transparent", "kernel"];

/// Starts the lab on a machine whose C library may be older than the lab needs.
const START: &str = r#"#!/bin/sh
# Starts the taupe-lab of this pack with the pack's own loader and libraries.
case $0 in
    */*) here=${0%/*} ;;
    *) here=. ;;
esac
exec "$here/files/LOADER" --library-path "LIBRARIES" "$here/files/PROGRAM" "$@"
"#;

/// Summary of a pack that [`make`] has written.
#[derive(Debug, Clone, PartialEq)]
pub struct PackSummary {
    /// Ids of its contestants.
    pub contestants: Vec<String>,
    /// Contestants that it lacks, each with the reason.
    pub missing: Vec<(String, String)>,
    /// Number of files.
    pub files: usize,
    /// Size in bytes.
    pub size: u64,
    /// Size in bytes, compressed by gzip.
    pub compressed: u64,
}

/// Makes a pack of these contestants in a new or empty folder, or in that of an old pack, which is
/// replaced. If `requested` is empty, the pack has all contestants that it can contain, except
/// those that have to be requested.
///
/// # Errors
///
/// [`Error::Unmet`] if the folder has other content, a program or a requested contestant is missing,
/// or the pack is larger than [`BUDGET`]; the error of a program that copies or compresses.
pub fn make(folder: &Path, requested: &[String]) -> Result<PackSummary> {
    let shown = folder.display().to_string();
    prepare(folder, &shown)?;
    let files = folder.join(manifest::FILES);
    let mut missing = Vec::new();
    let mut contestants = Vec::new();
    let mut programs = BTreeMap::new();
    let mut wanted = contestant::all();
    wanted.retain(|one| !ON_REQUEST.contains(&one.id()));
    if !requested.is_empty() {
        wanted = requested
            .iter()
            .filter_map(|id| contestant::find(id))
            .collect();
    }
    for contestant in wanted {
        let id = contestant.id().to_owned();
        match contestant.packed() {
            Ok(packed) => {
                let places = packed.into_iter();
                programs.extend(places.map(|program| (path(&program.place), program.file)));
                contestants.push(id);
            }
            Err(error) if !requested.is_empty() => return Err(error),
            Err(error) => missing.push((id, error.one_line())),
        }
    }
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    programs.insert(LAB.into(), own);
    for tool in TOOLS {
        let path = process::find_program(tool).ok_or_else(|| {
            Error::unmet(format!(
                "{tool} is not installed, and runs need it: `scripts/packages bench` installs \
                 all programs of the lab"
            ))
        })?;
        programs.insert(Path::new(PROGRAMS).join(tool), path);
    }

    let mut needed = BTreeSet::new();
    for (place, program) in &programs {
        needed.extend(libraries::of(program)?);
        copy_program(program, &files.join(place))?;
    }
    let loader = libraries::loader(&needed)?;
    for library in &needed {
        let place = files.join(libraries::place(library)?);
        copy(library, &place)?;
    }
    let places = programs.into_keys().map(|place| (place, true));
    let libraries = needed.iter().map(|library| libraries::place(library));
    let libraries = libraries.collect::<Result<BTreeSet<PathBuf>>>()?;
    let library_path = libraries::folders(&libraries);
    let loader = libraries::place(&loader)?;
    let libraries = libraries.into_iter();
    let places = places.chain(libraries.map(|place| {
        let is_program = place == loader;
        (place, is_program)
    }));
    let list = places.map(|(place, is_program)| {
        let path = files.join(&place);
        let data = fs::metadata(&path).map_err(Error::io(path.display().to_string()))?;
        Ok(PackFile {
            path: place,
            size: data.len(),
            is_program,
        })
    });
    let manifest = Manifest {
        format: manifest::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: machine::commit(),
        contestants: contestants.clone(),
        loader: loader.clone(),
        library_path,
        program: LAB.into(),
        files: list.collect::<Result<_>>()?,
    };
    manifest.write(folder)?;
    write_start(folder, &manifest)?;
    let size = manifest.files.iter().map(|file| file.size).sum();
    let compressed = compressed_size(folder)?;
    ensure!(
        compressed <= BUDGET,
        "{shown} takes {} compressed, and a pack at most {}: choose fewer contestants with \
         --contestants",
        mebibytes(compressed),
        mebibytes(BUDGET)
    );
    Ok(PackSummary {
        contestants,
        missing,
        files: manifest.files.len(),
        size,
        compressed,
    })
}

/// Returns a path below the root of the pack.
fn path(place: &PackPlace) -> PathBuf {
    match place {
        PackPlace::Taupe => TAUPE.into(),
        PackPlace::Cache(path) => Path::new(CACHE).join(path),
    }
}

/// Formats a size, such as `12.3 MiB`.
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Creates the folder if it does not exist, and empties it if it contains a pack.
fn prepare(folder: &Path, shown: &str) -> Result<()> {
    let failed = || Error::io(shown.to_owned());
    fs::create_dir_all(folder).map_err(failed())?;
    let entries = fs::read_dir(folder).map_err(failed())?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>().map_err(failed())?;
    let of_pack = [
        manifest::LIST,
        manifest::START,
        manifest::FILES,
        enter::ROOT,
    ];
    let is_pack = names.is_empty() || folder.join(manifest::LIST).is_file();
    let is_known = |name: &OsString| of_pack.iter().any(|known| name.to_str() == Some(known));
    ensure!(
        is_pack && names.iter().all(is_known),
        "{shown} has other files than those of a pack, and they would be lost: name a new folder"
    );
    for name in names {
        let path = folder.join(name);
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(Error::io(path.display().to_string()))?;
    }
    Ok(())
}

/// Copies a program without its symbols, which make up most of its size.
fn copy_program(from: &Path, to: &Path) -> Result<()> {
    copy(from, to)?;
    let mut command = Command::new("strip");
    command.arg("--strip-all").arg(to);
    // The copy keeps its symbols if binutils are not installed, or if strip refuses the file.
    if process::find_program("strip").is_some() {
        process::attempt(HERE, command, None)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let what = || format!("copying {} to {}", from.display(), to.display());
    if let Some(above) = to.parent() {
        fs::create_dir_all(above).map_err(Error::io(what()))?;
    }
    fs::copy(from, to).map(drop).map_err(Error::io(what()))
}

fn write_start(folder: &Path, manifest: &Manifest) -> Result<()> {
    let path = folder.join(manifest::START);
    let what = path.display().to_string();
    let below = |path: &Path| format!("$here/{}/{}", manifest::FILES, path.display());
    let libraries: Vec<String> = manifest
        .library_path
        .iter()
        .map(|path| below(path))
        .collect();
    let text = START
        .replace("LOADER", &manifest.loader.display().to_string())
        .replace("LIBRARIES", &libraries.join(":"))
        .replace("PROGRAM", &manifest.program.display().to_string());
    fs::write(&path, text).map_err(Error::io(&*what))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(Error::io(what))
}

/// Returns the size of a folder as an archive compressed by gzip.
fn compressed_size(folder: &Path) -> Result<u64> {
    let mut command = Command::new("tar");
    command
        .args(["--create", "--gzip", "--file", "-", "--directory"])
        .arg(folder)
        .arg(".")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let start = |source| Error::Start {
        command: "tar".to_owned(),
        place: HERE.to_owned(),
        source,
    };
    let mut child = command.spawn().map_err(start)?;
    let mut size = 0;
    if let Some(mut archive) = child.stdout.take() {
        size = io::copy(&mut archive, &mut io::sink()).map_err(Error::io("output of tar"))?;
    }
    let status = child.wait().map_err(Error::io("waiting for tar"))?;
    ensure!(
        status.success(),
        "tar of {} ended with {status}, so the size of the pack is unknown",
        folder.display()
    );
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packs_are_overwritten() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("taupe-packs-{}", std::process::id()));
        let result = overwrite(&folder);
        fs::remove_dir_all(&folder).map_err(Error::io("a folder"))?;
        result
    }

    fn overwrite(folder: &Path) -> Result<()> {
        let ready = || prepare(folder, "the folder").is_ok();
        let write = |name: &str| fs::write(folder.join(name), "").map_err(Error::io("a file"));
        assert!(ready() && ready(), "a new folder, and an empty one");
        fs::create_dir(folder.join(manifest::FILES)).map_err(Error::io("a folder"))?;
        assert!(!ready(), "a folder called like that of a pack");
        write(manifest::LIST)?;
        assert!(ready() && !folder.join(manifest::FILES).exists());
        write(manifest::LIST)?;
        write("letter.txt")?;
        assert!(!ready() && folder.join("letter.txt").exists());
        Ok(())
    }

    #[test]
    fn sizes_are_in_binary_units() {
        assert_eq!(mebibytes(BUDGET), "45.0 MiB");
    }
}
