#![forbid(unsafe_code)]
//! A running WireGuard device.
//!
//! Six kinds of thread, named after what they do:
//!
//! ```text
//! out      read batch (TUN) → route → reserve → seal → send batch (UDP)      one
//! in4, in6 receive batch (UDP) → open → check → merge → write batch (TUN)    one per socket
//! both     all of these, while there is little to carry                          one
//! control  handshakes, timers, configuration, link and route changes        one
//! uapi     accepts connections; one short-lived thread for each              one
//! names    looks up one silent peer's endpoint, and ends                     ≤ one
//! ```
//!
//! A packet is carried from one system call to the next by the thread that read
//! it. While there is little, that is `both`, and the others sleep. Those that
//! carry meet `control` only in the protocol's per-peer locks; handshake messages
//! go to `control` through a bounded queue.
//!
//! | file | what it is |
//! |---|---|
//! | `outbound.rs` | the way out, in packet order |
//! | `batch.rs` | the messages that one send takes |
//! | `schedule.rs`, `schedule/` | which thread waits for what |
//! | `inbound.rs` | the way in, in packet order |
//! | `control.rs` | the loop that owns the protocol's slow state |
//! | `sockets.rs` | the UDP sockets, bound and rebound as one |
//! | `source.rs` | the source address of datagrams to a peer that has not been heard of |
//! | `loops.rs` | routing loops, recognised |
//! | `flood.rs`, `flood_filter.rs` | when handshakes are a flood, and how it is shed in the kernel |
//! | `timer.rs` | when control wakes by itself |
//! | `uapi.rs` | the configuration socket |

mod batch;
mod control;
mod flood;
mod flood_filter;
mod inbound;
mod loops;
mod outbound;
mod schedule;
mod shared;
mod sockets;
mod source;
mod timer;
mod uapi;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use taupe_os_linux::namespace::Network;
use taupe_os_linux::run_directory;
use taupe_os_linux::tun;
use taupe_os_linux::watch::LinkWatch;
use taupe_packet::tap::Tap;
use thiserror::Error;

use crate::control::Control;
use crate::shared::{Command, Shared};
pub use taupe_protocol::Notice;
pub use taupe_runtime::resolver::{Resolver, SystemResolver, ask_servers, system_servers};

/// What a device is made from.
pub struct Options {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// Where the TUN comes from.
    pub tun: TunSource,
    /// The network that its datagrams leave by.
    pub underlay: Underlay,
    /// What stands between the interface and the tunnel, if anything does.
    pub tap: Option<Arc<dyn Tap>>,
    /// Where the configuration socket comes from.
    pub uapi: UapiSource,
    /// What the kernel and the processor may be asked to do for whole batches.
    pub offloads: Offloads,
    /// The folder where handshake timestamps are saved across restarts;
    /// `None` is `/var/lib/taupe`.
    pub state_dir: Option<PathBuf>,
    /// Who wants to know when a peer falls silent; must not wait.
    pub notices: Option<Box<dyn Fn(Notice) + Send>>,
}

/// Where the TUN comes from.
pub enum TunSource {
    /// It is created.
    Create,
    /// It has been opened by the caller (`WG_TUN_FD`).
    Fd(OwnedFd),
    /// It has been opened in another network namespace, into which this process cannot
    /// look, with what watches it from there.
    Elsewhere {
        /// The TUN.
        tun: OwnedFd,
        /// Opened in the TUN's network namespace.
        watch: LinkWatch,
    },
}

/// The network that a device's datagrams leave by: where its UDP sockets are, and where
/// routes are watched.
pub enum Underlay {
    /// That of the thread which starts the device.
    Here,
    /// Another one, in which the TUN of another device is.
    Behind {
        /// The network.
        network: Network,
        /// Gives the mark of this device (`fwmark`) to that one's datagrams too, which
        /// leave this machine in the place of its own. Tells what is wrong if it cannot.
        mark: Box<dyn Fn(u32) -> Result<(), String> + Send>,
    },
}

impl Underlay {
    /// Does something in this network.
    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self {
            Self::Here => Ok(work()),
            Self::Behind { network, .. } => network.within(work),
        }
    }
}

/// Where the configuration socket comes from.
pub enum UapiSource {
    /// It is bound at `/var/run/wireguard/INTERFACE.sock`.
    Bind,
    /// It is listening already (`WG_UAPI_FD`).
    Fd(OwnedFd),
}

/// Which fast paths are tried. Each is probed; those of the kernel are given up
/// at run time when it refuses them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offloads {
    /// TCP super-packets from and to the TUN.
    pub tun_tso: bool,
    /// UDP super-packets from and to the TUN (Linux 6.2).
    pub tun_uso: bool,
    /// Batches of datagrams sent with `UDP_SEGMENT`.
    pub udp_gso: bool,
    /// Batches of datagrams received with `UDP_GRO`.
    pub udp_gro: bool,
    /// Batches sealed and opened with our own vector code, and X25519 with AVX-512.
    pub avx512: bool,
    /// Floods of handshakes shed in the kernel (Linux 5.8, `CAP_BPF`).
    pub flood_filter: bool,
}

impl Default for Offloads {
    fn default() -> Self {
        Self {
            tun_tso: true,
            tun_uso: true,
            udp_gso: true,
            udp_gro: true,
            avx512: true,
            flood_filter: true,
        }
    }
}

/// Why a device could not be started. Nothing is left behind.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The TUN.
    #[error(transparent)]
    Tun(#[from] tun::OpenError),
    /// Another process answers on the configuration socket.
    #[error(
        "{} is in use: a program already runs the interface; delete the interface \
         (`ip link del`) to end it", .0.display()
    )]
    Running(PathBuf),
    /// The folder of the configuration socket.
    #[error(transparent)]
    Folder(#[from] run_directory::Error),
    /// The configuration socket.
    #[error("cannot listen on {}: {source}; it takes root", .path.display())]
    Uapi {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Something the system has to give.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// How a device ended.
#[derive(Debug)]
pub enum Exit {
    /// Its interface was deleted.
    InterfaceDeleted,
    /// Its configuration socket was removed.
    SocketRemoved,
    /// [`Stopper::stop`] was called.
    Stopped,
    /// It could not go on.
    Failed(String),
}

/// A running device.
pub struct Engine {
    shared: Arc<Shared>,
    control: JoinHandle<Exit>,
}

impl Engine {
    /// Starts a device. When this returns, its configuration socket answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        Self::start_with(options, Arc::new(SystemResolver::default()))
    }

    /// [`Engine::start`] with another way from endpoints' names to addresses
    /// than the system's.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(options: Options, resolver: Arc<dyn Resolver>) -> Result<Self, StartError> {
        let (control, shared) = Control::new(options, resolver)?;
        let control = spawn("control", move || control.run())?;
        Ok(Self { shared, control })
    }

    /// A handle by which another thread can end the device.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until the device has ended. The socket and the interface that it
    /// made are gone then (a persistent interface stays); those that were passed
    /// in are their owner's.
    #[must_use]
    pub fn run(self) -> Exit {
        let exit = self.control.join();
        exit.unwrap_or_else(|_| Exit::Failed("the control thread panicked".into()))
    }
}

/// Ends a device.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks the device to end; [`Engine::run`] returns soon after.
    pub fn stop(&self) {
        self.0.send(Command::Stop);
    }
}

fn spawn<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StartError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|source| StartError::System {
            what: "cannot start a thread",
            source,
        })
}
