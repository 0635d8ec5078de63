//! Applications as a file names them, and which of them use the tunnel.
//!
//! An [`Application`] is read from text and printed as text, here without a look
//! at the system: whether a path exists, is a symbolic link, or who has a user's
//! name, is for the caller to find out. [`AppRules::decide`] is the reference for
//! whoever decides in the kernel.

mod doubt;
mod rules;
mod windows;

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

pub use doubt::Doubt;
pub use rules::{AppRules, Children, Decision, Judgement, Rule};
pub use windows::Place;

/// The longest name of a file or cgroup, in bytes (Linux's `NAME_MAX`).
const MAX_NAME: usize = 255;

/// The longest path, in bytes (Linux's `PATH_MAX`, less its NUL).
const MAX_PATH: usize = 4095;

/// How many parts a path can have that is still recognised.
pub const MAX_DEPTH: usize = 32;

/// What one entry of `AllowedApps` or `DisallowedApps` stands for. `Display`
/// prints it as a file has it; what it prints is read back as the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Application {
    /// `firefox`, `fire*` or `name:two words`: executables of this name,
    /// whichever folder they are in. Case does not matter in ASCII; the pattern
    /// is in lower case. An executable whose name has `.exe` behind it is meant
    /// as well, and the pattern is without.
    Name(Pattern),
    /// `/usr/bin/curl` or `exe:/usr/bin/curl`: the executable of this path, as
    /// the kernel has it: without symbolic links.
    Executable(String),
    /// `/opt/games/` or `dir:/opt/games`: the executables in this folder and all
    /// below it. With the `/` at the end.
    Directory(String),
    /// `cgroup:app-firefox*`: what runs in a control group of this name, or below
    /// one. Case matters.
    CgroupName(Pattern),
    /// `cgroup:/system.slice/x.service`: what runs in the control group of this
    /// path, as `/proc/PID/cgroup` tells it, or below it. Without a `/` at the
    /// end, but for `/` itself.
    Cgroup(String),
    /// `uid:1000` or `uid:alice`: what runs as this user.
    User(User),
    /// `flatpak:org.mozilla.firefox`: the Flatpak application of this ID.
    Flatpak(String),
    /// `snap:firefox`: all programs of the snap of this name.
    Snap(String),
    /// `C:\Games\game.exe` or `C:\Games\`: an executable, or all in a folder and below it,
    /// on Windows.
    Windows(Place),
}

/// A name, or what a name begins with.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pattern {
    text: String,
    open: bool,
}

/// A user.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum User {
    /// By number.
    Id(u32),
    /// By a name that is still to be looked up.
    Name(String),
}

/// Why a text names no application. `Display` is the reason, to follow
/// "`text' is"; [`Self::fix`] says what to write instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ApplicationError {
    /// Nothing between two commas.
    #[error("nothing: two commas follow each other, or one stands at the end")]
    Empty,
    /// Nothing behind `uid:` and the like.
    #[error("only the kind of an application, with nothing behind the colon")]
    Missing,
    /// Something else than `name:`, `uid:` and the like in front of a colon.
    #[error("of no kind that there is: what stands in front of the colon means nothing here")]
    Kind,
    /// A character that cannot stand in a list.
    #[error(
        "with a character that no entry of a list can have: a comma, a quotation mark, # or a \
         control character"
    )]
    Character,
    /// A blank or `;` where a comma separates.
    #[error("more than one application, or a name with a blank: only commas separate")]
    Separator,
    /// `C:\Program Files\x.exe`, or anything with a backslash.
    #[error("a path of Windows, which means nothing here")]
    Windows,
    /// A path that begins nowhere.
    #[error("a path that does not begin with /")]
    Relative,
    /// `name:` with a path.
    #[error("a path where a name is expected")]
    NotAName,
    /// `exe:` with a folder.
    #[error("a folder where an executable is expected")]
    Folder,
    /// A path with `.`, `..` or `//`.
    #[error("a path with . or .. or an empty part, which the kernel never has")]
    Dots,
    /// A `*` elsewhere than at the end of a name.
    #[error("with a * where none can be: it stands only at the end of a name")]
    Star,
    /// Longer than the system lets it be.
    #[error("longer than any name ({MAX_NAME} bytes) or path ({MAX_PATH} bytes) on this system")]
    Long,
    /// More than [`MAX_DEPTH`] parts.
    #[error("a path of more than {MAX_DEPTH} parts, which is not recognised")]
    Deep,
    /// A cgroup where it is mounted.
    #[error("the place where a cgroup is mounted, not its path")]
    Mount,
    /// Neither a user's number nor a possible name.
    #[error("neither the number of a user (0 to 4294967294) nor a user's name")]
    User,
    /// Not an ID.
    #[error("not the ID of a Flatpak application")]
    Flatpak,
    /// Not a snap's name.
    #[error("not the name of a snap")]
    Snap,
}

