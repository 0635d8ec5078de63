//! Changes of the tunnel's interface and of the routes of its network.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use taupe_os_linux::watch::LinkState;
use taupe_protocol::crypto::{HANDSHAKE_STACK, erase_dead_stack};
use tracing::{debug, info, warn};

use super::Control;
use crate::shared::Command;
use crate::sockets::Sockets;
use taupe_runtime::clock::now;

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
        let state = self.system.link_state(&self.own_lane.tun, &mut self.link);
        self.apply_link(state);
    }

    /// Applies a state of the interface.
    pub(super) fn apply_link(&mut self, state: io::Result<Option<LinkState>>) {
        let LinkState { up, mtu } = match state {
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
        // Sessions have been begun or ended.
        erase_dead_stack::<HANDSHAKE_STACK>();
    }
}
