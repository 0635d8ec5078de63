//! Interface to the system on which changes are made.

use std::io;
use std::path::Path;

use taupe_config::file::{Compatibility, File};
use taupe_os_linux::netlink::NetlinkError;
use thiserror::Error;

use crate::change::{Change, Phase};
use crate::comparison::Comparison;
use crate::dns::DnsError;
use crate::identity::Socket;
use crate::journal::JournalError;
use crate::last_state::LastState;
use crate::namespace::Namespace;
use crate::plan::Snapshot;
use crate::report::Report;

/// A system on which a tunnel is brought up and down: [`crate::Linux`], or a model for tests that
/// injects failures.
///
/// Each machine is for one interface.
pub trait Machine {
    /// Returns the identity of the network namespace.
    fn namespace(&mut self) -> Namespace;

    /// Returns true if a network namespace is known to have ended.
    fn is_gone(&mut self, namespace: &Namespace) -> bool;

    /// Repairs name servers after a restart of the system; call this before resolving names.
    /// Returns a note for the user.
    ///
    /// # Errors
    /// See [`StepError`].
    fn recover(&mut self) -> Result<Option<String>, StepError>;

    /// Returns the index of the interface with the tunnel's name.
    ///
    /// # Errors
    /// If the links cannot be listed.
    fn interface(&mut self) -> Result<Option<u32>, StepError>;

    /// Like [`Machine::interface`]; but if the tunnel's process was just killed, waits until its
    /// interface has gone.
    ///
    /// # Errors
    /// Those of [`Machine::interface`].
    fn interface_if_alive(&mut self) -> Result<Option<u32>, StepError>;

    /// Returns the configuration socket of the device with the tunnel's name.
    fn socket(&mut self) -> Option<Socket>;

    /// Returns true if the process that created a configuration socket is running.
    fn lives(&mut self, socket: Socket) -> bool;

    /// Selects the device for the following steps, independent of its interface's name. Without an
    /// index, selects the interface with the tunnel's name.
    fn select_device(&mut self, index: Option<u32>, socket: Option<Socket>);

    /// Returns the index of that device's interface, if it is in this network namespace.
    ///
    /// # Errors
    /// If the links cannot be listed.
    fn own_interface(&mut self) -> Result<Option<u32>, StepError>;

    /// Returns true if an interface with the tunnel's name is a WireGuard device, no matter which
    /// program made it.
    fn is_wireguard(&mut self) -> bool;

    /// Collects everything on which a plan for `file` depends, and stores the device's
    /// configuration. Resolves the names of endpoints, but changes nothing. `own` are the steps
    /// that are in effect already.
    ///
    /// # Errors
    /// See [`LookError`].
    fn look(
        &mut self,
        file: &File,
        own: &[Change],
        report: &mut dyn Report,
    ) -> Result<Snapshot, LookError>;

    /// Sets the device's last state, whose endpoints [`Self::look`] uses in place of looking names up.
    fn set_known_endpoints(&mut self, device: Option<LastState>);

    /// Returns the steps with which `wg-quick` must have brought up the present tunnel.
    ///
    /// # Errors
    /// See [`LookError`].
    fn recognise(&mut self, file: &File) -> Result<Vec<Change>, LookError>;

    /// Returns the command equivalent to a step, in the present state of the system.
    fn command(&mut self, change: &Change, interface: &str) -> String;

    /// Returns the command equivalent to undoing a step, or `None` if there is nothing to undo.
    fn undoing(&mut self, change: &Change, interface: &str) -> Option<String>;

    /// Executes a step.
    ///
    /// # Errors
    /// See [`StepError`].
    fn apply(&mut self, change: &Change) -> Result<(), StepError>;

    /// Undoes a step. Succeeds if its object is gone already. Returns a note for the user.
    ///
    /// # Errors
    /// See [`StepError`].
    fn undo(&mut self, change: &Change) -> Result<Option<String>, StepError>;

