//! The file of a running tunnel.

use thiserror::Error;

use crate::journal::{self, PATIENCE, State};
use crate::linux::Linux;
use crate::machine::{Machine, SaveError};
use crate::report::Report;
use crate::request::{NoDevices, Request};
use crate::saved_file::command;

/// Why a tunnel was not saved. Its file is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotSaved {
    /// There is no such tunnel.
    #[error("`{0}' is not a WireGuard interface")]
    NotWireGuard(String),
    /// Another process is at it.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// Something went wrong.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// Writes the file that describes the tunnel as it is over the one of
/// `request`, whoever has brought the tunnel up.
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
    machine.save(request.file, request.config, request.personality)?;
    if let Some(mut journal) = lock.journal()? {
        // It has been written since, but not by somebody else.
        journal.saved(request.config)?;
    }
    Ok(())
}
