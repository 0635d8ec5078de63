#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Sandbox for a command: a user, a network and a mount namespace in which a TUN is the only path
//! out for IP. It does not need root.
//!
//! ```text
//! this process                       its child, in the cell
//! enclose ── fork ─────────────────► namespaces, network, files
//!    ◄─ TUN, watch, namespaces ───── sends what it has opened, and waits
//! (a device begins to serve the TUN)
//! Enclosed::release ───────────────► gives up all rights, becomes the command
//! ```
//!
//! The device sends its datagrams from this process's network namespace. This process holds the
//! last descriptor of the TUN: when it ends for any reason, the TUN disappears, and the sandbox can
//! no longer send anything.
//!
//! Another command [joins](join) the sandbox through its namespaces. The process that created it
//! passes them over a socket that only its user can reach ([`Shared`]).
//!
//! | file | content |
//! |---|---|
//! | `inside.rs` | the child, from fork to exec |
//! | `network.rs` | TUN, addresses, routes, ping; also without a sandbox, for a tunnel through another tunnel ([`lay`]) |
//! | `files.rs` | mounts: name servers, no program that gains rights |
//! | `hidden.rs` | services that are hidden |
//! | `rights.rs` | capabilities that the command loses |
//! | `refusal.rs` | reasons for failure, with advice |
//! | `shared.rs` | rendezvous for other commands |
//! | `message.rs` | messages with text and descriptors over a socket |

mod files;
mod hidden;
mod inside;
mod message;
mod network;
mod refusal;
mod rights;
mod shared;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use ipnet::IpNet;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use taupe_os_linux::process::fork;
use taupe_os_linux::watch::LinkWatch;

pub use inside::{NOT_EXECUTABLE, NOT_FOUND, NOT_SET_UP, join};
pub use network::{Network, NetworkError, Opened, lay};
pub use shared::{JoinError, Member, PlaceError, Shared, user_folder};

/// Configuration of a sandbox.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the TUN.
    pub interface: String,
    /// Addresses of the TUN with prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Destinations reached through the TUN. No others are reachable.
    pub routes: Vec<IpNet>,
    /// MTU of the TUN, in bytes.
    pub mtu: u32,
    /// Name servers. If there are none, those of `/etc/resolv.conf` are used, through the tunnel.
    pub name_servers: Vec<IpAddr>,
    /// Search domains for names without a dot.
    pub search: Vec<String>,
    /// True to hide the session bus and the user's service manager, too.
    pub hide_session: bool,
    /// A folder of this user that is hidden in the sandbox. The sandbox's own files take its place.
    pub folder: PathBuf,
}

/// Reason why there is no sandbox. Nothing of it remains.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The child failed. The text has the step, the reason and advice.
    #[error("{0}")]
    Refused(String),
    /// The child ended without a message.
    #[error("the process that was to become the command was ended from outside")]
    Died,
    /// The process or its socket could not be created.
    #[error("cannot start a process for the command: {0}")]
    Process(#[source] io::Error),
}

/// A sandbox whose command has not started.
#[derive(Debug)]
pub struct Enclosed {
    /// The TUN, which is up.
    pub tun: OwnedFd,
    /// Watch of the TUN from inside its network namespace.
    pub watch: LinkWatch,
    /// Namespaces through which other commands join.
    pub namespaces: Namespaces,
    /// Remarks for the user, one sentence each.
    pub remarks: Vec<String>,
    /// The child, which waits until the TUN is served.
    pub waiting: Waiting,
}

/// The child process that becomes the command.
#[derive(Debug)]
pub struct Child {
    /// Its process ID, valid until it is waited for.
    pub pid: Pid,
    handle: OwnedFd,
}

/// Namespaces of a sandbox.
#[derive(Debug)]
pub struct Namespaces {
    user: OwnedFd,
    network: OwnedFd,
    mount: OwnedFd,
}

/// Forks a child that sets a sandbox up and later becomes `command`: a program, searched in `PATH`,
/// with its arguments.
///
/// # Errors
///
/// See [`Error`]. Also fails if this process has more than one thread.
pub fn enclose(plan: &Plan, command: &[OsString]) -> Result<Enclosed, Error> {
    let (socket, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| Error::Process(error.into()))?;
    let mut sockets = Some((socket, theirs));
    let pid = fork(|| match sockets.take() {
        Some((ours, socket)) => {
            // If the child held this end too, it would not notice the parent's end.
            drop(ours);
            inside::run(plan, socket, command)
        }
        None => inside::NOT_SET_UP,
    })
    .map_err(Error::Process)?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    let handle = handle.map_err(|error| Error::Process(error.into()))?;
    let child = Child { pid, handle };
    let Some((socket, theirs)) = sockets else {
        return Err(Error::Died);
    };
    drop(theirs);
    match message::receive(socket.as_fd()) {
        Ok(Some(message)) => inside::opened(message, Waiting { child, socket }),
        Ok(None) => Err(Error::Died),
        Err(error) => Err(Error::Process(error)),
    }
}

/// A child that waits until the TUN is served.
#[derive(Debug)]
pub struct Waiting {
    child: Child,
    socket: OwnedFd,
}

impl Waiting {
    /// Starts the command.
    ///
    /// # Errors
    ///
    /// Returns an error if the child has ended.
    pub fn release(self) -> Result<Child, Error> {
        let sent = message::send(self.socket.as_fd(), inside::GO, &[]);
        sent.map_err(|_| Error::Died)?;
        Ok(self.child)
    }
}

impl Child {
    /// Sends the process a signal. Returns false if it has ended.
    pub fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.handle, signal).is_ok()
    }
}
