//! `taupe service lock`: from the start of the machine on, programs that a file selects have no
//! network without its tunnel.
//!
//! The system's lock identifies programs by their files, but rules in a file can also be names and
//! folders. The lock therefore covers the executables that can be found: files in rules,
//! executables in folders in rules, and programs registered with the system.

use std::any::Any;
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use taupe_config::application::{AppRules, Application, Decision, Process, Rule};
use taupe_config::file::{File, KillSwitch};
use taupe_os_windows::lock::{self, Pass};
use taupe_os_windows::programs::registered;
use tracing::warn;

/// Maximum number of locked programs.
const MAX_PROGRAMS: usize = 4096;

/// Maximum depth of folders that are searched.
const MAX_DEPTH: usize = 16;

/// Reason why no program was locked or unlocked.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockError {
    #[error(
        "{0} has no AllowedApps, so it selects all programs; only programs that a file lists can \
         be locked"
    )]
    All(String),
    #[error("{0} has KillSwitch = off: its programs are not to be blocked")]
    Off(String),
    #[error(
        "none of the programs that {0} selects is found; write the paths of their files, or of \
         their folders with a \\ at the end"
    )]
    None(String),
    #[error(
        "{0} selects more than {MAX_PROGRAMS} programs, which is too many to lock; write the paths \
         of smaller folders, or of files"
    )]
    Many(String),
    #[error("cannot lock programs: {0}; nothing was done")]
    System(#[source] io::Error),
    #[error("cannot unlock programs: {0}; nothing was done")]
    Unlocking(#[source] io::Error),
}

/// Programs of a file that were found.
#[derive(Default)]
pub(super) struct LockedPrograms {
    pub(super) programs: Vec<PathBuf>,
    /// Explanations of programs that could not be found.
    pub(super) missing: Vec<String>,
    is_truncated: bool,
}

/// Locks a file's programs, in place of those locked before.
pub(super) fn set(shown: &str, file: &File) -> Result<LockedPrograms, LockError> {
    let apps = &file.transparent.apps;
    if apps.allowed.is_empty() {
        return Err(LockError::All(shown.to_owned()));
    }
    if is_off(file) {
        return Err(LockError::Off(shown.to_owned()));
    }
    let found = selected_programs(apps);
    if found.programs.is_empty() {
        return Err(LockError::None(shown.to_owned()));
    }
    if found.is_truncated {
        return Err(LockError::Many(shown.to_owned()));
    }
    let paths: Vec<&Path> = found.programs.iter().map(PathBuf::as_path).collect();
    lock::set(&paths).map_err(LockError::System)?;
    Ok(found)
}

pub(super) fn clear() -> Result<(), LockError> {
    lock::clear().map_err(LockError::Unlocking)
}

/// Resource that lets programs pass until dropped.
pub(super) type Grant = Box<dyn Any>;

/// Exemption of locked programs from the lock while a tunnel handles their packets. It is not
/// granted at first, and is revoked when dropped.
pub(super) struct LockExemption {
    grant: Box<dyn FnMut() -> io::Result<Option<Grant>>>,
    pass: Option<Grant>,
    /// True if the current failure has been logged.
    has_complained: bool,
}

impl LockExemption {
    /// Creates an exemption for the programs of a file that can be found now.
    pub(super) fn of(apps: &AppRules) -> Self {
        let programs = match apps.allowed.is_empty() {
            true => Vec::new(),
            false => selected_programs(apps).programs,
        };
        Self::new(move || {
            if programs.is_empty() {
                return Ok(None);
            }
            let paths: Vec<&Path> = programs.iter().map(PathBuf::as_path).collect();
            let pass = Pass::open(&paths)?;
            Ok(pass.map(|pass| Box::new(pass) as Grant))
        })
    }

    /// Creates an exemption with a function that grants it. The function returns `None` if no
    /// program is locked.
    pub(super) fn new(grant: impl FnMut() -> io::Result<Option<Grant>> + 'static) -> Self {
        Self {
            grant: Box::new(grant),
            pass: None,
            has_complained: false,
        }
    }

    /// Lets locked programs use the network, if there is a lock. A failure is logged once, and can
    /// be retried.
    pub(super) fn grant(&mut self) {
        if self.pass.is_some() {
            return;
        }
        match (self.grant)() {
            Ok(pass) => {
                self.pass = pass;
                self.has_complained = false;
            }
            Err(error) if !self.has_complained => {
                warn!(%error, "cannot exempt locked programs from the lock: they have no network");
                self.has_complained = true;
            }
            Err(_) => {}
        }
    }

    /// Blocks locked programs again.
    pub(super) fn revoke(&mut self) {
        self.pass = None;
    }
}

fn is_off(file: &File) -> bool {
    file.transparent.kill_switch == Some(KillSwitch::Off)
}

/// Finds the programs that use the tunnel.
fn selected_programs(apps: &AppRules) -> LockedPrograms {
    let mut found = LockedPrograms::default();
    let mut programs = registered();
    for rule in &apps.allowed {
        if let Application::Windows(place) = &rule.application {
            let path = PathBuf::from(place.to_string());
            if path.is_dir() {
                executables(&path, MAX_DEPTH, &mut programs, &mut found);
            } else if path.is_file() {
                programs.push(path);
            }
        }
    }
    programs.sort();
    programs.dedup();
    programs.retain(|path| uses_tunnel(apps, path));
    found.is_truncated |= programs.len() > MAX_PROGRAMS;
    programs.truncate(MAX_PROGRAMS);
    for rule in &apps.allowed {
        if !programs.iter().any(|path| rule_matches(rule, path)) {
            found.missing.push(format!(
                "line {}: no program {} is found, so it is not locked; write the path of its file, \
                 or of its folder with a \\ at the end",
                rule.line, rule.application
            ));
        }
    }
    found.programs = programs;
    found
}

fn rule_matches(rule: &Rule, path: &Path) -> bool {
    as_process(path, |process| rule.application.matches(process))
}

fn uses_tunnel(apps: &AppRules, path: &Path) -> bool {
    as_process(path, |process| apps.decide(process).0 == Decision::Tunnel)
}

/// Applies a predicate to a program as if it were a process.
fn as_process(path: &Path, is_so: impl FnOnce(&Process<'_>) -> bool) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    is_so(&Process {
        path: path.to_string_lossy().as_bytes(),
        name: name.as_bytes(),
        cgroup: b"",
        // A user id that no user has.
        uid: u32::MAX,
    })
}

