//! The systems in which the packages are installed: made by debootstrap once, and cached.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use taupe_lab::{Error, Result, cache, ensure};

use crate::build::succeed;

/// A release of Debian or Ubuntu.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum System {
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// Ubuntu 24.04.
    Noble,
    /// Ubuntu 22.04.
    Jammy,
}

/// Source of Ubuntu's packages.
const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";

/// The script of debootstrap for all releases of Ubuntu. Debian 12 does not know the names of newer
/// ones.
const UBUNTUS_SCRIPT: &str = "/usr/share/debootstrap/scripts/gutsy";

/// Keys by which Ubuntu signs its packages, in a Debian 13. They come from a package of Debian, whose
/// signature debootstrap has checked.
const UBUNTUS_KEYS: &str = "usr/share/keyrings/ubuntu-archive-keyring.gpg";

impl System {
    /// Returns the systems of this run: Debian 12, or all with `SYSTEMS=all`.
    pub(crate) fn all() -> &'static [Self] {
        match std::env::var_os("SYSTEMS").is_some_and(|systems| systems == "all") {
            true => &[Self::Bookworm, Self::Trixie, Self::Noble, Self::Jammy],
            false => &[Self::Bookworm],
        }
    }

    /// Returns the name of the release.
    pub(crate) fn release(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Noble => "noble",
            Self::Jammy => "jammy",
        }
    }

    /// Returns the root directory of the system, a minimal one with systemd. Tests do not change it.
    pub(crate) fn root(self) -> PathBuf {
        folder().join(format!("{}-systemd", self.release()))
    }

    /// Makes the system, unless it is there.
    pub(crate) fn prepare(self) -> Result<()> {
        let is_ubuntu = matches!(self, Self::Noble | Self::Jammy);
        if is_ubuntu {
            Self::Trixie.prepare()?;
        }
        let _lock = cache::lock(&folder(), &format!("{}-systemd", self.release()))?;
        if self.root().is_dir() {
            return Ok(());
        }
        let draft = folder().join(format!("{}-systemd.draft", self.release()));
        if draft.exists() {
            fs::remove_dir_all(&draft).map_err(Error::io("an unfinished system"))?;
        }
        let mut command = Command::new("debootstrap");
        let include = match self {
            Self::Trixie => "--include=systemd,ubuntu-keyring",
            _ => "--include=systemd",
        };
        command.args(["--variant=minbase", include]);
        if is_ubuntu {
            let keys = Self::Trixie.root().join(UBUNTUS_KEYS);
            // Without keys debootstrap would check nothing.
            ensure!(keys.is_file(), "no {}", keys.display());
            command.arg("--force-check-gpg");
            command.arg(format!("--keyring={}", keys.display()));
        }
        command.arg(self.release()).arg(&draft);
        if is_ubuntu {
            command.args([UBUNTU, UBUNTUS_SCRIPT]);
        }
        succeed(&mut command)?;
        trim(&draft)?;
        fs::rename(&draft, self.root()).map_err(Error::io("a system"))
    }
}

fn folder() -> PathBuf {
    cache::folder("debian")
}

/// Removes what no test needs.
fn trim(root: &Path) -> Result<()> {
    for heavy in ["var/cache/apt", "var/lib/apt/lists", "usr/share/locale"] {
        let _ = fs::remove_dir_all(root.join(heavy));
    }
    for folder in [
        "var/cache/apt/archives/partial",
        "var/lib/apt/lists/partial",
    ] {
        fs::create_dir_all(root.join(folder)).map_err(Error::io("apt's folders"))?;
    }
    Ok(())
}
