//! A tunnel as `taupe up` has left it: what is attached to the kernel for it, and how a person
//! names it.

use crate::conf;
use std::path::Path;
use taupe_adapter::State;
use taupe_adapter::journal::Header;
use taupe_transparent::fault::Fault;
use taupe_transparent::programs::Programs;
use taupe_transparent::state::Lock;

/// What is attached for a tunnel. Who may not reach it is told of none where the tunnel, by
/// what `up` has written of it, was made without: for all that this machine sends, by
/// addresses and routes alone.
pub fn attached(interface: &str, header: Option<&Header>) -> Result<Option<Programs>, Fault> {
    match Programs::open(interface) {
        Err(Fault::Unreachable { .. }) if header.is_some_and(chooses_nothing) => Ok(None),
        programs => programs,
    }
}

/// Returns whether the tunnel selects no applications, neither by translation nor by a mark.
fn chooses_nothing(header: &Header) -> bool {
    header.transparent.is_empty() && header.options.chosen.is_none()
}

/// What becomes of applications while the tunnel is down, and until when: behind the words
/// that say that it is.
pub fn meanwhile(lock: Lock, interface: &str) -> String {
    until(lock, interface, &word_of(interface))
}

/// Returns [`meanwhile`] for a tunnel that `taupe up` knows by `word`.
pub fn until(lock: Lock, interface: &str, word: &str) -> String {
    match lock {
        Lock::Nobody => format!("{lock} until `taupe up {word}`"),
        _ => format!("{lock} until `taupe up {word}` or `taupe down {interface}`"),
    }
}

/// What a person names a tunnel by for `taupe up`: the path of the file that it was made
/// from, or its name where that is in its place.
pub fn word_of(interface: &str) -> String {
    let mut here = State::default().here().into_iter();
    let header = here.find(|header| header.interface == interface);
    let config = header.map(|header| header.config.display().to_string());
    let usual = conf::folder().join(format!("{interface}.conf"));
    config
        .filter(|config| Path::new(config) != usual)
        .unwrap_or_else(|| interface.to_owned())
}
