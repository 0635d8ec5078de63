//! Saving a running tunnel to its file.

use thiserror::Error;

use crate::journal::{JournalError, PATIENCE, State};
use crate::linux::Linux;
use crate::machine::{Machine, SaveError};
use crate::report::Report;
use crate::request::{NoDevices, Request};
use crate::saved_file::command;

/// Error of saving a tunnel. Its file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotSaved {
    /// There is no tunnel of this name.
    #[error("`{0}' is not a WireGuard interface")]
    NotWireGuard(String),
    /// Another process is changing the tunnel.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The tunnel could not be read, or the file not written.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// Overwrites the file of `request` with a description of the running tunnel, no matter which
/// program brought the tunnel up.
///
/// # Errors
/// See [`NotSaved`].
pub fn save(request: &Request<'_>, report: &mut dyn Report) -> Result<(), NotSaved> {
    let state = State::default();
    let mut devices = NoDevices;
    let machine = Linux::new(request.interface, &state, &mut devices);
    let mut machine = machine.map_err(SaveError::from)?;
    let lock = state.lock(request.interface, PATIENCE)?;
    if !machine.is_wireguard() {
        return Err(NotSaved::NotWireGuard(request.interface.to_owned()));
    }
    report.step(&command(request.interface));
    machine.save(request.file, request.config, request.compatibility)?;
    if let Some(mut journal) = lock.journal()? {
        // Records that Taupe itself has written the file.
        journal.saved(request.config)?;
    }
    Ok(())
}
