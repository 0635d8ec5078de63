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
    /// `None` if they are unknown: nothing is stored then.
    conditions: Option<String>,
    /// True if no stored result counts.
    is_fresh: bool,
    /// True if results have changed since they were read.
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
    // Policies of security modules apply by this label. Kernels without such a module lack both files.
    let label = fs::read_to_string("/proc/thread-self/attr/current").unwrap_or_default();
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    Some(format!(
        "{:x} {} {} {}",
        objects_hash(),
        rights.join(" "),
        label.trim_end_matches(['\0', '\n']),
        lockdown.trim()
    ))
}

impl Memory {
    /// Reads the results that root has stored. With `is_fresh`, none of them counts.
    pub(super) fn new(is_fresh: bool) -> Self {
        Self {
            trials: read().map(|content| content.trials).unwrap_or_default(),
            conditions: conditions(),
            is_fresh,
            is_changed: false,
        }
    }

    fn key(&self, name: &str) -> Option<String> {
        let conditions = self.conditions.as_ref()?;
        Some(format!("{name} {conditions}"))
    }

    /// Returns the check's result from before, with its age.
    pub(super) fn get(&self, name: &'static str) -> Option<Check> {
        let RememberedTrial {
            at,
            result,
            text,
            fix,
        } = self
            .trials
            .get(&self.key(name)?)
            .filter(|_| !self.is_fresh)?;
        let age = span(now().saturating_sub(Duration::from_secs(*at)));
        Some(Check {
            name,
            result: *result,
            text: format!("{text} (result from {age} ago; --fresh tests again)"),
            fix: fix.clone(),
        })
    }

    /// Stores the result of a check. If it has failed, an earlier result is removed.
    pub(super) fn add(&mut self, check: &Check) {
        let Some(key) = self.key(check.name) else {
            return;
        };
        if !matches!(check.result, Outcome::Ok | Outcome::Warn) {
            self.is_changed |= self.trials.remove(&key).is_some();
            return;
        }
        let trial = RememberedTrial {
            at: now().as_secs(),
            result: check.result,
            text: check.text.clone(),
            fix: check.fix.clone(),
        };
        self.trials.insert(key, trial);
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
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let written = file
        .write_all(text.as_bytes())
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
            conditions: Some("one".to_owned()),
            is_fresh: false,
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
        memory.conditions = Some("two".to_owned());
        assert_eq!(memory.get("marks"), None);
        memory.conditions = Some("one".to_owned());
        memory.is_fresh = true;
        assert_eq!(memory.get("marks"), None);
    }

    #[test]
    fn a_failure_removes_the_earlier_result() {
        let mut memory = Memory {
            trials: BTreeMap::new(),
            conditions: Some("one".to_owned()),
            is_fresh: false,
            is_changed: false,
        };
        memory.add(&Check::fail("marks", "it does not work", "mend it"));
        assert!(!memory.is_changed);
        memory.add(&Check::ok("marks", "it works"));
        memory.is_changed = false;
        memory.add(&Check::fail("marks", "it does not work", "mend it"));
        assert!(memory.is_changed);
        assert_eq!(memory.get("marks"), None);
    }

    #[test]
    fn nothing_is_stored_for_unknown_conditions() {
        let mut memory = Memory {
            trials: BTreeMap::new(),
            conditions: None,
            is_fresh: false,
            is_changed: false,
        };
        memory.add(&Check::ok("marks", "it works"));
        assert!(memory.trials.is_empty() && memory.get("marks").is_none());
    }

    #[test]
    fn conditions_name_the_rights_of_this_process() {
        let conditions = conditions().expect("conditions");
        for name in RIGHTS.iter().flat_map(|(_, names)| *names) {
            assert!(conditions.contains(name), "{conditions}");
        }
    }
}
