//! The boot images of guests, and their cache.

use crate::cache;
use crate::error::{Error, Result};
use crate::process;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The kernel's file in the folder that [`install`] returns.
pub(super) const KERNEL: &str = "vmlinuz";
/// The file system's file.
pub(super) const INITRAMFS: &str = "initramfs";

const BUILD: &str = include_str!("../../guest/build");
const INIT: &str = include_str!("../../guest/init");
const PACKAGES: &str = include_str!("../../guest/packages");

/// The processor of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64, this machine's.
    Amd64,
    /// AArch64. Its guests have the programs of Debian packages instead of this machine's.
    Arm64,
}

/// The kernel of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernel {
    /// Debian 12's, 6.1.
    #[default]
    Debian12,
    /// Debian 11's, 5.10.
    Debian11,
    /// Debian 12's for AArch64, 6.1. `fentry` and LSM programs cannot be attached on AArch64 before
    /// 6.4.
    Arm64,
    /// The one of Debian 12's backports for AArch64, 6.4 or newer.
    Arm64Backports,
    /// The same with pages of 16 KiB.
    Arm64Backports16K,
}

impl Kernel {
    /// Returns the prefix of its images' names.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Debian12 => "guest-",
            Self::Debian11 => "guest11-",
            Self::Arm64 => "guest-arm64-",
            Self::Arm64Backports => "guest-arm64-backports-",
            Self::Arm64Backports16K => "guest-arm64-backports-16k-",
        }
    }

    /// Returns the arguments of `build`.
    const fn source(self) -> &'static [&'static str] {
        match self {
            Self::Debian12 => &["linux-image-cloud-amd64"],
            Self::Debian11 => &["linux-image-cloud-amd64", "bullseye"],
            Self::Arm64 => &["linux-image-cloud-arm64", "bookworm", "arm64"],
            Self::Arm64Backports => &["linux-image-cloud-arm64", "bookworm-backports", "arm64"],
            Self::Arm64Backports16K => &["linux-image-arm64-16k", "bookworm-backports", "arm64"],
        }
    }

    /// Returns its processor.
    pub(super) const fn architecture(self) -> Architecture {
        match self {
            Self::Debian12 | Self::Debian11 => Architecture::Amd64,
            Self::Arm64 | Self::Arm64Backports | Self::Arm64Backports16K => Architecture::Arm64,
        }
    }

    /// As [`version`].
    ///
    /// # Errors
    ///
    /// As [`install`].
    pub fn version(self) -> Result<String> {
        version_in(&self.install()?)
    }

    /// As [`install`].
    ///
    /// # Errors
    ///
    /// As [`install`].
    pub fn install(self) -> Result<PathBuf> {
        let cache = cache::root();
        let recipe = recipe();
        fs::create_dir_all(&cache).map_err(Error::io(cache.display().to_string()))?;
        if let Some(image) = find(self, &cache, &recipe)? {
            return Ok(image);
        }
        let _lock = cache::lock(&cache, "guest")?;
        if let Some(image) = find(self, &cache, &recipe)? {
            return Ok(image);
        }
        let work = cache.join("guest.partial");
        if work.exists() {
            fs::remove_dir_all(&work).map_err(Error::io(work.display().to_string()))?;
        }
        let version = build(self, &work)?;
        let image = cache.join(format!("{}{version}-{recipe}", self.prefix()));
        fs::rename(work.join("image"), &image).map_err(Error::io(image.display().to_string()))?;
        fs::remove_dir_all(&work).map_err(Error::io(work.display().to_string()))?;
        for old in images(self, &cache)?.iter().filter(|old| **old != image) {
            fs::remove_dir_all(old).map_err(Error::io(old.display().to_string()))?;
        }
        Ok(image)
    }
}

/// Returns the folder with Debian 12's kernel and a bootable file system; makes it if there is
/// none.
///
/// It lies in the cache, `$TAUPE_CACHE` or `~/.cache/taupe`, and is called `guest-VERSION-RECIPE`.
/// An existing folder is used even if Debian has a newer kernel by now. Making it downloads about
/// 27 MB, needs the package lists of `apt-get update`, and removes older folders.
///
/// # Errors
///
/// [`Error::Command`] if it cannot be made, [`Error::Io`].
pub fn install() -> Result<PathBuf> {
    Kernel::default().install()
}

/// Returns the version of the kernel in the image, such as `6.1.192`.
///
/// # Errors
///
/// As [`install`].
pub fn version() -> Result<String> {
    Kernel::default().version()
}

/// Returns a hash of the files that determine an image.
fn recipe() -> String {
    let mut hasher = DefaultHasher::new();
    (BUILD, INIT, PACKAGES).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Returns the image made by this recipe.
fn find(kernel: Kernel, cache: &Path, recipe: &str) -> Result<Option<PathBuf>> {
    let of_recipe = |image: &PathBuf| image.to_string_lossy().ends_with(&format!("-{recipe}"));
    Ok(images(kernel, cache)?.into_iter().find(of_recipe))
}

/// Returns all images of a kernel in the cache.
fn images(kernel: Kernel, cache: &Path) -> Result<Vec<PathBuf>> {
    let reading = || Error::io(cache.display().to_string());
    let entries = fs::read_dir(cache).map_err(reading())?;
    let paths = entries.map(|entry| Ok(entry.map_err(reading())?.path()));
    let is_image = |path: &Result<PathBuf>| {
        let name = path.as_deref().ok().and_then(Path::file_name);
        name.is_none_or(|name| {
            let name = name.to_string_lossy();
            // A version, not the rest of a longer prefix.
            let version = name.strip_prefix(kernel.prefix());
            version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        })
    };
    paths.filter(is_image).collect()
}

/// Makes `work/image` and returns the kernel's version.
fn build(kernel: Kernel, work: &Path) -> Result<String> {
    fs::create_dir_all(work).map_err(Error::io(work.display().to_string()))?;
    for (name, text) in [("build", BUILD), ("init", INIT), ("packages", PACKAGES)] {
        let path = work.join(name);
        fs::write(&path, text).map_err(Error::io(path.display().to_string()))?;
    }
    let mut build = Command::new("sh");
    build.arg("build").args(kernel.source()).current_dir(work);
    process::run("the guest's image", build, None)?;
    version_in(&work.join("image"))
}

fn version_in(image: &Path) -> Result<String> {
    let path = image.join("version");
    let version = fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))?;
    Ok(version.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_its_recipe() -> Result<()> {
        let cache = std::env::temp_dir().join(format!("taupe-images-{}", std::process::id()));
        let kernel = Kernel::Debian12;
        let failed = || Error::io("a folder of a test");
        for name in [
            "guest-6.1.1-0a",
            "guest11-5.10-0b",
            "guest-6.1.2-0b",
            "guest-arm64-6.1.2-0b",
            "guest.partial",
            "peers",
        ] {
            fs::create_dir_all(cache.join(name)).map_err(failed())?;
        }
        assert_eq!(
            find(kernel, &cache, "0b")?,
            Some(cache.join("guest-6.1.2-0b"))
        );
        assert_eq!(find(kernel, &cache, "b")?, None);
        let mut all = images(kernel, &cache)?;
        all.sort();
        assert_eq!(
            all,
            ["guest-6.1.1-0a", "guest-6.1.2-0b"].map(|name| cache.join(name))
        );
        fs::remove_dir_all(&cache).map_err(failed())
    }
}
