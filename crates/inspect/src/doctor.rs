//! What would keep tunnels from working on this system: each thing looked at by itself,
//! with its fix. Nothing is changed.

mod kernel;
mod others;
mod system;
mod tunnels;

use crate::check::{self, check};
use crate::conf::{self, Conf};
use crate::is_root;
use serde::Serialize;
use std::ffi::OsStr;
use taupe_adapter::Personality;

/// Why nothing was looked at.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
}

/// What has been found; as of `taupe status --json`, members are only added.
#[derive(Serialize)]
pub struct Found {
    pub schema: u32,
    pub fails: usize,
    pub checks: Vec<Check>,
}

/// How one thing is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// It takes root to look.
    Unknown,
    /// Something that somebody may want does not work.
    Warn,
    /// Tunnels do not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// A word that stays the same.
    pub name: &'static str,
    pub result: Outcome,
    pub text: String,
    /// What to do, in a line.
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

    /// Looks, if this is root, who alone can.
    fn by_root(name: &'static str, look: impl FnOnce() -> Self) -> Self {
        match is_root() {
            true => look(),
            false => Self::unknown(name),
        }
    }

    fn unknown(name: &'static str) -> Self {
        Self {
            result: Outcome::Unknown,
            ..Self::ok(name, "it takes root to look: `sudo taupe doctor`")
        }
    }

    fn fail(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            result: Outcome::Fail,
            ..Self::warn(name, text, fix)
        }
    }
}

/// Looks at the system, and at a file if one is named.
pub fn examine(file: Option<&OsStr>) -> Result<Found, Failure> {
    let mut checks = kernel::checks();
    checks.extend(system::checks());
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
    Ok(Found {
        schema: 1,
        fails: fails.count(),
        checks,
    })
}

fn of_file(word: &OsStr) -> Result<Check, Failure> {
    const NAME: &str = "file";
    let conf = Conf::find(word, Personality::Taupe)?;
    let checked = check(&conf, Personality::Taupe)?;
    let shown = conf.shown.display();
    let how = format!("`taupe check {shown}` says which, and what to do");
    Ok(match (&checked.file, checked.remarks.as_slice()) {
        (Some(_), []) => Check::ok(NAME, format!("{shown} is fine")),
        (Some(_), remarks) => {
            Check::warn(NAME, format!("{shown} has {}", check::count(remarks)), how)
        }
        (None, remarks) => Check::fail(NAME, format!("{shown} has {}", check::count(remarks)), how),
    })
}
