//! Stored results of eBPF tests, except failures, so that `doctor` need not load dozens of programs each
//! time. A warning may come from the kernel's configuration, which stays until the next reboot.
//!
//! A result is valid until the next reboot, for the same eBPF objects, rights and limits.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;
use taupe_adapter::journal::DIRECTORY;
use taupe_transparent::programs::objects_hash;

use super::{Check, Outcome};
use crate::span;
use crate::status::now;

const FILE: &str = "trials.json";

/// Maximum size of the file in bytes. Longer files are ignored.
const MAX_FILE: u64 = 1 << 16;

/// Files about this process, and their lines with rights and limits on which the kernel's answer depends.
const RIGHTS: [(&str, &[&str]); 2] = [
    ("status", &["CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:"]),
    ("limits", &["Max open files", "Max locked memory"]),
];

/// Results of this program since the last reboot.
pub(super) struct Memory {
    /// The key is the conditions and the name of the check.
    trials: BTreeMap<String, RememberedTrial>,
    conditions: String,
    /// True if there are new ones since it was read.
    is_changed: bool,
}

/// A result of a trial.
#[derive(Serialize, Deserialize)]
struct RememberedTrial {
    /// Time of the trial, in seconds since 1970.
    at: u64,
    result: Outcome,
    text: String,
    fix: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Content {
    /// Boot ID: files in `/run` may survive a reboot.
    boot: String,
    trials: BTreeMap<String, RememberedTrial>,
}

fn boot() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

/// Returns everything on which a trial's result depends.
fn conditions() -> Option<String> {
    let mut rights = Vec::new();
    for (file, names) in RIGHTS {
        let text = fs::read_to_string(format!("/proc/thread-self/{file}")).ok()?;
        let lines = text.lines().map(str::to_owned);
        rights.extend(lines.filter(|line| names.iter().any(|name| line.starts_with(name))));
    }
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    Some(format!(
        "{:x} {} {}",
        objects_hash(),
        rights.join(" "),
        lockdown.trim()
    ))
}

impl Memory {
    /// Reads the trials that root has made, unless all are to be made again.
    pub(super) fn new(is_fresh: bool) -> Self {
        let content = if is_fresh { None } else { read() };
        Self {
            trials: content.map(|content| content.trials).unwrap_or_default(),
            conditions: conditions().unwrap_or_default(),
            is_changed: false,
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{name} {}", self.conditions)
    }

    /// Returns the check's result from before, with its age.
    pub(super) fn get(&self, name: &'static str) -> Option<Check> {
        let RememberedTrial {
            at,
            result,
            text,
            fix,
        } = self.trials.get(&self.key(name))?;
        let age = span(now().saturating_sub(Duration::from_secs(*at)));
        Some(Check {
            name,
            result: *result,
            text: format!("{text} (result from {age} ago; --fresh tests again)"),
            fix: fix.clone(),
        })
    }

    /// Remembers a check, unless it has failed.
    pub(super) fn add(&mut self, check: &Check) {
        if !matches!(check.result, Outcome::Ok | Outcome::Warn) {
            return;
        }
        let trial = RememberedTrial {
            at: now().as_secs(),
            result: check.result,
            text: check.text.clone(),
            fix: check.fix.clone(),
        };
        self.trials.insert(self.key(check.name), trial);
        self.is_changed = true;
    }

    /// Writes new results. Only root can; on an error the next `doctor` repeats the tests.
    pub(super) fn write(self) {
        let (Some(boot), true) = (boot(), self.is_changed) else {
            return;
        };
        let content = Content {
            boot,
            trials: self.trials,
        };
        // A failure costs time, and nothing else.
        let _ = write(&content);
    }
}

/// Returns the content of the file. Ignores a file that anybody but root could have written.
fn read() -> Option<Content> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let path = Path::new(DIRECTORY).join(FILE);
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.ok()?;
    let found = file.metadata().ok()?;
    let is_private = found.uid() == 0 && found.mode() & 0o022 == 0 && found.len() < MAX_FILE;
    let content: Content = serde_json::from_reader(is_private.then_some(file)?).ok()?;
    (content.boot == boot()?).then_some(content)
}

fn write(content: &Content) -> io::Result<()> {
    let folder = Path::new(DIRECTORY);
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let draft = folder.join(format!("{FILE}.{}", std::process::id()));
    let text = serde_json::to_string(content).map_err(io::Error::other)?;
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&draft, folder.join(FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_remembered_for_the_same_conditions() {
        let mut memory = Memory {
            trials: BTreeMap::new(),
            conditions: "one".to_owned(),
            is_changed: false,
        };
        assert_eq!(memory.get("marks"), None);
        let (good, bad) = (
            Check::warn("marks", "it works in part", "mend it"),
            Check::fail("lock", "it does not work", "mend it"),
        );
        memory.add(&good);
        memory.add(&bad);
        let check = memory.get("marks").expect("a result");
        let text = "it works in part (result from 0 s ago; --fresh tests again)";
        assert_eq!(check, Check::warn("marks", text, "mend it"));
        assert_eq!(memory.get("lock"), None);
        memory.conditions = "two".to_owned();
        assert_eq!(memory.get("marks"), None);
    }

    #[test]
    fn conditions_name_the_rights_of_this_process() {
        let conditions = conditions().expect("conditions");
        for name in RIGHTS.iter().flat_map(|(_, names)| *names) {
            assert!(conditions.contains(name), "{conditions}");
        }
    }
}
