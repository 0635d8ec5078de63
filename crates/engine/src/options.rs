//! Options of a device.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use taupe_os_linux::namespace::NetworkNamespace;
use taupe_os_linux::watch::LinkWatch;
use taupe_packet::tap::Tap;
use taupe_protocol::{Lanes, Notice};

/// Options of a device.
pub struct Options {
    /// The interface's name, 1 to 15 bytes.
    pub interface: String,
    /// The source of the TUN.
    pub tun: TunSource,
    /// The network that carries its datagrams.
    pub underlay: Underlay,
    /// Called with the mark (`fwmark`) of the device's datagrams when it changes, if they go through
    /// an outer device: it is the outer datagrams that leave this machine.
    pub outer_mark: Option<OuterMark>,
    /// A stage between the TUN and the tunnel that may rewrite, drop or answer packets.
    pub tap: Option<Arc<dyn Tap>>,
    /// The source of the configuration socket.
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

/// Source of a device's TUN.
pub enum TunSource {
    /// The device creates it, with a queue for each lane.
    Create {
        /// The number of lanes ([`crate`]). `None` is half the number of processors, rounded down to
        /// a power of two, and at most 16. The device has one lane if the kernel refuses several.
        lanes: Option<Lanes>,
    },
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
    Behind(NetworkNamespace),
}

/// Sets the mark of the outer device's datagrams. Returns the reason if it fails.
pub type OuterMark = Box<dyn Fn(u32) -> Result<(), String> + Send>;

impl Underlay {
    /// Returns another handle of the network.
    ///
    /// # Errors
    /// The system's, if there are too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Here => Self::Here,
            Self::Behind(network) => Self::Behind(network.try_clone()?),
        })
    }

    /// Runs `work` in this network.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        match self {
            Self::Here => Ok(work()),
            Self::Behind(network) => network.within(work),
        }
    }
}

/// Source of a device's configuration socket.
pub enum UapiSource {
    /// The device binds it at `/var/run/wireguard/INTERFACE.sock`.
    Bind,
    /// The caller passes in a listening socket (`WG_UAPI_FD`).
    Fd(OwnedFd),
}

/// The fast paths to try. The device probes each of them, and gives up a kernel offload at run
/// time when the kernel refuses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    /// Busy polling between a request and its answer. For comparisons: the device itself turns it
    /// off where it does not help.
    pub busy_poll: bool,
    /// A fair queue of the packets that wait for the network, which keeps the latency low under load.
    /// It needs a TUN that can be read without blocking (Linux 5.11).
    pub fair_queue: bool,
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
            busy_poll: true,
            fair_queue: true,
        }
    }
}
