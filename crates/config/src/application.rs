//! Applications in configuration files, and the rules that select them.
//!
//! This module parses and prints [`Application`]s without a look at the system. The caller finds
//! out whether a path exists or is a symbolic link, and which ID a user name has.
//! [`AppRules::decide`] is the reference for the decisions in the kernel.

mod rules;
mod user;
mod warning;
mod windows;

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use rules::{AppRules, AppVerdict, AppsOfUser, Children, Decision, Rule, UnknownUser};
pub use user::User;
pub use warning::AppWarning;
pub use windows::WindowsPath;

/// The longest name of a file or cgroup, in bytes (Linux's `NAME_MAX`).
const MAX_NAME: usize = 255;

/// The longest path, in bytes (Linux's `PATH_MAX`, less its NUL).
const MAX_PATH: usize = 4095;

/// Most components of a path that rules can match.
pub const MAX_DEPTH: usize = 32;

/// One entry of `AllowedApps` or `DisallowedApps`. `Display` prints it as in a file; parsing the
/// result returns the same entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Application {
    /// `firefox`, `fire*` or `name:two words`: executables of this name in any folder. ASCII case
    /// is ignored, and the pattern is in lower case. The name with `.exe` appended matches too; the
    /// pattern does not contain that.
    Name(Pattern),
    /// `/usr/bin/curl` or `exe:/usr/bin/curl`: the executable of this path. The path has no
    /// symbolic links, as in the kernel.
    Executable(String),
    /// `/opt/games/` or `dir:/opt/games`: the executables in this folder and its subfolders. Ends
    /// with `/`.
    Directory(String),
    /// `cgroup:app-firefox*`: processes in a control group of this name, or below one.
    /// Case-sensitive.
    CgroupName(Pattern),
    /// `cgroup:/system.slice/x.service`: processes in the control group of this path, as in
    /// `/proc/PID/cgroup`, or below it. Does not end with `/`, except for `/` itself.
    Cgroup(String),
    /// `uid:1000` or `uid:alice`: processes of this user.
    User(User),
    /// `flatpak:org.mozilla.firefox`: the Flatpak application of this ID.
    Flatpak(String),
    /// `snap:firefox`: all programs of the snap of this name.
    Snap(String),
    /// `C:\Games\game.exe` or `C:\Games\`: on Windows, an executable, or the executables in a
    /// folder and its subfolders.
    Windows(WindowsPath),
}

/// A name, or the beginning of one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Pattern {
    text: String,
    is_prefix: bool,
}

/// Reason why a text is not an application. `Display` completes the sentence "`text' is";
/// [`Self::fix`] says what to write instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ApplicationError {
    /// Empty entry.
    #[error("an empty entry: one comma too many")]
    Empty,
    /// No value after `uid:` or another kind.
    #[error("a kind of application without a value after the colon")]
    Missing,
    /// Unknown kind before a colon.
    #[error("of an unknown kind (the word before the colon)")]
    UnknownKind,
    /// A character that a list cannot contain.
    #[error("not allowed, because it contains a comma, a quotation mark, # or a control character")]
    Character,
    /// A blank or `;` instead of a comma.
    #[error("more than one application, or a name with a blank; only commas separate applications")]
    Separator,
    /// `C:\Program Files\x.exe`, or another text with a backslash.
    #[error("a Windows path, which matches nothing on this system")]
    WindowsPath,
    /// A relative path.
    #[error("a path that does not begin with /")]
    Relative,
    /// `name:` with a path.
    #[error("a path; expected a name")]
    NotAName,
    /// `exe:` with a folder.
    #[error("a folder; expected an executable")]
    Folder,
    /// A path with `.`, `..` or `//`.
    #[error("a path with . or .. or an empty component, which matches no process")]
    NotNormalised,
    /// A `*` that is not at the end of a name.
    #[error("not allowed, because a * can only be at the end of a name")]
    Wildcard,
    /// Longer than the system's limit.
    #[error("longer than a name ({MAX_NAME} bytes) or path ({MAX_PATH} bytes) can be")]
    TooLong,
    /// More than [`MAX_DEPTH`] components.
    #[error("a path of more than {MAX_DEPTH} components, which cannot be matched")]
    TooDeep,
    /// A cgroup's path in the file system.
    #[error("the mount point of a control group, not its path")]
    CgroupMount,
    /// Neither a user ID nor a possible user name.
    #[error("neither a user ID (0 to 4294967294) nor a user name")]
    User,
    /// Not a Flatpak ID.
    #[error("not the ID of a Flatpak application")]
    Flatpak,
    /// Not a snap name.
    #[error("not the name of a snap")]
    Snap,
}