    /// Compares the system with all changes that are in effect. `index` is the index of the
    /// tunnel's interface.
    ///
    /// # Errors
    /// If the system cannot be examined.
    fn verify(&mut self, changes: &[&Change], index: Option<u32>) -> Result<Comparison, StepError>;

    /// Makes a change again that deviates.
    ///
    /// # Errors
    /// See [`StepError`].
    fn restore(&mut self, change: &Change) -> Result<(), StepError>;

    /// Returns the present state of the device, for [`Machine::stand_in`], or `None` if it does not
    /// answer.
    fn device(&mut self) -> Option<LastState>;

    /// Answers `wg show` in place of a device that is gone, for commands of the file. Ends when it
    /// is called with `None`.
    ///
    /// # Errors
    /// If the socket cannot be created.
    fn stand_in(&mut self, state: Option<&LastState>) -> io::Result<()>;

    /// Configures the running device with the result of the last [`Machine::look`]. Sessions with
    /// remaining peers continue.
    ///
    /// # Errors
    /// See [`StepError`].
    fn sync(&mut self, mark: Option<u32>) -> Result<(), StepError>;

    /// Writes a file that describes the running tunnel to `config`.
    ///
    /// # Errors
    /// See [`SaveError`].
    fn save(
        &mut self,
        file: &File,
        config: &Path,
        compatibility: Compatibility,
    ) -> Result<(), SaveError>;
}

/// Error of examining the system. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LookError {
    /// The network's configuration cannot be read.
    #[error(transparent)]
    System(#[from] NetlinkError),
    /// A peer's endpoint has no address.
    #[error("the endpoint {host}:{port} of the [Peer] in line {line} cannot be resolved: {reason}")]
    Endpoint {
        /// The name.
        host: String,
        /// The UDP port.
        port: u16,
        /// The peer's line in the file.
        line: usize,
        /// The reason, with advice.
        reason: String,
    },
    /// The name servers cannot be set.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// Other tunnels are being brought up, or their lock cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file cannot be read.
    #[error("cannot read {what}: {source}")]
    Io {
        /// A description of the file.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The user interrupted the operation.
    #[error("interrupted")]
    Interrupted,
}

/// Error of executing or undoing a step.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The kernel refused the change.
    #[error(transparent)]
    System(#[from] NetlinkError),
    /// The kernel has no nf_tables.
    #[error("{0}; load the module nf_tables")]
    NoFirewall(NetlinkError),
    /// Another program uses the device's port.
    #[error(
        "UDP port {0} is taken by another program (`ss -ulnp sport = {0}` says which); free it, or \
         write another ListenPort"
    )]
    PortTaken(u16),
    /// The device may not use a port below 1024.
    #[error(
        "UDP port {0} needs CAP_NET_BIND_SERVICE, which this process lacks; grant it, or write a \
         ListenPort from 1024 on"
    )]
    PortPrivileged(u16),
    /// The device did not start.
    #[error("{0}")]
    Device(String),
    /// The device refused its configuration.
    #[error("{0}")]
    Client(#[from] taupe_client::Error),
    /// The name servers cannot be set or restored.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// A command of the file failed.
    #[error("the {phase} command failed ({outcome}); mend it in the file, or remove it there")]
    Hook {
        /// The phase of the command.
        phase: Phase,
        /// Its exit status, or why it could not be run.
        outcome: String,
    },
    /// The tunnel's interface is gone.
    #[error("the interface is gone: its process has ended, or somebody deleted it")]
    NoInterface,
    /// A file or socket cannot be accessed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The user interrupted the operation.
    #[error("interrupted")]
    Interrupted,
}

/// Error of saving a tunnel. Its file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The device cannot be read.
    #[error("cannot read the device: {0}")]
    Device(#[from] taupe_client::Error),
    /// The network's configuration cannot be read.
    #[error(transparent)]
    System(#[from] NetlinkError),
    /// The file cannot be written.
    #[error("cannot {what} {}: {source}; the file is as it was", .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
