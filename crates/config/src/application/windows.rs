//! Windows paths: `C:\Games\game.exe` is an executable, `C:\Games\` means all executables in that
//! folder and its subfolders. Case is ignored, and `/` equals `\`.

use core::fmt;
use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{ApplicationError, MAX_NAME, MAX_PATH};

/// An executable or a folder.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct WindowsPath {
    /// Separated by `\`. Ends with `\` if it is a folder.
    path: String,
}

impl WindowsPath {
    /// Parses a path, with optional `exe:` or `dir:`. Returns `None` if it is not a Windows path.
    pub(super) fn parse(text: &str) -> Option<Result<Self, ApplicationError>> {
        let (kind, path) = match text.split_once(':') {
            Some((kind, rest)) if kind.eq_ignore_ascii_case("exe") => (Some(false), rest.trim()),
            Some((kind, rest)) if kind.eq_ignore_ascii_case("dir") => (Some(true), rest.trim()),
            _ => (None, text),
        };
        let is_absolute = match path.as_bytes() {
            [b'\\', b'\\', ..] => true,
            [drive, b':', b'\\' | b'/', ..] => drive.is_ascii_alphabetic(),
            _ => false,
        };
        if is_absolute {
            return Some(Self::new(&path.replace('/', "\\"), kind));
        }
        let is_windows = path.contains('\\') && !path.starts_with('/') && !path.contains(':');
        is_windows.then_some(Err(ApplicationError::Relative))
    }

    /// `is_folder` is true after `dir:` and false after `exe:`.
    fn new(path: &str, is_folder: Option<bool>) -> Result<Self, ApplicationError> {
        let path = &*without_verbatim_prefix(path);
        let (stem, ends) = match path.strip_suffix('\\') {
            Some(stem) => (stem, true),
            None => (path, false),
        };
        if path.contains('*') {
            return Err(ApplicationError::Wildcard);
        }
        if is_folder == Some(false) && ends {
            return Err(ApplicationError::Folder);
        }
        let mut parts = stem.trim_start_matches('\\').split('\\');
        if parts.any(|part| matches!(part, "" | "." | "..")) {
            return Err(ApplicationError::NotNormalised);
        }
        if path.len() > MAX_PATH || path.split('\\').any(|part| part.len() > MAX_NAME) {
            return Err(ApplicationError::TooLong);
        }
        let end = if ends || is_folder == Some(true) {
            "\\"
        } else {
            ""
        };
        Ok(Self {
            path: format!("{stem}{end}"),
        })
    }

    /// Matches the path of an executable.
    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let path = String::from_utf8_lossy(path);
        let path = without_verbatim_prefix(&path).to_lowercase();
        let own = self.path.to_lowercase();
        match own.ends_with('\\') {
            true => path.starts_with(&own),
            false => path == own,
        }
    }

    /// Returns true if it includes everything that `other` matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.matches(other.path.as_bytes())
    }

    /// Returns the last component of the path.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('\\').next().unwrap_or_default()
    }
}

/// Returns a path without the prefix that disables the parsing of names: `\\?\C:\x` becomes `C:\x`,
/// `\\?\UNC\server\x` becomes `\\server\x`.
fn without_verbatim_prefix(path: &str) -> Cow<'_, str> {
    const UNC: &str = r"UNC\";
    let Some(rest) = path.strip_prefix(r"\\?\") else {
        return Cow::Borrowed(path);
    };
    match rest.split_at_checked(UNC.len()) {
        Some((kind, share)) if kind.eq_ignore_ascii_case(UNC) => format!(r"\\{share}").into(),
        _ => Cow::Borrowed(rest),
    }
}

impl fmt::Display for WindowsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Application, Process};
    use super::*;

    #[test]
    fn paths_match_ignoring_case_and_kind_of_slash() {
        let process = |path: &'static str| Process {
            path: path.as_bytes(),
            name: path.rsplit('\\').next().unwrap().as_bytes(),
            cgroup: b"",
            uid: u32::MAX,
        };
        for (text, path, fits) in [
            (r"C:\Games\game.exe", r"c:\games\GAME.EXE", true),
            ("c:/games/game.exe", r"C:\Games\game.exe", true),
            (r"C:\Games\game.exe", r"\\?\C:\Games\game.exe", true),
            (r"C:\Games\game.exe", r"C:\Games\game.exe.exe", false),
            (r"C:\Games\game", r"C:\Games\game.exe", false),
            (r"C:\Games\", r"C:\Games\a\b.exe", true),
            (r"C:\Games\", r"C:\Games2\b.exe", false),
            (r"dir:C:\Games", r"C:\Games\b.exe", true),
            (r"exe:C:\Games", r"C:\Games\b.exe", false),
            (r"C:\", r"C:\x.exe", true),
            (r"D:\", r"C:\x.exe", false),
            (r"\\server\share\", r"\\SERVER\share\x.exe", true),
            (r"\\?\UNC\server\share\", r"\\server\share\x.exe", true),
            (r"\\server\share\x.exe", r"\\?\unc\Server\share\x.exe", true),
            (r"\\?\C:\Games\", r"C:\games\x.exe", true),
            (r"\\server\share\", r"\\?\UNC\server\share2\x.exe", false),
            (r"C:\Ärger\", r"c:\ÄRGER\x.exe", true),
            (
                r"C:\Program Files\a b.exe",
                r"C:\Program Files\A B.exe",
                true,
            ),
            ("game", r"C:\Games\Game.exe", true),
            ("game.exe", r"C:\Games\GAME", true),
            ("ga*", r"C:\Games\game.exe", true),
            ("ga*", r"C:\Games\agame.exe", false),
            ("game", r"C:\Games\game2.exe", false),
        ] {
            let application = Application::parse_windows(text).unwrap();
            assert_eq!(application.matches(&process(path)), fits, "{text} {path}");
            // Parsing the printed text returns the same.
            let printed = application.to_string();
            assert_eq!(
                Application::parse_windows(&printed),
                Ok(application),
                "{printed}"
            );
        }
    }

    #[test]
    fn malformed_paths() {
        use ApplicationError as Error;
        for (text, error) in [
            (r"games\game.exe", Error::Relative),
            (r"C:\a\..\b.exe", Error::NotNormalised),
            (r"C:\a\\b.exe", Error::NotNormalised),
            (r"C:\a\*", Error::Wildcard),
            (r"exe:C:\a\", Error::Folder),
            ("C:game.exe", Error::UnknownKind),
        ] {
            assert_eq!(Application::parse_windows(text), Err(error), "{text}");
        }
        let long = format!(r"C:\{}", "x".repeat(256));
        assert_eq!(Application::parse_windows(&long), Err(Error::TooLong));
    }

    #[test]
    fn a_folder_covers_its_files() {
        let [folder, game, other, name] = [r"C:\games\", r"c:\Games\game.exe", r"C:\x.exe", "game"]
            .map(|text| Application::parse_windows(text).unwrap());
        assert!(folder.covers(&game) && !folder.covers(&other) && folder.covers(&folder));
        assert!(name.covers(&game) && !name.covers(&other) && !game.covers(&folder));
    }
}
