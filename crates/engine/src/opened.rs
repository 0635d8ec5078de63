//! Everything that a device opens before it starts. Later it opens only what its
//! [`Environment`](crate::Environment) opens for it.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use taupe_os_linux::netlink::NetworkReader;
use taupe_os_linux::tun::{self, Queues, Tun};
use taupe_os_linux::watch::{LinkState, LinkWatch, RouteWatch};
use taupe_packet::tap::Tap;
use taupe_protocol::{Lanes, Notice};
use taupe_runtime::configuration_socket::Listener;
use tracing::info;

use crate::lifecycle::{StartError, system_error};
use crate::options::{Offloads, Options, TunSource, UapiSource, Underlay};
use crate::watched_socket::WatchedSocket;

/// The MTU of a new interface, in bytes: 1500 for Ethernet less 80 for WireGuard over IPv6, as in
/// wg-quick and wireguard-go.
const DEFAULT_MTU: u32 = 1420;

/// A device that has opened its TUN, its configuration socket and its watches, and has no thread yet.
pub struct OpenedDevice {
    pub(crate) tap: Option<Arc<dyn Tap>>,
    pub(crate) offloads: Offloads,
    pub(crate) notices: Option<Box<dyn Fn(Notice) + Send>>,
    /// The name of the tunnel's interface, if it is in the network that carries the datagrams.
    pub(crate) own_interface: Option<String>,
    /// True if that network is not the network namespace of the process.
    pub(crate) is_other_namespace: bool,
    pub(crate) listener: UnixListener,
    pub(crate) socket: Option<WatchedSocket>,
    pub(crate) queues: Queues,
    pub(crate) link: LinkWatch,
    /// The state of the interface. Notifications follow about its changes.
    pub(crate) link_state: io::Result<Option<LinkState>>,
    pub(crate) routes: RouteWatch,
    pub(crate) network: NetworkReader,
}

impl OpenedDevice {
    /// Opens everything that the device needs. Starts no thread. `options.outer_mark` and
    /// `options.state_dir` are not used; they belong to the environment.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn open(options: Options) -> Result<Self, StartError> {
        let Options {
            interface,
            tun,
            underlay,
            tap,
            uapi,
            offloads,
            notices,
            ..
        } = options;
        let own_interface = match (&underlay, &tun) {
            (Underlay::Here, TunSource::Create { .. } | TunSource::Fd(_)) => {
                Some(interface.clone())
            }
            _ => None,
        };
        let listener = match uapi {
            UapiSource::Bind => Listener::bind(&interface)?,
            UapiSource::Fd(fd) => Listener::from_fd(fd)?,
        };
        let (queues, mut link) = open_tun(&interface, tun, offloads)?;
        let link_state = link.drain(&queues.first);
        let routes = underlay.within(RouteWatch::open).flatten();
        let network = underlay.within(|| NetworkReader::open().map_err(|error| error.source));
        let Listener { socket, file } = listener;
        Ok(Self {
            tap,
            offloads,
            notices,
            own_interface,
            is_other_namespace: matches!(underlay, Underlay::Behind(_)),
            listener: socket,
            socket: file
                .map(WatchedSocket::new)
                .transpose()
                .map_err(system_error("cannot watch the configuration socket"))?,
            queues,
            link,
            link_state,
            routes: routes.map_err(system_error("cannot watch routes"))?,
            network: network
                .flatten()
                .map_err(system_error("cannot read routes"))?,
        })
    }

    /// Returns another descriptor of the TUN. The interface exists at least as long.
    ///
    /// # Errors
    /// The system's, if there are too many descriptors.
    pub fn clone_tun(&self) -> io::Result<OwnedFd> {
        self.queues.first.as_fd().try_clone_to_owned()
    }

    /// Prepares a device whose process will not be able to remove anything: the kernel deletes the
    /// interface when the process ends, and the caller removes the file of the configuration socket.
    pub fn leave_removal(&mut self) {
        self.queues.leave_deletion_to_exit();
        if let Some(socket) = &mut self.socket {
            socket.hand_over_file();
        }
    }
}

/// Opens the queues of the TUN, one for each lane, and a watch on its link.
fn open_tun(
    name: &str,
    source: TunSource,
    offloads: Offloads,
) -> Result<(Queues, LinkWatch), StartError> {
    let wanted = tun::Offloads {
        tso: offloads.tun_tso,
        uso: offloads.tun_uso,
        gro_tcp: offloads.tun_tso,
        gro_udp: offloads.tun_uso,
    };
    let (queues, watch) = match source {
        TunSource::Create { lanes } => {
            let lanes = lanes.unwrap_or_else(lanes_of_this_machine);
            let queues = Tun::create_queues(name, wanted, lanes.count())?;
            if let Some(error) = &queues.refused {
                info!(%error, "the device has one lane, because several are not available");
            }
            let set = queues.first.set_mtu(DEFAULT_MTU);
            set.map_err(system_error("cannot set the interface's MTU"))?;
            (queues, None)
        }
        TunSource::Fd(fd) => (Tun::from_fd(fd, wanted)?.into(), None),
        TunSource::Elsewhere { tun, watch } => (Tun::from_fd(tun, wanted)?.into(), Some(watch)),
    };
    let tun = &queues.first;
    if tun.offloads() != wanted {
        info!(granted = ?tun.offloads(), "the kernel does not have every TUN offload");
    }
    let watch = watch.map_or_else(|| LinkWatch::open(tun), Ok);
    Ok((
        queues,
        watch.map_err(system_error("cannot watch the interface"))?,
    ))
}

/// Returns the number of lanes that uses the processors of this machine.
fn lanes_of_this_machine() -> Lanes {
    lanes_for(std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Returns half of the number of processors, rounded down to a number of lanes. A lane can keep two
/// processors busy, one in each direction.
fn lanes_for(processors: usize) -> Lanes {
    Lanes::at_most(processors / 2)
}

#[cfg(test)]
mod tests {
    use super::lanes_for;

    #[test]
    fn lanes_follow_the_processors() {
        let table = [
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 2),
            (7, 2),
            (8, 4),
            (16, 8),
            (32, 16),
            (128, 16),
        ];
        for (processors, lanes) in table {
            assert_eq!(lanes_for(processors).count(), lanes, "{processors}");
        }
    }
}
