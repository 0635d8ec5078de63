//! Errors and warnings about a configuration file, each with its position and a fix.

use crate::conf::{self, Conf};
use crate::system;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use taupe_config::file::{
    self, Compatibility, Diagnostic, Dialect, KeyFile, KeyFileProblem, MAX_FILE, MAX_KEY_FILE,
    Parsed, Severity,
};
use zeroize::Zeroizing;

/// A file that has been read, with everything found in it.
pub struct Checked {
    /// The parsed file. `None` if it has errors.
    pub file: Option<file::File>,
    /// Content of the file.
    pub text: Zeroizing<Vec<u8>>,
    /// Errors and warnings, by position.
    pub remarks: Vec<Remark>,
}

/// An error or a warning at a position in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remark {
    file: PathBuf,
    /// The program for which the file was checked.
    pub compatibility: Compatibility,
    /// The error or warning.
    pub diagnostic: Diagnostic,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}{}", .path.display(), advice(.source))]
pub struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

/// Reads a file and reports everything that is wrong with it for `compatibility`.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn check(conf: &Conf, compatibility: Compatibility) -> Result<Checked, Unreadable> {
    Ok(check_text(conf, compatibility, text_of(conf)?))
}

/// [`check()`] without warnings about the file's applications on this system, for commands that do
/// not repeat them.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn check_without_apps(
    conf: &Conf,
    compatibility: Compatibility,
) -> Result<Checked, Unreadable> {
    let text = text_of(conf)?;
    let parsed = parse(&conf.path, &text, compatibility.dialect());
    Ok(checked(conf, compatibility, text, parsed))
}

/// [`check_without_apps()`] with Taupe's rules, for commands that need no key. Key files may be
/// missing.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn check_with_available_keys(conf: &Conf) -> Result<Checked, Unreadable> {
    let text = text_of(conf)?;
    let parsed = parse_with_available_keys(&conf.path, &text);
    Ok(checked(conf, Compatibility::Taupe, text, parsed))
}

/// Parses a file with the keys from its key files. If that fails, parses it without them: for a
/// command that needs no key, a key file may not exist yet or no longer. The private key is used if
/// there is one, because it shows which `[Peer]` is this tunnel itself.
#[must_use]
pub fn parse_with_available_keys(path: &Path, text: &[u8]) -> Parsed {
    let parsed = parse(path, text, Dialect::Taupe);
    match parsed.file {
        Some(_) => parsed,
        None => file::parse_without_key_files(text, Dialect::Taupe),
    }
}

/// [`check()`] for a text that is to become the content of the file.
#[must_use]
pub fn check_text(conf: &Conf, compatibility: Compatibility, text: Zeroizing<Vec<u8>>) -> Checked {
    let mut parsed = parse(&conf.path, &text, compatibility.dialect());
    if compatibility == Compatibility::Taupe {
        system::warn_of_applications(&text, &mut parsed);
    }
    checked(conf, compatibility, text, parsed)
}

fn checked(
    conf: &Conf,
    compatibility: Compatibility,
    text: Zeroizing<Vec<u8>>,
    mut parsed: Parsed,
) -> Checked {
    let (mode, access) = conf.modes();
    parsed.check_permissions(mode, access);
    let remark = |diagnostic| Remark {
        file: conf.shown.clone(),
        compatibility,
        diagnostic,
    };
    Checked {
        file: parsed.file,
        text,
        remarks: parsed.diagnostics.into_iter().map(remark).collect(),
    }
}

fn text_of(conf: &Conf) -> Result<Zeroizing<Vec<u8>>, Unreadable> {
    read(&conf.path).map_err(|source| Unreadable {
        path: conf.shown.clone(),
        source,
    })
}

/// Parses `text` as the content of the file at `path`. Relative paths of key files begin at
/// its folder.
#[must_use]
pub fn parse(path: &Path, text: &[u8], dialect: Dialect) -> Parsed {
    let folder = folder(path);
    file::parse_with(text, dialect, &|path| key_file_of_conf(&folder.join(path)))
}

/// Returns the part of a file that `wg setconf` accepts, with the keys from files in place.
#[must_use]
pub fn strip(conf: &Conf, text: &[u8], dialect: Dialect) -> Zeroizing<Vec<u8>> {
    let folder = folder(&conf.path);
    file::strip(text, dialect, folder, &|path| {
        key_file_of_conf(&folder.join(path))
    })
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Reads a key file that a configuration names, and its permissions.
fn key_file_of_conf(path: &Path) -> Result<KeyFile, KeyFileProblem> {
    let text = key_file(path)?;
    // A link's parent folders are not those of its target.
    let real = path.canonicalize();
    let (mode, access) = real.map_or((0, 0), |path| conf::modes(&path));
    let others = mode & access & 0o007;
    Ok(KeyFile { text, others })
}

/// Reads a file with a key into memory that is erased when dropped.
///
/// # Errors
/// Fails if the file cannot be read or is too long for a key.
pub fn key_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileProblem> {
    // If the buffer had to grow, it would leave copies of a private key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_KEY_FILE + 1));
    File::open(path)
        .and_then(|file| file.take(MAX_KEY_FILE as u64 + 1).read_to_end(&mut text))
        .map_err(|error| KeyFileProblem::Unreadable(error.to_string()))?;
    match text.len() {
        ..=MAX_KEY_FILE => Ok(text),
        _ => Err(KeyFileProblem::TooLong),
    }
}

/// Reads a file into memory that is erased when dropped. Reads at most [`MAX_FILE`] bytes and one
/// more, by which the caller detects a longer file.
///
/// # Errors
/// Returns the system's error.
pub fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let file = File::open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let most = MAX_FILE + 1;
    // If the buffer had to grow, it would leave copies of secrets behind.
    let mut text = Zeroizing::new(Vec::with_capacity(length.min(MAX_FILE) + 1));
    file.take(most as u64).read_to_end(&mut text)?;
    Ok(text)
}

fn advice(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("; only the file's owner and {} can", system::ADMINISTRATOR)
        }
        _ => String::new(),
    }
}

impl Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        let Diagnostic {
            line,
            column,
            severity,
            kind,
        } = &self.diagnostic;
        let fix = kind.fix();
        write!(
            f,
            "{file}:{line}:{column}: {severity}: {kind}\n  fix: {fix}"
        )
    }
}

/// Counts errors and warnings in words: `1 error and 2 warnings`.
#[must_use]
pub fn count(remarks: &[Remark]) -> String {
    let of = |severity, word: &str| {
        let found = remarks
            .iter()
            .filter(|remark| remark.diagnostic.severity == severity);
        match found.count() {
            0 => None,
            1 => Some(format!("1 {word}")),
            count => Some(format!("{count} {word}s")),
        }
    };
    let counts = [
        of(Severity::Error, "error"),
        of(Severity::Warning, "warning"),
    ];
    let counts: Vec<_> = counts.into_iter().flatten().collect();
    counts.join(" and ")
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
