//! Debian's resolvers and their clients, unpacked outside the system instead of installed:
//! installing one of them would change the machine's `/etc/resolv.conf`.

use crate::{Error, Result, cache, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with the files of some packages, as paths below the root.
#[derive(Debug, Clone, Copy)]
pub struct Packages(&'static str, &'static [&'static str]);

/// systemd-resolved and resolvectl, with the library of the same version.
pub const SYSTEMD: Packages = Packages(
    "systemd-resolved",
    &["systemd-resolved", "libsystemd-shared"],
);
/// openresolv.
pub const OPENRESOLV: Packages = Packages("openresolv", &["openresolv"]);
/// Debian's resolvconf.
pub const RESOLVCONF: Packages = Packages("resolvconf", &["resolvconf"]);

/// Module that lets the C library ask systemd-resolved.
pub const NSS_RESOLVE: Packages = Packages("libnss-resolve", &["libnss-resolve"]);

const HERE: &str = "this machine";

fn cache() -> PathBuf {
    cache::root().join("debian")
}

impl Packages {
    /// Returns the folder, if [`unpack`](Self::unpack) has created it.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`].
    pub fn folder(self) -> Result<PathBuf> {
        let path = cache().join(self.0);
        if path.is_dir() {
            return Ok(path);
        }
        Err(Error::Missing {
            name: self.0.to_owned(),
            path,
            remedy: "it is fetched when the tests begin, which failed or was not done".to_owned(),
        })
    }

    /// Downloads and unpacks the packages, unless they exist. A lock prevents simultaneous runs.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], or the error of `apt-get` or `dpkg`.
    pub fn unpack(self) -> Result<()> {
        let (cache, what) = (cache(), |path: &Path| path.display().to_string());
        let _lock = cache::lock(&cache, "packages")?;
        if self.folder().is_ok() {
            return Ok(());
        }
        let draft = cache.join(format!("{}.draft", self.0));
        if draft.exists() {
            fs::remove_dir_all(&draft).map_err(Error::io(what(&draft)))?;
        }
        let (fetched, root) = (draft.join("fetched"), draft.join("root"));
        fs::create_dir_all(&fetched).map_err(Error::io(what(&fetched)))?;
        let fetch = || {
            let mut command = Command::new("apt-get");
            command
                .arg("-q")
                .arg("download")
                .args(self.1)
                .current_dir(&fetched);
            process::run(HERE, command, None)
        };
        if fetch().is_err() {
            // The package lists may be missing, or older than the mirror.
            let mut update = Command::new("apt-get");
            update.args(["-q", "update"]);
            process::run(HERE, update, None)?;
            fetch()?;
        }
        for entry in fs::read_dir(&fetched).map_err(Error::io(what(&fetched)))? {
            let mut command = Command::new("dpkg");
            let package = entry.map_err(Error::io(what(&fetched)))?.path();
            command.arg("-x").arg(package).arg(&root);
            process::run(HERE, command, None)?;
        }
        let place = cache.join(self.0);
        fs::rename(&root, &place).map_err(Error::io(what(&place)))?;
        fs::remove_dir_all(&draft).map_err(Error::io(what(&draft)))
    }
}
