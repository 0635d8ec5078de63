#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! A command in a cell: a user, a network and a mount namespace of its own, in which a
//! TUN is the only way out for IP. It takes no root.
//!
//! ```text
//! this process                       its child, in the cell
//! enclose ── fork ─────────────────► namespaces, network, files
//!    ◄─ TUN, watch, namespaces ───── sends what it has opened, and waits
//! (a device begins to serve the TUN)
//! Enclosed::release ───────────────► gives up all rights, becomes the command
//! ```
//!
//! The datagrams of the device leave by this process's network namespace. When this
//! process ends, however it does, the TUN ends with its last descriptor, which is here,
//! and nothing of the cell can be sent anywhere any more.
//!
//! Another command [joins](join) the cell by its namespaces, which the process that made
//! it hands out at a socket that only its user reaches ([`Shared`]).
//!
//! | file | what it is |
//! |---|---|
//! | `inside.rs` | the child, from the fork to the command |
//! | `network.rs` | the TUN, addresses, routes, ping; without the rest of a cell, for a tunnel in a tunnel ([`lay`]) |
//! | `files.rs` | what is mounted: name servers, no program that gains rights |
//! | `hidden.rs` | services that are not seen from inside |
//! | `rights.rs` | what the command may not do |
//! | `refusal.rs` | why there is no cell, and what to do |
//! | `shared.rs` | how other commands find the cell |
//! | `message.rs` | text and descriptors over a socket |

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

/// What a cell has.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name of the TUN.
    pub interface: String,
    /// Its addresses with the lengths of their networks.
    pub addresses: Vec<IpNet>,
    /// What is reached by it; there is no other way to anything.
    pub routes: Vec<IpNet>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Who is asked for names; without any, those of `/etc/resolv.conf` are, through the
    /// tunnel.
    pub name_servers: Vec<IpAddr>,
    /// In which domains names without a dot are looked for.
    pub search: Vec<String>,
    /// The session bus and the user's service manager are hidden too.
    pub hide_session: bool,
    /// A folder of this user's that is hidden in the cell, and in whose place the cell has
    /// files of its own.
    pub folder: PathBuf,
}

/// Why there is no cell. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The child's words: what could not be had, why, what to do.
    #[error("{0}")]
    Refused(String),
    /// The child ended without a word.
    #[error("the process that was to become the command was ended from outside")]
    Died,
    /// The system cannot make a process, or a socket to speak to it.
    #[error("cannot start a process for the command: {0}")]
    Process(#[source] io::Error),
}

/// A cell whose command has yet to begin.
#[derive(Debug)]
pub struct Enclosed {
    /// The TUN, which is up.
    pub tun: OwnedFd,
    /// What watches it, from inside.
    pub watch: LinkWatch,
    /// By which others can join.
    pub namespaces: Namespaces,
    /// What is not as one may expect, a sentence each.
    pub remarks: Vec<String>,
    /// The child, which waits until the TUN is served.
    pub waiting: Waiting,
}

/// The process that becomes the command, a child of this one.
#[derive(Debug)]
pub struct Child {
    /// Its number, until somebody waits for it.
    pub pid: Pid,
    handle: OwnedFd,
}

/// The namespaces of a cell.
#[derive(Debug)]
pub struct Namespaces {
    user: OwnedFd,
    network: OwnedFd,
    mount: OwnedFd,
}

/// Makes a cell in a copy of this process, which is to become `command`, a program that
/// is looked for in `PATH` and its arguments.
///
/// # Errors
///
/// See [`Error`]; so it is when this process has more than one thread.
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
            // Or the child would not learn of this process's end.
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
    /// Lets the command begin.
    ///
    /// # Errors
    ///
    /// When the child has been ended.
    pub fn release(self) -> Result<Child, Error> {
        let sent = message::send(self.socket.as_fd(), inside::GO, &[]);
        sent.map_err(|_| Error::Died)?;
        Ok(self.child)
    }
}

impl Child {
    /// Sends it a signal; whether it was still there.
    pub fn signal(&self, signal: Signal) -> bool {
        pidfd_send_signal(&self.handle, signal).is_ok()
    }
}
