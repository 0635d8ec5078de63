//! Interface to the system on which changes are made.

use std::fmt;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::file::File;
use taupe_uapi::Device;

use crate::device::DeviceInterface;
use crate::dns::SystemCommand;
use crate::journal::BootId;
use crate::route::TunnelRoute;
use crate::snapshot::Snapshot;

/// The parts of a snapshot that not every caller needs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SnapshotRequest {
    /// The index of the tunnel's interface, if it exists.
    pub own: Option<u16>,
    /// Another FIB than the process's, whose routes are listed too.
    pub fib: Option<u32>,
    /// True if macOS's network services are listed, which takes three commands for each.
    pub services: bool,
}

/// A system on which one tunnel is brought up and down: the real one, or a model for tests that
/// injects failures.
pub trait Machine {
    /// Returns the identity of the present boot.
    ///
    /// # Errors
    /// See [`StepError`].
    fn boot(&mut self) -> Result<BootId, StepError>;

    /// Returns the interface of the running device with the tunnel's name.
    fn device(&mut self) -> Option<DeviceInterface>;

    /// Lists interfaces, addresses and routes. The endpoints are those of the last
    /// [`Machine::resolve`], or those to which the running device sends.
    ///
    /// # Errors
    /// See [`StepError`].
    fn snapshot(&mut self, request: SnapshotRequest) -> Result<Snapshot, StepError>;

    /// Resolves the names of endpoints, and stores the device's configuration.
    ///
    /// # Errors
    /// See [`StepError`].
    fn resolve(&mut self, file: &File, report: &mut dyn Report) -> Result<(), StepError>;

    /// Creates the device.
    ///
    /// # Errors
    /// See [`StepError`].
    fn create(&mut self) -> Result<DeviceInterface, StepError>;

    /// Deletes the device, and waits until its interface is gone. Succeeds if it is gone already.
    ///
    /// # Errors
    /// See [`StepError`].
    fn delete(&mut self, device: &DeviceInterface) -> Result<(), StepError>;

    /// Sets the stored configuration.
    ///
    /// # Errors
    /// See [`StepError`].
    fn configure(&mut self, fwmark: Option<u32>) -> Result<(), StepError>;

    /// Returns the state of the device.
    ///
    /// # Errors
    /// See [`StepError`].
    fn device_state(&mut self, device: &DeviceInterface) -> Result<Device, StepError>;

    /// Adds an address to the device's interface.
    ///
    /// # Errors
    /// See [`StepError`].
    fn add_address(
        &mut self,
        device: &DeviceInterface,
        network: IpNet,
        peer: Option<IpAddr>,
    ) -> Result<(), StepError>;

    /// Sets the interface's MTU in bytes.
    ///
    /// # Errors
    /// See [`StepError`].
    fn set_mtu(&mut self, device: &DeviceInterface, mtu: u32) -> Result<(), StepError>;

    /// Brings the interface up.
    ///
    /// # Errors
    /// See [`StepError`].
    fn bring_up(&mut self, device: &DeviceInterface) -> Result<(), StepError>;

    /// Adds a route.
    ///
    /// # Errors
    /// See [`StepError`]; [`StepError::exists`] if there is a route to the destination.
    fn add_route(&mut self, tunnel: u16, route: &TunnelRoute) -> Result<(), StepError>;

    /// Deletes a route. Succeeds if it is gone already.
    ///
    /// # Errors
    /// See [`StepError`].
    fn delete_route(&mut self, route: &TunnelRoute) -> Result<(), StepError>;

    /// Runs a command of the system, and returns its standard output.
    ///
    /// # Errors
    /// See [`StepError`].
    fn run(&mut self, command: &SystemCommand) -> Result<String, StepError>;

    /// Runs a command of the file.
    ///
    /// # Errors
    /// See [`StepError`].
    fn run_hook(&mut self, command: &str, device: Option<&str>) -> Result<(), StepError>;
}

/// Error of a step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The kernel refused a change.
    #[error("{}", Refusal(.0))]
    Kernel(#[source] io::Error),
    /// The device did not start or refused its configuration, with advice.
    #[error("{0}")]
    Device(String),
    /// The name of an endpoint has no address, with advice.
    #[error("{0}")]
    Endpoint(String),
    /// A command of the system or of the file failed.
    #[error("`{command}` failed ({outcome})")]
    Command {
        /// The command.
        command: String,
        /// Its exit status and error output, or why it could not be run.
        outcome: String,
    },
    /// The device's interface is gone.
    #[error("the interface is gone: its process has ended, or somebody deleted it")]
    NoInterface,
    /// The user interrupted the operation.
    #[error("interrupted")]
    Interrupted,
}

/// Numbers of errors that are equal on all systems.
const EPERM: i32 = 1;
const ESRCH: i32 = 3;
const ENXIO: i32 = 6;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;

impl StepError {
    /// Returns true if there is such a route.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.has_number(EEXIST)
    }

    /// Returns true if there is no such route.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.has_number(ESRCH)
    }

    /// Formats the error of a step with the equivalent command, unless the error contains the command.
    pub(crate) fn of_step(&self, command: &str) -> String {
        match self {
            Self::Command { .. } => self.to_string(),
            _ => format!("`{command}`: {self}"),
        }
    }

    fn has_number(&self, number: i32) -> bool {
        matches!(self, Self::Kernel(error) if error.raw_os_error() == Some(number))
    }
}

/// Formats an error of the kernel, with advice.
struct Refusal<'a>(&'a io::Error);

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        match self.0.raw_os_error() {
            Some(EPERM | EACCES) => f.write_str(
                "; networks are set up by root, and in a jail only in a network of its own \
                 (jail.conf: vnet)",
            ),
            Some(ENXIO) => f.write_str(
                "; the interface does not exist: its process has ended, or a jail lacks the driver \
                 (devfs rules that unhide tun)",
            ),
            _ => Ok(()),
        }
    }
}

/// Receives progress and notes for the user.
pub trait Report {
    /// Reports a step that is about to be executed, as the equivalent command.
    fn step(&mut self, command: &dyn fmt::Display);

    /// Reports a note, one sentence.
    fn note(&mut self, note: &taupe_config::plan_note::PlanNote);

    /// Returns true if the user has interrupted the operation. Called between two steps; the
    /// executed steps are then undone.
    fn is_interrupted(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_named_once() {
        let error = StepError::Command {
            command: "false".to_owned(),
            outcome: "exit status: 1".to_owned(),
        };
        assert_eq!(error.of_step("false"), "`false` failed (exit status: 1)");
        let gone = StepError::NoInterface.of_step("ifconfig wg0 up");
        assert!(
            gone.starts_with("`ifconfig wg0 up`: the interface is gone"),
            "{gone}"
        );
    }

    #[test]
    fn missing_rights_and_jails_are_reported_in_one_line() {
        for (number, advice) in [(EPERM, "by root"), (EACCES, "vnet"), (ENXIO, "unhide tun")] {
            let error = StepError::Kernel(io::Error::from_raw_os_error(number)).to_string();
            assert!(error.contains(advice) && !error.contains('\n'), "{error}");
        }
    }
}