impl ApplicationError {
    /// Returns advice, in the imperative.
    #[must_use]
    pub fn fix(self) -> &'static str {
        match self {
            Self::Empty => "delete the comma",
            Self::Missing => {
                "write a value after the colon, for example uid:1000 or dir:/opt/games/"
            }
            Self::UnknownKind => {
                "write name:, exe:, dir:, cgroup:, uid:, flatpak: or snap:, or only a name or path"
            }
            Self::Character => {
                "separate applications by commas; if the character is part of a path, name the folder \
                 instead, for example /opt/games/"
            }
            Self::Separator => {
                "write, for example, firefox, curl, or name:two words for a name with a blank"
            }
            Self::WindowsPath => {
                "write a name or a path of this system, for example firefox or /usr/bin/curl"
            }
            Self::Relative => {
                "write the complete path, for example /usr/bin/curl, or only the name"
            }
            Self::NotAName => "delete name:, or write only the name",
            Self::Folder => "write dir: instead of exe:, or the path of an executable",
            Self::NotNormalised => "write the path that `realpath` prints",
            Self::Wildcard => {
                "write, for example, fire*, or /opt/games/ for all executables in a folder"
            }
            Self::TooLong => "shorten it",
            Self::TooDeep => "name a parent folder, or only the executable's name",
            Self::CgroupMount => {
                "write the path from /proc/PID/cgroup, for example cgroup:/system.slice/x.service"
            }
            Self::User => "write, for example, uid:1000 or uid:alice",
            Self::Flatpak => "write, for example, flatpak:org.mozilla.firefox (see `flatpak list`)",
            Self::Snap => "write, for example, snap:firefox (see `snap list`)",
        }
    }
}

impl Pattern {
    /// Returns the name, or its beginning.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if the text is only the beginning (`*`).
    #[must_use]
    pub fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    /// Parses a name with an optional `*` at the end.
    fn new(text: &str) -> Result<Self, ApplicationError> {
        let (text, is_prefix) = match text.strip_suffix('*') {
            Some(text) => (text, true),
            None => (text, false),
        };
        if text.contains('*') {
            return Err(ApplicationError::Wildcard);
        }
        if text.len() > MAX_NAME {
            return Err(ApplicationError::TooLong);
        }
        if !is_prefix && matches!(text, "." | "..") {
            return Err(ApplicationError::NotNormalised);
        }
        Ok(Self {
            text: text.to_owned(),
            is_prefix,
        })
    }

    /// Returns true if it matches every name that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        if self.is_prefix {
            other.text.starts_with(&self.text)
        } else {
            self == other
        }
    }

    /// Matches a name literally.
    fn matches(&self, name: &[u8]) -> bool {
        if self.is_prefix {
            name.starts_with(self.text.as_bytes())
        } else {
            name == self.text.as_bytes()
        }
    }

    /// Matches the name of an executable.
    fn matches_executable(&self, name: &[u8]) -> bool {
        let name = name.to_ascii_lowercase();
        self.matches(&name)
            || !self.is_prefix
                && name
                    .strip_suffix(b".exe")
                    .is_some_and(|name| self.matches(name))
    }
}

impl FromStr for Application {
    type Err = ApplicationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ApplicationError::Empty);
        }
        if text.contains(|c: char| c.is_control() || matches!(c, '"' | '\'' | '`' | ',' | '#')) {
            return Err(ApplicationError::Character);
        }
        if cfg!(windows)
            && let Some(path) = WindowsPath::parse(text)
        {
            return path.map(Self::Windows);
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if !kind.contains('/') => (kind, rest.trim()),
            _ => return without_kind(text),
        };
        if kind.len() == 1 && rest.starts_with(['\\', '/']) {
            return Err(ApplicationError::WindowsPath);
        }
        let kind = kind.to_ascii_lowercase();
        let read = match kind.as_str() {
            "name" => name,
            "exe" => executable,
            "dir" => directory,
            "cgroup" => cgroup,
            "uid" => user,
            "flatpak" => flatpak,
            "snap" => snap,
            _ => return Err(ApplicationError::UnknownKind),
        };
        if rest.is_empty() {
            return Err(ApplicationError::Missing);
        }
        read(rest)
    }
}

/// Parses an application without a kind.
fn without_kind(text: &str) -> Result<Application, ApplicationError> {
    if text.ends_with('/') && text.starts_with('/') {
        directory(text)
    } else if text.starts_with('/') {
        executable(text)
    } else if text.contains('\\') {
        Err(ApplicationError::WindowsPath)
    } else if text.contains(is_separator) {
        Err(ApplicationError::Separator)
    } else if text.contains('/') {
        Err(ApplicationError::Relative)
    } else {
        name(text)
    }
}

