//! Commands of a file (`PreUp` and the like) where a service manager restricts this process.
//!
//! The unit `taupe@.service` gives the process only the rights that Taupe itself needs. A command of
//! the user's would fail there at some place of its own, so Taupe refuses the file instead, and names
//! the unit that permits such commands.

use super::error::TunnelError;
use crate::console::say;
use std::env;
use taupe_config::file::File;
use taupe_inspect::conf::Conf;

/// Environment variable that `taupe@.service` sets to `refuse`.
const VARIABLE: &str = "TAUPE_HOOKS";

/// Fails if the file has commands and this process may not run any.
pub(super) fn check(conf: &Conf, file: &File) -> Result<(), TunnelError> {
    match refused(file) {
        Some(keys) => Err(TunnelError::Hooks {
            file: conf.shown.display().to_string(),
            keys,
            interface: conf.interface.to_string(),
        }),
        None => Ok(()),
    }
}

/// Prints why commands may fail, before `down` runs them. A tunnel is taken down also if commands were
/// added to its file while it was up.
pub(super) fn warn(interface: &str, file: &File) {
    if let Some(keys) = refused(file) {
        say(&format_args!(
            "[!] the file of {interface} has {keys}, and taupe@{interface} restricts what commands can do, \
             so they may fail; taupe-hooks@{interface} permits them"
        ));
    }
}

/// Returns the keys of the file's commands if this process may not run any.
fn refused(file: &File) -> Option<String> {
    let is_refused = env::var_os(VARIABLE).is_some_and(|value| value == "refuse");
    is_refused.then(|| keys(file)).flatten()
}

fn keys(file: &File) -> Option<String> {
    let hooks = &file.interface.hooks;
    let all = [
        ("PreUp", &hooks.pre_up),
        ("PostUp", &hooks.post_up),
        ("PreDown", &hooks.pre_down),
        ("PostDown", &hooks.post_down),
    ];
    let keys = all.into_iter().filter(|(_, commands)| !commands.is_empty());
    let keys: Vec<_> = keys.map(|(key, _)| key).collect();
    (!keys.is_empty()).then(|| keys.join(", "))
}