impl ApplicationError {
    /// What to do, in the imperative.
    #[must_use]
    pub fn fix(self) -> &'static str {
        match self {
            Self::Empty => "delete the comma",
            Self::Missing => "write what is meant behind it, such as uid:1000 or dir:/opt/games/",
            Self::Kind => {
                "write name:, exe:, dir:, cgroup:, uid:, flatpak: or snap:, or a name or path alone"
            }
            Self::Character => {
                "give several one after the other; of one that is so called, name the folder it is in, \
                 such as /opt/games/"
            }
            Self::Separator => "write such as firefox, curl; a name with a blank as name:two words",
            Self::Windows => "write such as firefox, or the path on this system: /usr/bin/curl",
            Self::Relative => "write the whole path, such as /usr/bin/curl, or the name alone",
            Self::NotAName => "leave name: out, or write the name alone",
            Self::Folder => "write dir: in place of exe:, or the path of one executable",
            Self::Dots => "write the path that `realpath` prints",
            Self::Star => "write such as fire*, or /opt/games/ for all that is in a folder",
            Self::Long => "check what was meant",
            Self::Deep => "name a folder further up, or the executable's name alone",
            Self::Mount => {
                "write it as /proc/PID/cgroup has it, such as cgroup:/system.slice/x.service"
            }
            Self::User => "write such as uid:1000 or uid:alice",
            Self::Flatpak => "write such as flatpak:org.mozilla.firefox (`flatpak list` tells it)",
            Self::Snap => "write such as snap:firefox (`snap list` tells it)",
        }
    }
}

impl Pattern {
    /// The whole name, or its beginning.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the text is only the beginning (`*`).
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Reads a name with or without a `*` at the end.
    fn new(text: &str) -> Result<Self, ApplicationError> {
        let (text, open) = match text.strip_suffix('*') {
            Some(text) => (text, true),
            None => (text, false),
        };
        if text.contains('*') {
            return Err(ApplicationError::Star);
        }
        if text.len() > MAX_NAME {
            return Err(ApplicationError::Long);
        }
        if !open && matches!(text, "." | "..") {
            return Err(ApplicationError::Dots);
        }
        Ok(Self {
            text: text.to_owned(),
            open,
        })
    }

    /// Whether it fits every name that `other` fits.
    fn covers(&self, other: &Self) -> bool {
        if self.open {
            other.text.starts_with(&self.text)
        } else {
            self == other
        }
    }

    /// Whether it fits a name as it is.
    fn fits(&self, name: &[u8]) -> bool {
        if self.open {
            name.starts_with(self.text.as_bytes())
        } else {
            name == self.text.as_bytes()
        }
    }

    /// Whether it fits the name of an executable.
    fn fits_executable(&self, name: &[u8]) -> bool {
        let name = name.to_ascii_lowercase();
        self.fits(&name)
            || !self.open
                && name
                    .strip_suffix(b".exe")
                    .is_some_and(|name| self.fits(name))
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
            && let Some(place) = Place::read(text)
        {
            return place.map(Self::Windows);
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) if !kind.contains('/') => (kind, rest.trim()),
            _ => return bare(text),
        };
        if kind.len() == 1 && rest.starts_with(['\\', '/']) {
            return Err(ApplicationError::Windows);
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
            _ => return Err(ApplicationError::Kind),
        };
        if rest.is_empty() {
            return Err(ApplicationError::Missing);
        }
        read(rest)
    }
}