fn name(text: &str) -> Result<Application, ApplicationError> {
    if text.contains('\\') {
        return Err(ApplicationError::WindowsPath);
    }
    if text.contains('/') {
        return Err(ApplicationError::NotAName);
    }
    let mut text = text.to_ascii_lowercase();
    while let Some(shorter) = text
        .strip_suffix(".exe")
        .filter(|name| !name.is_empty() && !name.ends_with('*'))
    {
        text.truncate(shorter.len());
    }
    Pattern::new(text.trim()).map(Application::Name)
}

fn executable(text: &str) -> Result<Application, ApplicationError> {
    if text.ends_with('/') {
        return Err(ApplicationError::Folder);
    }
    Ok(Application::Executable(path(text)?.to_owned()))
}

fn directory(text: &str) -> Result<Application, ApplicationError> {
    let path = path(text.strip_suffix('/').unwrap_or(text))?;
    Ok(Application::Directory(format!("{path}/")))
}

/// Checks the path of a file, without a trailing `/`. The empty text is the root.
fn path(text: &str) -> Result<&str, ApplicationError> {
    if text.contains('\\') {
        return Err(ApplicationError::WindowsPath);
    }
    let mut parts = text.split(is_separator).skip(1);
    if parts.any(|part| part.starts_with('/')) {
        return Err(ApplicationError::Separator);
    }
    if text.contains('*') {
        return Err(ApplicationError::Wildcard);
    }
    absolute(text)
}

/// Checks that a path has the form that the kernel reports.
fn absolute(text: &str) -> Result<&str, ApplicationError> {
    if text.is_empty() {
        return Ok(text);
    }
    let parts = text.strip_prefix('/').ok_or(ApplicationError::Relative)?;
    let parts = parts.split('/');
    if text.len() > MAX_PATH || parts.clone().any(|part| part.len() > MAX_NAME) {
        return Err(ApplicationError::TooLong);
    }
    if parts.clone().any(|part| matches!(part, "" | "." | "..")) {
        return Err(ApplicationError::NotNormalised);
    }
    if parts.count() > MAX_DEPTH {
        return Err(ApplicationError::TooDeep);
    }
    Ok(text)
}

fn cgroup(text: &str) -> Result<Application, ApplicationError> {
    if text.contains(is_separator) {
        return Err(ApplicationError::Separator);
    }
    if !text.contains('/') {
        return Pattern::new(text).map(Application::CgroupName);
    }
    // A trailing `/*` is redundant: the entry includes all groups below.
    let text = text
        .strip_suffix('*')
        .filter(|rest| rest.ends_with('/'))
        .unwrap_or(text);
    if text.contains('*') {
        return Err(ApplicationError::Wildcard);
    }
    let path = absolute(text.strip_suffix('/').unwrap_or(text))?;
    if is_below(path, "/sys/fs/cgroup") {
        return Err(ApplicationError::CgroupMount);
    }
    Ok(Application::Cgroup(match path {
        "" => "/".to_owned(),
        _ => path.to_owned(),
    }))
}

fn user(text: &str) -> Result<Application, ApplicationError> {
    text.parse().map(Application::User)
}

fn flatpak(text: &str) -> Result<Application, ApplicationError> {
    let plausible = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    let fits = text.len() <= MAX_NAME && text.contains('.') && text.split('.').all(plausible);
    fits.then(|| Application::Flatpak(text.to_owned()))
        .ok_or(ApplicationError::Flatpak)
}

fn snap(text: &str) -> Result<Application, ApplicationError> {
    // A name, optionally with an instance key: `firefox_work`.
    let plausible =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let fits = text.len() <= MAX_NAME && text.bytes().all(plausible);
    fits.then(|| Application::Snap(text.to_owned()))
        .ok_or(ApplicationError::Snap)
}

/// Characters besides a comma with which users separate applications.
fn is_separator(character: char) -> bool {
    character == ';' || character.is_whitespace()
}

/// Returns true if a path is `folder` or below it. Neither has a trailing `/`.
fn is_below(path: &str, folder: &str) -> bool {
    is_within(path.as_bytes(), folder.as_bytes())
}

fn is_within(path: &[u8], folder: &[u8]) -> bool {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    path.strip_prefix(folder)
        .is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
}

/// Returns the last component of a path.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_prefix { "*" } else { "" };
        write!(f, "{}{star}", self.text)
    }
}

impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => {
                let plain = |c| c != ':' && !is_separator(c);
                if pattern.text.chars().all(plain) {
                    pattern.fmt(f)
                } else {
                    write!(f, "name:{pattern}")
                }
            }
            Self::Executable(path) | Self::Directory(path) => f.write_str(path),
            Self::CgroupName(pattern) => write!(f, "cgroup:{pattern}"),
            Self::Cgroup(path) => write!(f, "cgroup:{path}"),
            Self::User(user) => write!(f, "uid:{user}"),
            Self::Flatpak(id) => write!(f, "flatpak:{id}"),
            Self::Snap(name) => write!(f, "snap:{name}"),
            Self::Windows(path) => path.fmt(f),
        }
    }
}

/// Properties of a process that rules match.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Path of the executable, without symbolic links. Empty for processes without one, such as
    /// kernel threads.
    pub path: &'a [u8],
    /// Name of the executable: the last component of its path.
    pub name: &'a [u8],
    /// Path of its control group in the cgroup2 hierarchy, as in `/proc/PID/cgroup`.
    pub cgroup: &'a [u8],
    /// Its user ID.
    pub uid: u32,
}

impl Application {
    /// Parses an application by the rules of Windows, on any system. On Windows, [`str::parse`]
    /// does the same.
    ///
    /// # Errors
    /// As [`str::parse`].
    pub fn parse_windows(text: &str) -> Result<Self, ApplicationError> {
        match WindowsPath::parse(text.trim()) {
            Some(path) => path.map(Self::Windows),
            None => text.parse(),
        }
    }

    /// Returns true if a process belongs to the application. An unresolved user name matches no
    /// process.
    #[must_use]
    pub fn matches(&self, process: &Process<'_>) -> bool {
        match self {
            Self::Name(pattern) => {
                !process.name.is_empty() && pattern.matches_executable(process.name)
            }
            Self::Executable(path) => process.path == path.as_bytes(),
            Self::Directory(folder) => process.path.starts_with(folder.as_bytes()),
            Self::Cgroup(path) => is_within(process.cgroup, path.as_bytes()),
            Self::User(User::Id(id)) => process.uid == *id,
            Self::User(User::Name(_)) => false,
            Self::Windows(path) => path.matches(process.path),
            Self::CgroupName(_) | Self::Flatpak(_) | Self::Snap(_) => {
                let pattern = self.cgroup_name();
                pattern.is_some_and(|pattern| in_cgroup(&pattern, process.cgroup))
            }
        }
    }

    /// Returns the name of the control groups that the application consists of, if it is identified
    /// by control groups. A process belongs to it if its control group or one above has this name.
    ///
    /// Flatpak starts an application in `app-flatpak-ID-NUMBER.scope`; systemd's escapes replace
    /// characters other than letters, digits, `_` and `.`. snapd uses
    /// `snap.NAME.PROGRAM-UUID.scope` or `snap.NAME.PROGRAM.service`.
    #[must_use]
    pub fn cgroup_name(&self) -> Option<Pattern> {
        let text = match self {
            Self::CgroupName(pattern) => return Some(pattern.clone()),
            Self::Flatpak(id) => format!("app-flatpak-{}-", id.replace('-', r"\x2d")),
            Self::Snap(name) => format!("snap.{name}."),
            _ => return None,
        };
        Some(Pattern {
            text,
            is_prefix: true,
        })
    }

    /// Returns true if it names executables. Children inherit only such rules: a child of a matched
    /// user's or control group's process has the same user or group anyway.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        match self {
            Self::Name(_) | Self::Executable(_) | Self::Directory(_) | Self::Windows(_) => true,
            Self::CgroupName(_)
            | Self::Cgroup(_)
            | Self::User(_)
            | Self::Flatpak(_)
            | Self::Snap(_) => false,
        }
    }

    /// Returns true if every process of `other` belongs to this application, as far as that follows
    /// from the entries alone.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.covers(b),
            (Self::Name(a), Self::Executable(path)) => {
                a.matches_executable(file_name(path.as_bytes()))
            }
            (Self::Directory(a), Self::Directory(b) | Self::Executable(b)) => b.starts_with(a),
            (Self::Cgroup(a), Self::Cgroup(b)) => is_below(b, a),
            (Self::Windows(a), Self::Windows(b)) => a.covers(b),
            (Self::Name(a), Self::Windows(b)) => a.matches_executable(b.name().as_bytes()),
            _ if self == other => true,
            _ => self.cgroup_name().is_some_and(|a| match other {
                Self::Cgroup(path) => in_cgroup(&a, path.as_bytes()),
                _ => other.cgroup_name().is_some_and(|b| a.covers(&b)),
            }),
        }
    }
}

/// Returns true if any component of a control group's path matches.
fn in_cgroup(pattern: &Pattern, path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    parts.any(|part| !part.is_empty() && pattern.matches(part))
}

#[cfg(test)]
mod tests;
