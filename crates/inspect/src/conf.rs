//! The configuration file and the interface that a word of the command line means. The word is a
//! path, or the name of a file in `/etc/wireguard`. A tunnel is named after its file.

use crate::interface::{InterfaceName, NameError};
use crate::system::{self, LONGEST_NAME, mode};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf, is_separator};
use taupe_config::file::Compatibility;

/// Returns the folder of files that are given by name: `/etc/wireguard`, or `Taupe` in
/// `%ProgramData%` on Windows.
#[must_use]
pub fn folder() -> PathBuf {
    system::conf_folder()
}

/// An existing file, and the tunnel that it describes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conf {
    /// Name of the tunnel and its interface.
    pub interface: InterfaceName,
    /// Absolute, and without symbolic links.
    pub path: PathBuf,
    /// The path as it was given, for messages.
    pub shown: PathBuf,
}

/// Reason why a word does not name a configuration file.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ConfError {
    // Texts of wg-quick.
    #[error("`{}' does not exist", .0.display())]
    QuickMissing(PathBuf),
    #[error("The config file must be a valid interface name, followed by .conf")]
    QuickName,
    #[error("there is no file {}{hint}", .path.display())]
    Missing { path: PathBuf, hint: String },
    #[error(
        "the tunnel is named after its file, and {name:?} cannot be the name of an interface; use \
         1 to {LONGEST_NAME} of a-z, A-Z, 0-9 and _=+.- before \".conf\": rename the file, or make \
         a link to it with such a name"
    )]
    Name { name: String },
    #[error("{0}; rename the file, or make a link to it with another name")]
    Reserved(#[source] NameError),
    #[error(
        "{} is neither a name in {} nor a path that ends in \".conf\"; rename the file, or \
         make a link to it with another name", .0.display(), folder().display()
    )]
    NeitherNameNorPath(PathBuf),
    #[error("cannot resolve the path {}: {source}{}", .path.display(), advice(source))]
    Unreachable { path: PathBuf, source: io::Error },
}

fn advice(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "; run it as {}, or give the path of a file that you may read",
            system::ADMINISTRATOR
        ),
        _ => String::new(),
    }
}

impl Conf {
    /// Finds the file that a word of the command line means.
    ///
    /// For Taupe, a word that ends in `.conf` is a path. For `wg-quick`, every word that could be
    /// the name of an interface is a name, even `wg0.conf`.
    ///
    /// # Errors
    /// See [`ConfError`].
    pub fn find(word: &OsStr, compatibility: Compatibility) -> Result<Self, ConfError> {
        Self::find_in(&folder_of(word), word, compatibility)
    }

    fn find_in(
        folder: &Path,
        word: &OsStr,
        compatibility: Compatibility,
    ) -> Result<Self, ConfError> {
        let path = match compatibility {
            Compatibility::WgQuick => quick_path(folder, word),
            Compatibility::Taupe => own_path(folder, word)?,
        };
        if !fs::exists(&path).unwrap_or(true) {
            return Err(match compatibility {
                Compatibility::WgQuick => ConfError::QuickMissing(path),
                Compatibility::Taupe => ConfError::Missing {
                    hint: hint(folder, word),
                    path,
                },
            });
        }
        let interface = match (name_of(&path), compatibility) {
            (Some(Ok(name)), Compatibility::Taupe) => {
                name.not_reserved().map_err(ConfError::Reserved)?
            }
            (Some(Ok(name)), Compatibility::WgQuick) => name,
            (_, Compatibility::WgQuick) => return Err(ConfError::QuickName),
            (Some(Err(name)), Compatibility::Taupe) => return Err(ConfError::Name { name }),
            (None, Compatibility::Taupe) => return Err(ConfError::NeitherNameNorPath(path)),
        };
        match path.canonicalize() {
            Ok(real) => Ok(Self {
                interface,
                path: real,
                shown: path,
            }),
            Err(source) => Err(ConfError::Unreachable { path, source }),
        }
    }

    /// Returns the word by which `taupe up` finds the file from any folder: the name of a file in
    /// `/etc/wireguard`, or the absolute path.
    #[must_use]
    pub fn word(&self) -> String {
        let path = std::path::absolute(&self.shown).unwrap_or_else(|_| self.path.clone());
        if path == conf_file(&folder(), OsStr::new(self.interface.as_str())) {
            return self.interface.to_string();
        }
        path.display().to_string()
    }

    /// Returns the mode of the file, and the permission bits that its folders leave effective for
    /// other users: all if they can enter every folder, otherwise none. Both are 0 on systems
    /// without file modes.
    #[must_use]
    pub fn modes(&self) -> (u32, u32) {
        modes(&self.path)
    }

