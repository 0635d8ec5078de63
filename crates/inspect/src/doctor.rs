//! Checks of this system for conditions that would keep tunnels from working. Each check is
//! independent and suggests a fix. The checks change nothing.

mod confinement;
mod kernel;
mod memory;
mod others;
mod system;
mod tunnels;

use crate::check::{self, check};
use crate::conf::{self, Conf};
use crate::is_root;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use taupe_adapter::Compatibility;

/// Reason why no check was made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum DoctorError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
}

/// Results of all checks. As in `taupe status --json`, members are only ever added.
#[derive(Serialize)]
pub struct DoctorReport {
    /// Version of the format.
    pub schema: u32,
    /// Number of checks that fail.
    pub fails: usize,
    /// Results, in the order of the checks.
    pub checks: Vec<Check>,
}

/// Result of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing to do.
    Ok,
    /// Only root can make the check.
    Unknown,
    /// A feature that some users want does not work.
    Warn,
    /// Tunnels do not work.
    Fail,
}

/// A check with its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// Stable identifier.
    pub name: &'static str,
    /// Result.
    pub result: Outcome,
    /// Sentence about the result.
    pub text: String,
    /// Advice in one line.
    pub fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self {
            name,
            result: Outcome::Ok,
            text: text.into(),
            fix: None,
        }
    }

    fn warn(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            name,
            result: Outcome::Warn,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }

    /// Makes a check that only root can make. Other users get [`Outcome::Unknown`].
    fn with_root(name: &'static str, look: impl FnOnce() -> Self) -> Self {
        match is_root() {
            true => look(),
            false => Self::unknown(name),
        }
    }

    fn unknown(name: &'static str) -> Self {
        Self {
            result: Outcome::Unknown,
            ..Self::ok(name, "this check takes root; run `sudo taupe doctor`")
        }
    }

    fn fail(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            result: Outcome::Fail,
            ..Self::warn(name, text, fix)
        }
    }
}

/// Checks the system, and a file if one is named. Trials of programs that have not failed since the
/// machine started are made again only if `is_fresh`.
///
/// # Errors
/// Fails if root names a file that cannot be found or read.
pub fn examine(file: Option<&OsStr>, is_fresh: bool) -> Result<DoctorReport, DoctorError> {
    let mut checks = kernel::checks(is_fresh);
    checks.extend(system::checks());
    checks.extend(confinement::checks());
    checks.extend(others::checks());
    checks.extend(tunnels::checks());
    if let Some(word) = file {
        checks.push(match of_file(word) {
            Err(failure) if !is_root() => Check {
                text: failure.to_string(),
                ..Check::unknown("file")
            },
            found => found?,
        });
    }
    let fails = checks.iter().filter(|one| one.result == Outcome::Fail);
    Ok(DoctorReport {
        schema: 1,
        fails: fails.count(),
        checks,
    })
}

fn of_file(word: &OsStr) -> Result<Check, DoctorError> {
    const NAME: &str = "file";
    let conf = Conf::find(word, Compatibility::Taupe)?;
    let checked = check(&conf, Compatibility::Taupe)?;
    let shown = conf.shown.display();
    let how = format!("`taupe check {shown}` lists them, each with its fix");
    Ok(match (&checked.file, checked.remarks.as_slice()) {
        (Some(_), []) => Check::ok(NAME, format!("{shown} is fine")),
        (Some(_), remarks) => {
            Check::warn(NAME, format!("{shown} has {}", check::count(remarks)), how)
        }
        (None, remarks) => Check::fail(NAME, format!("{shown} has {}", check::count(remarks)), how),
    })
}
