//! `taupe service lock`: the programs that a file chooses use no network without its tunnel, from
//! the start of the machine on.
//!
//! The system knows programs by their files, and a file's rules are names and folders too. What
//! is locked is what can be found: files that are written, executables in folders that are
//! written, and programs that are registered with the system.

use std::any::Any;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use taupe_config::application::{AppRules, Application, Decision, Process};
use taupe_config::file::{File, KillSwitch};
use taupe_sys::windows::lock::{self, Pass};
use taupe_sys::windows::programs::registered;
use tracing::warn;

/// Programs that are locked at most.
const MOST: usize = 4096;

/// How deep folders are looked into.
const DEEPEST: usize = 16;

/// Why nothing is locked.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLocked {
    #[error("{0} has no AllowedApps: programs are locked one by one, and it chooses all")]
    All(String),
    #[error("{0} says KillSwitch = off: what it chooses is not to be held back")]
    Off(String),
    #[error(
        "none of the programs that {0} chooses is found: write the paths of their files, or of \
         their folders with a \\ at the end"
    )]
    None(String),
    #[error("cannot lock programs: {0}")]
    System(#[source] io::Error),
}

/// Holds back what a file chooses, instead of what was locked before; the programs.
pub(super) fn set(shown: &str, file: &File) -> Result<Vec<PathBuf>, NotLocked> {
    let apps = &file.transparent.apps;
    if apps.allowed.is_empty() {
        return Err(NotLocked::All(shown.to_owned()));
    }
    if is_off(file) {
        return Err(NotLocked::Off(shown.to_owned()));
    }
    let programs = chosen(apps);
    if programs.is_empty() {
        return Err(NotLocked::None(shown.to_owned()));
    }
    let paths: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
    lock::set(&paths).map_err(NotLocked::System)?;
    Ok(programs)
}

/// Holds nothing back any more.
pub(super) fn clear() -> Result<(), NotLocked> {
    lock::clear().map_err(NotLocked::System)
}

/// Lets locked programs through while a tunnel takes care of what they send. It is shut until it
/// is opened, and when it is dropped.
pub(super) struct Gate {
    open: Box<dyn FnMut() -> io::Result<Option<Box<dyn Any>>>>,
    /// Programs come through as long as it is there.
    pass: Option<Box<dyn Any>>,
    /// The log knows that it does not open.
    has_complained: bool,
}

impl Gate {
    /// For the programs that a file chooses and that can be found now.
    pub(super) fn of(apps: &AppRules) -> Self {
        let programs = match apps.allowed.is_empty() {
            true => Vec::new(),
            false => chosen(apps),
        };
        Self::new(move || {
            if programs.is_empty() {
                return Ok(None);
            }
            let paths: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
            let pass = Pass::open(&paths)?;
            Ok(pass.map(|pass| Box::new(pass) as Box<dyn Any>))
        })
    }

    /// For who says how it is opened: `None` while nothing is locked.
    pub(super) fn new(open: impl FnMut() -> io::Result<Option<Box<dyn Any>>> + 'static) -> Self {
        Self {
            open: Box::new(open),
            pass: None,
            has_complained: false,
        }
    }

    /// Opens it, if there is a lock and it is not open. What does not come of it is told once,
    /// and can be tried again.
    pub(super) fn open(&mut self) {
        if self.pass.is_some() {
            return;
        }
        match (self.open)() {
            Ok(pass) => {
                self.pass = pass;
                self.has_complained = false;
            }
            Err(error) if !self.has_complained => {
                warn!(%error, "locked programs cannot be let through, and have no network");
                self.has_complained = true;
            }
            Err(_) => {}
        }
    }

    /// Shuts it: what is locked is held back.
    pub(super) fn close(&mut self) {
        self.pass = None;
    }
}

fn is_off(file: &File) -> bool {
    file.transparent.kill_switch == Some(KillSwitch::Off)
}

/// The programs that can be found and use the tunnel.
fn chosen(apps: &AppRules) -> Vec<PathBuf> {
    let mut found = registered();
    for rule in &apps.allowed {
        if let Application::Windows(place) = &rule.application {
            let path = PathBuf::from(place.to_string());
            if path.is_dir() {
                executables(&path, DEEPEST, &mut found);
            } else if path.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found.dedup();
    found.retain(|path| uses_tunnel(apps, path));
    found.truncate(MOST);
    found
}

fn uses_tunnel(apps: &AppRules, path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let path = path.to_string_lossy();
    let process = Process {
        path: path.as_bytes(),
        name: name.as_bytes(),
        cgroup: b"",
        // Nobody's.
        uid: u32::MAX,
    };
    apps.decide(&process).0 == Decision::Tunnel
}

/// Adds the executables in a folder and below it. What cannot be read has none; links are not
/// followed.
fn executables(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_executable = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("exe"));
        match kind {
            Ok(kind) if kind.is_dir() && depth > 0 => executables(&path, depth - 1, found),
            Ok(kind) if kind.is_file() && is_executable && found.len() < 2 * MOST => {
                found.push(path);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::chosen;
    use std::fs;
    use taupe_config::application::{AppRules, Application, Rule};

    #[test]
    fn programs_are_found_by_their_files_and_folders() {
        let folder = std::env::temp_dir().join(format!("taupe-lock-{}", std::process::id()));
        let deep = folder.join("games").join("deep");
        fs::create_dir_all(&deep).unwrap();
        for path in [
            "one.exe",
            "other.exe",
            "games/a.EXE",
            "games/b.txt",
            "games/deep/c.exe",
        ] {
            fs::write(folder.join(path), "").unwrap();
        }
        let rule = |text: String| Rule {
            application: Application::of_windows(&text).unwrap(),
            line: 1,
        };
        let at = folder.display();
        let apps = AppRules {
            allowed: vec![
                rule(format!(r"{at}\games\")),
                rule(format!(r"{at}\one.exe")),
                rule(format!(r"{at}\none.exe")),
            ],
            disallowed: Vec::new(),
        };
        let found = chosen(&apps);
        let mut names: Vec<_> = found
            .iter()
            .filter_map(|path| path.strip_prefix(&folder).ok()?.to_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, [r"games\a.EXE", r"games\deep\c.exe", "one.exe"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
