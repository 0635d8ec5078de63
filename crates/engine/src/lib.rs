#![forbid(unsafe_code)]
//! A running WireGuard device on Linux: its threads, sockets and configuration socket.
//!
//! A device has these threads:
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
//! The thread that reads a packet also sends it. While traffic is light, the thread `both` reads
//! from all sources, and `out`, `in4` and `in6` sleep (`schedule.rs`). The packet threads share
//! with `control` only the protocol's lock of each peer, and a bounded queue that takes handshake
//! messages to `control`.
//!
//! | file | content |
//! |---|---|
//! | `outbound.rs` | TUN to network, in packet order |
//! | `batch.rs` | the messages that one send carries |
//! | `inbound.rs` | network to TUN, in packet order |
//! | `schedule.rs`, `schedule/` | which thread waits for which source |
//! | `control.rs`, `control/` | the control loop: handshakes, timers, configuration |
//! | `sockets.rs` | the UDP sockets, bound and replaced together |
//! | `source.rs` | the source address of datagrams to a peer that has sent nothing yet |
//! | `loops.rs` | detection of routing loops |
//! | `flood.rs`, `flood_filter.rs` | detection of handshake floods, and the filter that drops them in the kernel |
//! | `timer.rs` | the control loop's timer |
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

use taupe_os_linux::namespace::NetworkNamespace;
use taupe_os_linux::run_directory;
use taupe_os_linux::tun;
use taupe_os_linux::watch::LinkWatch;
use taupe_packet::tap::Tap;
use thiserror::Error;

use crate::control::Control;
use crate::shared::{Command, Shared};
pub use taupe_protocol::Notice;
pub use taupe_runtime::resolver::{Resolver, SystemResolver, ask_servers, system_servers};

/// Options of a device.
pub struct Options {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// Where the TUN comes from.
    pub tun: TunSource,
    /// The network that carries its datagrams.
    pub underlay: Underlay,
    /// A stage between the TUN and the tunnel that may rewrite, drop or answer packets.
    pub tap: Option<Arc<dyn Tap>>,
    /// Where the configuration socket comes from.
    pub uapi: UapiSource,
    /// The fast paths of the kernel and the processor that the device may use.
    pub offloads: Offloads,
    /// The folder where handshake timestamps are saved across restarts;
    /// `None` is `/var/lib/taupe`.
    pub state_dir: Option<PathBuf>,
    /// Called when a peer becomes unreachable or answers again. Runs on the control thread, so it
    /// must not block.
    pub notices: Option<Box<dyn Fn(Notice) + Send>>,
}

/// Where the TUN comes from.
pub enum TunSource {
    /// The device creates it.
    Create,
    /// The caller has opened it (`WG_TUN_FD`).
    Fd(OwnedFd),
    /// The caller has opened it in another network namespace, which this process cannot enter.
    Elsewhere {
        /// The TUN.
        tun: OwnedFd,
        /// A watch on the interface, opened in the TUN's network namespace.
        watch: LinkWatch,
    },
}

/// The network that carries a device's datagrams. Its UDP sockets are bound there, and it watches
/// the routes there.
pub enum Underlay {
    /// The network namespace of the thread that starts the device.
    Here,
    /// Another network namespace, whose uplink is the TUN of an outer device.
    Behind {
        /// The network.
        network: NetworkNamespace,
        /// Sets the mark (`fwmark`) of the outer device's datagrams too, because it is the outer
        /// datagrams that leave this machine. Returns the reason if it fails.
        mark: Box<dyn Fn(u32) -> Result<(), String> + Send>,
    },
}

impl Underlay {
    /// Runs `work` in this network.
    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self {
            Self::Here => Ok(work()),
            Self::Behind { network, .. } => network.within(work),
        }
    }
}

/// Where the configuration socket comes from.
pub enum UapiSource {
    /// The device binds it at `/var/run/wireguard/INTERFACE.sock`.
    Bind,
    /// The caller passes in a listening socket (`WG_UAPI_FD`).
    Fd(OwnedFd),
}

/// The fast paths to try. The device probes each of them, and gives up a kernel offload at run
/// time when the kernel refuses it.
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
    /// Vector code that seals and opens batches, and X25519 with AVX-512.
    pub avx512: bool,
    /// An eBPF filter that drops handshake floods in the kernel (Linux 5.8, `CAP_BPF`).
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

/// Error from starting a device. Everything that had been created is removed again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The TUN cannot be opened.
    #[error(transparent)]
    Tun(#[from] tun::OpenError),
    /// Another process answers on the configuration socket.
    #[error(
        "{} is in use: a program already runs the interface; delete the interface \
         (`ip link del`) to end it", .0.display()
    )]
    Running(PathBuf),
    /// The folder of the configuration socket cannot be created.
    #[error(transparent)]
    Folder(#[from] run_directory::RunDirectoryError),
    /// The configuration socket cannot be bound.
    #[error("cannot listen on {}: {source}; it takes root", .path.display())]
    Uapi {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Reason for which a device ended.
#[derive(Debug)]
pub enum Exit {
    /// Its interface was deleted.
    InterfaceDeleted,
    /// Its configuration socket was removed.
    SocketRemoved,
    /// [`Stopper::stop`] was called.
    Stopped,
    /// It could not continue.
    Failed(String),
}

/// A running device.
pub struct Engine {
    shared: Arc<Shared>,
    control: JoinHandle<Exit>,
}

impl Engine {
    /// Starts a device. Its configuration socket answers when this returns.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        Self::start_with(options, Arc::new(SystemResolver::default()))
    }

    /// Starts a device like [`Engine::start`], but looks endpoint names up with `resolver`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(options: Options, resolver: Arc<dyn Resolver>) -> Result<Self, StartError> {
        let (control, shared) = Control::new(options, resolver)?;
        let control = spawn("control", move || control.run())?;
        Ok(Self { shared, control })
    }

    /// Returns a handle with which another thread can end the device.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until the device has ended. By then it has removed the socket and the interface that
    /// it created (a persistent interface stays). A socket or TUN that was passed in is left to
    /// its owner.
    #[must_use]
    pub fn run(self) -> Exit {
        let exit = self.control.join();
        exit.unwrap_or_else(|_| Exit::Failed("the control thread panicked".into()))
    }
}

/// Handle that ends a device.
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