    /// Checks whether `wg-quick` would warn about the file's permissions. `wg-quick` only looks at
    /// the file and its folder, and regards a folder as closed if other users can enter but not
    /// list it.
    #[must_use]
    pub fn quick_warns(&self) -> bool {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        mode(&self.path) & mode(folder) & 0o007 != 0
    }
}

/// [`Conf::modes`] of the file at an absolute path without symbolic links.
pub(crate) fn modes(path: &Path) -> (u32, u32) {
    let folders = path.ancestors().skip(1);
    (mode(path), access_through(folders.map(mode)))
}

/// Returns the permission bits that folders with these modes leave effective for other users.
fn access_through(mut folders: impl Iterator<Item = u32>) -> u32 {
    if folders.all(|mode| mode & 0o001 != 0) {
        // Execute permission on a configuration file has no effect.
        0o006
    } else {
        0
    }
}

/// Returns the name of the interface that a word means. The file need not exist: it may have been
/// removed since the tunnel was brought up.
#[must_use]
pub fn interface(word: &OsStr) -> Option<InterfaceName> {
    if is_name(word) && !is_path(word) {
        return word.to_str()?.parse().ok();
    }
    name_of(Path::new(word))?.ok()
}

fn quick_path(folder: &Path, word: &OsStr) -> PathBuf {
    if is_name(word) {
        conf_file(folder, word)
    } else {
        PathBuf::from(word)
    }
}

fn own_path(folder: &Path, word: &OsStr) -> Result<PathBuf, ConfError> {
    if is_path(word) {
        Ok(PathBuf::from(word))
    } else if is_name(word) {
        Ok(conf_file(folder, word))
    } else if word.to_string_lossy().contains(is_separator) {
        Err(ConfError::NeitherNameNorPath(word.into()))
    } else {
        let name = word.to_string_lossy().into_owned();
        Err(ConfError::Name { name })
    }
}

/// Returns the folder with the file of a name: on FreeBSD and macOS the first of those in which
/// `wg-quick` looks, on other systems [`folder()`].
fn folder_of(name: &OsStr) -> PathBuf {
    let further = system::FURTHER_CONF_FOLDERS.into_iter().map(PathBuf::from);
    first_with(std::iter::once(folder()).chain(further), name).unwrap_or_else(folder)
}

fn first_with(mut folders: impl Iterator<Item = PathBuf>, name: &OsStr) -> Option<PathBuf> {
    folders.find(|folder| is_name(name) && conf_file(folder, name).exists())
}

/// Returns the path of the file of a name in a folder.
fn conf_file(folder: &Path, name: &OsStr) -> PathBuf {
    let mut file = name.to_owned();
    file.push(".conf");
    folder.join(file)
}

fn is_path(word: &OsStr) -> bool {
    word.as_encoded_bytes().ends_with(b".conf")
}

/// Checks whether `wg-quick` takes a word for the name of an interface.
fn is_name(word: &OsStr) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(byte);
    let bytes = word.as_encoded_bytes();
    (1..=LONGEST_NAME).contains(&bytes.len()) && bytes.iter().all(allowed)
}

/// Returns the tunnel's name for a `.conf` file, or the invalid name. `None` for other files.
fn name_of(path: &Path) -> Option<Result<InterfaceName, String>> {
    let file = path.file_name()?.to_string_lossy();
    let text = file.strip_suffix(".conf")?;
    let name = text.parse().ok().filter(|_| is_name(OsStr::new(text)));
    Some(name.ok_or_else(|| text.to_owned()))
}

/// Returns a hint about the file that may have been meant instead of a missing one.
fn hint(folder: &Path, word: &OsStr) -> String {
    let place = folder.display();
    if is_path(word) {
        let file = Path::new(word).file_name().unwrap_or_default();
        return match folder.join(file) {
            other if other.exists() => {
                format!("; to use {}, give only its name", other.display())
            }
            _ => String::new(),
        };
    }
    let here = conf_file(Path::new("."), word);
    if here.exists() {
        return format!("; to use the file in this folder, write {}", here.display());
    }
    if Path::new(word).is_file() {
        return format!(
            "; the name of a file has to end in \".conf\": rename the {} in this folder, or make a \
             link to it with such a name",
            word.display()
        );
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return format!("; there is no {place}: create it, or give the path of the file");
        }
        Err(error) => return format!("; {place} cannot be read: {error}"),
    };
    let names = entries
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()));
    let names = names.filter_map(|file| name_of(&file)?.ok());
    let mut names: Vec<_> = names.map(|name| name.to_string()).collect();
    names.sort_unstable();
    if names.is_empty() {
        format!("; {place} has no file whose name ends in \".conf\"")
    } else {
        format!("; {place} has: {}", names.join(", "))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