/// An application without its kind in front.
fn bare(text: &str) -> Result<Application, ApplicationError> {
    if text.ends_with('/') && text.starts_with('/') {
        directory(text)
    } else if text.starts_with('/') {
        executable(text)
    } else if text.contains('\\') {
        Err(ApplicationError::Windows)
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
        return Err(ApplicationError::Windows);
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

/// Checks the path of a file, without a `/` at its end: nothing is the root.
fn path(text: &str) -> Result<&str, ApplicationError> {
    if text.contains('\\') {
        return Err(ApplicationError::Windows);
    }
    let mut parts = text.split(is_separator).skip(1);
    if parts.any(|part| part.starts_with('/')) {
        return Err(ApplicationError::Separator);
    }
    if text.contains('*') {
        return Err(ApplicationError::Star);
    }
    absolute(text)
}

/// Checks that a path has the form that the kernel gives it.
fn absolute(text: &str) -> Result<&str, ApplicationError> {
    if text.is_empty() {
        return Ok(text);
    }
    let parts = text.strip_prefix('/').ok_or(ApplicationError::Relative)?;
    let parts = parts.split('/');
    if text.len() > MAX_PATH || parts.clone().any(|part| part.len() > MAX_NAME) {
        return Err(ApplicationError::Long);
    }
    if parts.clone().any(|part| matches!(part, "" | "." | "..")) {
        return Err(ApplicationError::Dots);
    }
    if parts.count() > MAX_DEPTH {
        return Err(ApplicationError::Deep);
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
    // What is below belongs to it anyway.
    let text = text
        .strip_suffix('*')
        .filter(|rest| rest.ends_with('/'))
        .unwrap_or(text);
    if text.contains('*') {
        return Err(ApplicationError::Star);
    }
    let path = absolute(text.strip_suffix('/').unwrap_or(text))?;
    if is_below(path, "/sys/fs/cgroup") {
        return Err(ApplicationError::Mount);
    }
    Ok(Application::Cgroup(match path {
        "" => "/".to_owned(),
        _ => path.to_owned(),
    }))
}

fn user(text: &str) -> Result<Application, ApplicationError> {
    let user = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The greatest number stands for nobody (POSIX: (uid_t)-1).
        let id = text.parse().ok().filter(|id| *id != u32::MAX);
        id.map(User::Id)
    } else {
        let plausible =
            |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '$' | '@' | '\\');
        let fits = !text.starts_with('-') && text.len() <= MAX_NAME && text.chars().all(plausible);
        fits.then(|| User::Name(text.to_owned()))
    };
    user.map(Application::User).ok_or(ApplicationError::User)
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
    // A name, perhaps with the key of an instance behind it: `firefox_work`.
    let plausible =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_');
    let fits = text.len() <= MAX_NAME && text.bytes().all(plausible);
    fits.then(|| Application::Snap(text.to_owned()))
        .ok_or(ApplicationError::Snap)
}

/// What people write between applications besides a comma.
fn is_separator(character: char) -> bool {
    character == ';' || character.is_whitespace()
}

/// Whether a path is `folder` or lies below it; neither has a `/` at its end.
fn is_below(path: &str, folder: &str) -> bool {
    is_within(path.as_bytes(), folder.as_bytes())
}

fn is_within(path: &[u8], folder: &[u8]) -> bool {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    path.strip_prefix(folder)
        .is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
}

/// The last part of a path.
fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.open { "*" } else { "" };
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
            Self::User(User::Id(id)) => write!(f, "uid:{id}"),
            Self::User(User::Name(name)) => write!(f, "uid:{name}"),
            Self::Flatpak(id) => write!(f, "flatpak:{id}"),
            Self::Snap(name) => write!(f, "snap:{name}"),
            Self::Windows(place) => place.fmt(f),
        }
    }
}

