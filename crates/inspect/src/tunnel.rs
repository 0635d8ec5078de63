//! A tunnel's eBPF programs, and the argument by which users name it.

use crate::conf;
use std::path::Path;
use taupe_adapter::State;
use taupe_adapter::journal::Header;
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::Programs;
use taupe_transparent::state::Lock;

/// Opens the eBPF programs of a tunnel. If the user may not open them, returns `None` for a tunnel
/// that has none by its journal header because it selects no applications.
pub fn attached(
    interface: &str,
    header: Option<&Header>,
) -> Result<Option<Programs>, TransparentError> {
    match Programs::open(interface) {
        Err(TransparentError::InitRootInaccessible { .. })
            if header.is_some_and(chooses_nothing) =>
        {
            Ok(None)
        }
        programs => programs,
    }
}

/// Checks whether the tunnel selects no applications, neither by translation nor by a mark.
fn chooses_nothing(header: &Header) -> bool {
    header.transparent.is_empty() && header.options.chosen.is_none()
}

/// Returns the effect on applications while the tunnel is down, and the command that ends it.
pub fn meanwhile(lock: Lock, interface: &str) -> String {
    until(lock, interface, &word_of(interface))
}

/// Returns [`meanwhile`] for a tunnel that `taupe up` knows by `word`.
pub fn until(lock: Lock, interface: &str, word: &str) -> String {
    match lock {
        Lock::Off => format!("{lock} until `taupe up {word}`"),
        _ => format!("{lock} until `taupe up {word}` or `taupe down {interface}`"),
    }
}

/// Returns the argument by which `taupe up` finds the tunnel's file: the name of the tunnel if the
/// file is in the usual folder, otherwise the path.
pub fn word_of(interface: &str) -> String {
    let mut here = State::default().here().into_iter();
    let header = here.find(|header| header.interface == interface);
    let config = header.map(|header| header.config.display().to_string());
    let usual = conf::folder().join(format!("{interface}.conf"));
    config
        .filter(|config| Path::new(config) != usual)
        .unwrap_or_else(|| interface.to_owned())
}
