//! Changes of the tunnel's interface and of the routes of its network.

use std::net::IpAddr;
use std::num::NonZero;
use std::sync::atomic::Ordering;

use taupe_os_linux::tun::{self, Queues, Tun};
use taupe_os_linux::watch::{LinkState, LinkWatch};
use taupe_protocol::Lanes;
use tracing::{debug, info, warn};

use super::{Control, io};
use crate::lifecycle::StartError;
use crate::options::{Offloads, TunSource};
use crate::shared::Command;
use crate::sockets::Sockets;
use taupe_runtime::clock::now;

/// The MTU of a new interface, in bytes: 1500 for Ethernet less 80 for WireGuard over IPv6, as in
/// wg-quick and wireguard-go.
const DEFAULT_MTU: u32 = 1420;

impl Control {
    /// Forgets the local address of each peer whose route now leaves by another interface than the
    /// one its datagrams arrived on, as the kernel does. The routing table then chooses the source
    /// address. All other peers are still answered from the address that they send to.
    pub(super) fn check_local_addresses(&mut self) {
        let (routes, mark) = (&mut self.routes, self.mark);
        self.driver
            .device_mut()
            .retain_local_addresses(|endpoint, local| {
                let remote = endpoint.remote.ip();
                let link_local = matches!(remote, IpAddr::V6(a) if a.is_unicast_link_local());
                let route = routes.interface_to(remote, local.address, mark);
                link_local || route.is_ok_and(|interface| interface == local.interface)
            });
    }

    /// Applies changes of the interface: up, down, MTU, deletion.
    pub(super) fn check_link(&mut self) {
        let LinkState { up, mtu } = match self.link.drain(&self.own_lane.tun) {
            Ok(Some(state)) => state,
            Ok(None) => return self.shared.send(Command::TunDeleted),
            Err(error) => {
                warn!(%error, "watching the interface");
                return;
            }
        };
        let before = self.shared.mtu.swap(mtu as usize, Ordering::Relaxed);
        if before != mtu as usize {
            debug!(mtu, "MTU");
            if let Some(tap) = &self.shared.tap {
                tap.set_mtu(mtu as usize);
            }
        }
        match (self.driver.device().is_up(), up) {
            (false, true) => {
                info!("interface up");
                self.listen();
                self.driver.device_mut().set_up(now());
            }
            (true, false) => {
                info!("interface down");
                self.driver.device_mut().set_down();
                self.replace_sockets(Sockets::default());
                self.rebind_at = None;
            }
            _ => {}
        }
    }
}

/// Opens the queues of the TUN, one for each lane, and a watch on its link.
pub(super) fn open_tun(
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
            set.map_err(io("cannot set the interface's MTU"))?;
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
    Ok((queues, watch.map_err(io("cannot watch the interface"))?))
}

/// Returns the number of lanes that uses the processors of this machine.
fn lanes_of_this_machine() -> Lanes {
    lanes_for(std::thread::available_parallelism().map_or(1, NonZero::get))
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