/// Adds the executables in a folder and its subfolders, without following links.
fn executables(
    folder: &Path,
    depth: usize,
    programs: &mut Vec<PathBuf>,
    found: &mut LockedPrograms,
) {
    let mut lacks = |why: &dyn Display| {
        let folder = folder.display();
        let line = format!("{folder}: {why}, so the programs in it are not locked");
        found.missing.push(line);
    };
    if depth == 0 {
        return lacks(&"its path is too deep");
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return lacks(&error),
    };
    for entry in entries.flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        let is_executable = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("exe"));
        match kind {
            Ok(kind) if kind.is_dir() => executables(&path, depth - 1, programs, found),
            Ok(kind) if kind.is_file() && is_executable => {
                if programs.len() >= 2 * MAX_PROGRAMS {
                    found.is_truncated = true;
                    return;
                }
                programs.push(path);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_DEPTH, selected_programs};
    use std::fs;
    use std::path::PathBuf;
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
        let rule = |text: String| Rule::new(Application::parse_windows(&text).unwrap(), 1);
        let at = folder.display();
        let apps = AppRules {
            allowed: vec![
                rule(format!(r"{at}\games\")),
                rule(format!(r"{at}\one.exe")),
                rule(format!(r"{at}\none.exe")),
            ],
            disallowed: Vec::new(),
            ..AppRules::default()
        };
        let found = selected_programs(&apps);
        assert_eq!(found.missing.len(), 1, "{:?}", found.missing);
        assert!(found.missing[0].contains("none.exe"), "{:?}", found.missing);
        let mut names: Vec<_> = found
            .programs
            .iter()
            .filter_map(|path| path.strip_prefix(&folder).ok()?.to_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, [r"games\a.EXE", r"games\deep\c.exe", "one.exe"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn programs_that_are_not_found_are_reported() {
        let folder = std::env::temp_dir().join(format!("taupe-deep-{}", std::process::id()));
        let deep: PathBuf = std::iter::repeat_n("x", MAX_DEPTH + 1).collect();
        fs::create_dir_all(folder.join(&deep)).unwrap();
        for path in [deep.join("lost.exe"), "here.exe".into()] {
            fs::write(folder.join(path), "").unwrap();
        }
        let rule = |text: &str, line| Rule::new(Application::parse_windows(text).unwrap(), line);
        let apps = AppRules {
            allowed: vec![
                rule(&format!(r"{}\", folder.display()), 3),
                rule("here", 4),
                rule("no-such-program", 5),
            ],
            disallowed: Vec::new(),
            ..AppRules::default()
        };
        let found = selected_programs(&apps);
        assert!(found.programs.contains(&folder.join("here.exe")));
        let [lost, unknown] = &found.missing[..] else {
            panic!("{:?}", found.missing);
        };
        assert!(lost.contains("too deep"), "{lost}");
        assert!(
            unknown.contains("line 5: no program no-such-program"),
            "{unknown}"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
