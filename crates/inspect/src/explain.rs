//! Explanation of the path of an application's packets, or of forwarded ones: all decisions in
//! their order, and the one that applies.

mod application;
mod destinations;
mod dns;
mod explainer;
mod steps;

use crate::check;
use crate::conf::{self, Conf};
use crate::executables::interpreter;
use crate::is_root;
use crate::processes::{Subject, SubjectError};
use crate::tunnel::effect_while_down;
pub(crate) use explainer::is_on_link;
pub use explainer::{Explainer, addresses};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
pub use steps::Step;
use taupe_adapter::{Compatibility, State};
use taupe_config::application::AppWarning;
use taupe_os_linux::netlink::NetlinkError;
use taupe_transparent::capture::in_effect;
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::TunnelMaps;

/// Reason why nothing was explained.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum ExplainError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{0} has errors")]
    Wrong(String),
    #[error(transparent)]
    Subject(#[from] SubjectError),
    #[error("cannot read the addresses of this host: {0}")]
    System(#[from] NetlinkError),
    #[error("no tunnel here selects applications, so the system's routes decide about all traffic")]
    NoTunnel,
    #[error("{0} is locked, but it is not recorded from which file")]
    Locked(String),
    #[error("this takes root, because only root sees which tunnels select applications")]
    NotRoot,
    #[error(transparent)]
    Fault(#[from] TransparentError),
}

/// Returns the files of all tunnels that select applications here, both of tunnels that are up and
/// of tunnels whose kill switch blocks traffic.
///
/// # Errors
/// See [`ExplainError`].
pub fn files_of_tunnels() -> Result<Vec<Conf>, ExplainError> {
    if !is_root() {
        return Err(ExplainError::NotRoot);
    }
    let names = in_effect()?;
    let headers = State::default().here();
    let file = |name: &String| {
        let written_down = headers.iter().find(|header| header.interface == *name);
        let Some(header) = written_down else {
            // The kill switch is active without a journal: the file is most likely found by the
            // name.
            return Conf::find(OsStr::new(name), Compatibility::Taupe).ok();
        };
        Some(Conf {
            interface: header.interface.parse().ok()?,
            path: header.config.clone(),
            shown: header.config.clone(),
        })
    };
    let files: Vec<_> = names.iter().filter_map(file).collect();
    match (files.is_empty(), names.first()) {
        (false, _) => Ok(files),
        (true, Some(name)) => Err(ExplainError::Locked(name.clone())),
        (true, None) => Err(ExplainError::NoTunnel),
    }
}

/// Returns the effect of a tunnel that is down, which overrides its file. `None` if the tunnel is
/// up or the user may not look.
#[must_use]
pub fn effect_of_down(interface: &str) -> Option<String> {
    let maps = TunnelMaps::open(interface).ok()??;
    (!maps.is_up()).then(|| {
        let effect = effect_while_down(maps.lock(), interface);
        format!("{interface} is down: {effect}")
    })
}

/// Returns a warning about a script: the process that runs is its interpreter.
#[must_use]
pub fn script_warning(subject: &Subject) -> Option<AppWarning> {
    let path = Path::new(OsStr::from_bytes(&subject.path));
    let interpreter = subject.id.is_none().then(|| interpreter(path))??;
    Some(AppWarning::NameIsScript {
        path: subject.shown_path(),
        interpreter,
    })
}

#[cfg(test)]
mod tests;
