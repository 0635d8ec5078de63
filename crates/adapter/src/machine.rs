//! The system that changes are made on.

use std::io;
use std::path::Path;

use taupe_config::file::{File, Personality};
use taupe_os_linux::netlink::SystemError;
use thiserror::Error;

use crate::change::{Change, Phase};
use crate::comparison::Comparison;
use crate::dns;
use crate::identity::Socket;
use crate::journal;
use crate::last_state::LastState;
use crate::namespace::Namespace;
use crate::plan::Snapshot;
use crate::report::Report;

/// A system on which a tunnel is brought up and down: [`crate::Linux`], or
/// something that makes its calls fail, for tests.
///
/// It knows which interface it is about.
pub trait Machine {
    /// What tells this network namespace from others.
    fn namespace(&mut self) -> Namespace;

    /// Checks whether a network namespace is known to have ended.
    fn is_gone(&mut self, namespace: &Namespace) -> bool;

    /// Puts right what a restart of the system has left of a tunnel, before any
    /// name is looked up. Returns what the owner should know.
    ///
    /// # Errors
    /// See [`StepError`].
    fn recover(&mut self) -> Result<Option<String>, StepError>;

    /// The index of the interface with the tunnel's name.
    ///
    /// # Errors
    /// When links cannot be listed.
    fn interface(&mut self) -> Result<Option<u32>, StepError>;

    /// The same, when the tunnel's process was killed a moment ago: waits until its
    /// interface has gone with it. As [`Machine::interface`] while it lives.
    ///
    /// # Errors
    /// As [`Machine::interface`].
    fn interface_of_living(&mut self) -> Result<Option<u32>, StepError>;

    /// The configuration socket of the device that has the tunnel's name.
    fn socket(&mut self) -> Option<Socket>;

    /// Checks whether the process that made a configuration socket is there.
    fn lives(&mut self, socket: Socket) -> bool;

    /// Makes the following steps concern this device, whatever its interface is
    /// called; without an index, the one that has the tunnel's name.
    fn follow(&mut self, index: Option<u32>, socket: Option<Socket>);

    /// The index of that device's interface, if it is in this network namespace.
    ///
    /// # Errors
    /// When links cannot be listed.
    fn own_interface(&mut self) -> Result<Option<u32>, StepError>;

    /// Whether an interface with the tunnel's name is a WireGuard device, of
    /// whatever program.
    fn is_wireguard(&mut self) -> bool;

    /// Finds out all that a plan for `file` depends on, and keeps what the
    /// device is to be told. Changes nothing; waits for names of endpoints.
    /// `own` are the steps that are in effect already.
    ///
    /// # Errors
    /// See [`LookError`].
    fn look(
        &mut self,
        file: &File,
        own: &[Change],
        report: &mut dyn Report,
    ) -> Result<Snapshot, LookError>;

    /// The steps that `wg-quick` must have taken to bring up the tunnel that is
    /// there.
    ///
    /// # Errors
    /// See [`LookError`].
    fn recognise(&mut self, file: &File) -> Result<Vec<Change>, LookError>;

    /// The command that taking a step is like, as the system is now.
    fn command(&mut self, change: &Change, interface: &str) -> String;

    /// The command that taking it back is like; `None` where nothing is to be done.
    fn undoing(&mut self, change: &Change, interface: &str) -> Option<String>;

    /// Takes a step.
    ///
    /// # Errors
    /// See [`StepError`].
    fn apply(&mut self, change: &Change) -> Result<(), StepError>;

    /// Takes a step back. What is gone already is done. Returns what the owner
    /// should know.
    ///
    /// # Errors
    /// See [`StepError`].
    fn undo(&mut self, change: &Change) -> Result<Option<String>, StepError>;

    /// Compares the system as it is with changes, which are all that are in effect. `index` is the number of the tunnel's interface.
    ///
    /// # Errors
    /// When the system cannot be looked at.
    fn verify(&mut self, changes: &[&Change], index: Option<u32>) -> Result<Comparison, StepError>;

    /// Makes a change again that deviates.
    ///
    /// # Errors
    /// See [`StepError`].
    fn restore(&mut self, change: &Change) -> Result<(), StepError>;

    /// The device as it is now, for [`Machine::stand_in`]. `None` if it does not answer.
    fn device(&mut self) -> Option<LastState>;

    /// Answers `wg show` in the place of a device that is gone until it is called with
    /// `None`, for commands of the file.
    ///
    /// # Errors
    /// When there can be no socket.
    fn stand_in(&mut self, state: Option<&LastState>) -> io::Result<()>;

    /// Makes the running device what the last [`Machine::look`] has found out.
    /// Sessions with peers that stay go on.
    ///
    /// # Errors
    /// See [`StepError`].
    fn sync(&mut self, mark: Option<u32>) -> Result<(), StepError>;

    /// Writes the file that describes the tunnel as it is over `config`.
    ///
    /// # Errors
    /// See [`SaveError`].
    fn save(
        &mut self,
        file: &File,
        config: &Path,
        personality: Personality,
    ) -> Result<(), SaveError>;
}

/// Why it is not known what to do. Nothing has been touched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LookError {
    /// The network's configuration cannot be read.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A peer's endpoint has no address.
    #[error("the endpoint {host}:{port} of the [Peer] in line {line} cannot be resolved: {reason}")]
    Endpoint {
        /// The name.
        host: String,
        /// The UDP port.
        port: u16,
        /// The peer's line in the file.
        line: usize,
        /// Why, and what to do.
        reason: String,
    },
    /// Name servers cannot be set.
    #[error(transparent)]
    Dns(#[from] dns::Error),
    /// Other tunnels are being brought up.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// A file.
    #[error("cannot read {what}: {source}")]
    Io {
        /// Which.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The person wants it to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Why a step was not taken, or not taken back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StepError {
    /// The kernel refuses.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The kernel has no nf_tables.
    #[error("{0}; load the module nf_tables")]
    NoFirewall(SystemError),
    /// Another program has the device's port.
    #[error(
        "UDP port {0} is taken by another program (`ss -ulnp sport = {0}` says which); free it, or \
         write another ListenPort"
    )]
    PortTaken(u16),
    /// The device did not start.
    #[error("{0}")]
    Device(String),
    /// The device does not take its configuration.
    #[error("{0}")]
    Client(#[from] taupe_client::Error),
    /// Name servers.
    #[error(transparent)]
    Dns(#[from] dns::Error),
    /// A command of the file.
    #[error("the {phase} command failed ({outcome}); mend it in the file, or remove it there")]
    Hook {
        /// Which.
        phase: Phase,
        /// How it ended.
        outcome: String,
    },
    /// The tunnel's interface has vanished.
    #[error("the interface is gone: its process has ended, or somebody deleted it")]
    NoInterface,
    /// A file or a socket.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The person wants it to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Why a tunnel was not saved. Its file is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The device cannot be read.
    #[error("cannot read the device: {0}")]
    Device(#[from] taupe_client::Error),
    /// The network's configuration cannot be read.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The file cannot be written.
    #[error("cannot {what} {}: {source}; the file is as it was", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
