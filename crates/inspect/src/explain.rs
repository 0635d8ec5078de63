//! Explanation of the path of an application's packets, or of forwarded ones: all decisions in
//! their order, and the one that applies.

mod application;
mod destinations;
mod known;
mod questions;
mod steps;

use crate::check;
use crate::conf::{self, Conf};
use crate::executables::interpreter;
use crate::is_root;
use crate::processes::{NoSubject, Subject};
use crate::tunnel::meanwhile;
pub use known::is_neighbour;
pub use known::{Known, addresses};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
pub use steps::Step;
use taupe_adapter::{Compatibility, State};
use taupe_config::application::AppWarning;
use taupe_os_linux::netlink::NetlinkError;
use taupe_transparent::capture::in_effect;
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::Programs;

/// Reason why nothing was explained.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{0} has errors (`taupe check` says which)")]
    Wrong(String),
    #[error(transparent)]
    NoSubject(#[from] NoSubject),
    #[error("cannot ask for the addresses of this host: {0}")]
    System(#[from] NetlinkError),
    #[error(
        "no tunnel that chooses applications is there, so all goes where this system's routes lead; \
         --conf CONF explains what a file would do"
    )]
    NoTunnel,
    #[error(
        "{0} is locked, and which file it is locked by is written nowhere; --conf CONF says which"
    )]
    Locked(String),
    #[error(
        "which tunnels choose applications only root can see: this takes root; run it with sudo; \
         --conf CONF names a file"
    )]
    NotRoot,
    #[error("{}", crate::advice::error(.0))]
    Fault(#[from] TransparentError),
}

/// Returns the files of all tunnels that select applications here, both of tunnels that are up and
/// of tunnels whose kill switch blocks traffic.
pub fn of_tunnels() -> Result<Vec<Conf>, Failure> {
    if !is_root() {
        return Err(Failure::NotRoot);
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
        (true, Some(name)) => Err(Failure::Locked(name.clone())),
        (true, None) => Err(Failure::NoTunnel),
    }
}

/// Returns the effect of a tunnel that is down, which overrides its file. `None` if the tunnel is
/// up or the user may not look.
pub fn closed(interface: &str) -> Option<String> {
    let programs = Programs::open(interface).ok()??;
    (!programs.is_up()).then(|| {
        let meanwhile = meanwhile(programs.lock(), interface);
        format!("{interface} is down: {meanwhile}")
    })
}

/// Returns a warning about a script: the process that runs is its interpreter.
pub fn doubt(subject: &Subject) -> Option<AppWarning> {
    let path = Path::new(OsStr::from_bytes(&subject.path));
    let interpreter = subject.id.is_none().then(|| interpreter(path))??;
    Some(AppWarning::NameIsScript {
        path: subject.shown_path(),
        interpreter,
    })
}

#[cfg(test)]
mod tests;