/// A process, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// The path of its executable, without symbolic links; empty when it has none,
    /// like the kernel's own.
    pub path: &'a [u8],
    /// The executable's name: the last part of its path.
    pub name: &'a [u8],
    /// The path of its control group in the hierarchy of cgroup2, as
    /// `/proc/PID/cgroup` tells it.
    pub cgroup: &'a [u8],
    /// The number of the user that it runs as.
    pub uid: u32,
}

impl Application {
    /// Reads an application as Windows names it, on any system. There it is what
    /// [`str::parse`] does.
    ///
    /// # Errors
    /// As [`str::parse`].
    pub fn of_windows(text: &str) -> Result<Self, ApplicationError> {
        match Place::read(text.trim()) {
            Some(place) => place.map(Self::Windows),
            None => text.parse(),
        }
    }

    /// Whether a process belongs to it. A user whose name has not been looked up
    /// has none.
    #[must_use]
    pub fn matches(&self, process: &Process<'_>) -> bool {
        match self {
            Self::Name(pattern) => {
                !process.name.is_empty() && pattern.fits_executable(process.name)
            }
            Self::Executable(path) => process.path == path.as_bytes(),
            Self::Directory(folder) => process.path.starts_with(folder.as_bytes()),
            Self::Cgroup(path) => is_within(process.cgroup, path.as_bytes()),
            Self::User(User::Id(id)) => process.uid == *id,
            Self::User(User::Name(_)) => false,
            Self::Windows(place) => place.fits(process.path),
            Self::CgroupName(_) | Self::Flatpak(_) | Self::Snap(_) => {
                let pattern = self.cgroup_name();
                pattern.is_some_and(|pattern| in_cgroup(&pattern, process.cgroup))
            }
        }
    }

    /// The name of the control groups that it is, if it is told by that: of one
    /// above a process, or the process's own.
    ///
    /// Flatpak starts an application in `app-flatpak-ID-NUMBER.scope`, where
    /// systemd's escapes stand for what is neither letter, digit, `_` nor `.`; snapd
    /// in `snap.NAME.PROGRAM-UUID.scope` or `snap.NAME.PROGRAM.service`.
    #[must_use]
    pub fn cgroup_name(&self) -> Option<Pattern> {
        let text = match self {
            Self::CgroupName(pattern) => return Some(pattern.clone()),
            Self::Flatpak(id) => format!("app-flatpak-{}-", id.replace('-', r"\x2d")),
            Self::Snap(name) => format!("snap.{name}."),
            _ => return None,
        };
        Some(Pattern { text, open: true })
    }

    /// Checks whether it names executables. Children inherit only a rule that does: those of a
    /// user's or a control group's process belong to the same user or group anyway.
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

    /// Whether every process that belongs to `other` belongs to it, as far as
    /// that can be told without a look at the system.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.covers(b),
            (Self::Name(a), Self::Executable(path)) => a.fits_executable(last(path.as_bytes())),
            (Self::Directory(a), Self::Directory(b) | Self::Executable(b)) => b.starts_with(a),
            (Self::Cgroup(a), Self::Cgroup(b)) => is_below(b, a),
            (Self::Windows(a), Self::Windows(b)) => a.covers(b),
            (Self::Name(a), Self::Windows(b)) => a.fits_executable(b.name().as_bytes()),
            _ if self == other => true,
            _ => self.cgroup_name().is_some_and(|a| match other {
                Self::Cgroup(path) => in_cgroup(&a, path.as_bytes()),
                _ => other.cgroup_name().is_some_and(|b| a.covers(&b)),
            }),
        }
    }
}

/// Whether any part of a control group's path has a name.
fn in_cgroup(pattern: &Pattern, path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    parts.any(|part| !part.is_empty() && pattern.fits(part))
}

#[cfg(test)]
mod tests;
