//! Linux and other Unix systems.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;

/// The user who may configure all devices.
pub(crate) const ADMINISTRATOR: &str = "root";

/// Advice about a missing permission.
pub(crate) const DENIED: &str = "only root can do this; run it with sudo";

/// Folder of configuration files that are given by name.
pub(crate) const CONF_FOLDER: &str = "/etc/wireguard";

/// Calls `end` on SIGTERM and SIGINT, and `hangup` on SIGHUP, for the rest of the process's life.
///
/// # Errors
///
/// Fails if no file descriptor or thread is left.
pub(crate) fn on_signal(
    end: impl FnMut() + Send + 'static,
    hangup: impl FnMut() + Send + 'static,
) -> io::Result<()> {
    on_signal_after(|| {}, end, hangup)
}

/// As [`on_signal`]. The thread that waits for signals calls `begin` first.
pub(crate) fn on_signal_after(
    begin: impl FnOnce() + Send + 'static,
    mut end: impl FnMut() + Send + 'static,
    mut hangup: impl FnMut() + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let listen = move || {
        begin();
        for signal in signals.forever() {
            match signal {
                SIGHUP => hangup(),
                _ => end(),
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(listen)
        .map(drop)
}

/// Duplicates standard input. Reading it leaves no copy in the buffer of the standard library.
pub(crate) fn stdin() -> io::Result<File> {
    duplicate(&io::stdin())
}

/// Duplicates standard output. Writing it leaves no copy in the buffer of the standard library.
pub(crate) fn stdout() -> io::Result<File> {
    duplicate(&io::stdout())
}

fn duplicate(stream: &impl AsFd) -> io::Result<File> {
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}

/// Checks whether everyone can access a regular file.
pub(crate) fn is_world_accessible(file: &File) -> bool {
    let found = file.metadata();
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o007 != 0)
}
