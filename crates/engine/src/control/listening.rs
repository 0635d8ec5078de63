//! The device's UDP sockets: how the control loop binds, replaces and marks them.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use taupe_os_linux::udp::{self, Socket};
use taupe_uapi::Errno;
use tracing::warn;

use super::Control;
use crate::inbound::InboundPath;
use crate::sockets::{BindRequest, Sockets};
use crate::system::MarkError;
use taupe_runtime::clock::now;

/// The pause between attempts to bind a port that is in use.
const REBIND_PAUSE: Duration = Duration::from_secs(1);

impl Control {
    /// Binds the sockets of a device that is up. If the port is in use, tries again every
    /// [`REBIND_PAUSE`] until it is free or another port is set.
    pub(super) fn listen(&mut self) {
        self.rebind_at = match self.bind(self.port) {
            Ok(()) => None,
            Err(error) => {
                let advice = match error {
                    udp::BindError::PortInUse(_) => "; set another port, or free it",
                    _ => "",
                };
                warn!(%error, port = self.port, "cannot listen yet{advice}");
                Some(now().boot + REBIND_PAUSE)
            }
        };
    }

    /// Binds the sockets again after one has failed: at once, or after [`REBIND_PAUSE`] if the
    /// previous failure is less than that ago.
    pub(super) fn rebind_failed(&mut self, failed: &Weak<Socket>) {
        let failed = |socket: &Arc<Socket>| Weak::ptr_eq(&Arc::downgrade(socket), failed);
        // Ignore a socket that has been replaced meanwhile.
        if !self.sockets.all().any(failed) {
            return;
        }
        self.replace_sockets(Sockets::default());
        let now = now().boot;
        let before = self.last_rebind.replace(now);
        if before.is_some_and(|before| now.since(before) < REBIND_PAUSE) {
            self.rebind_at = Some(now + REBIND_PAUSE);
        } else {
            self.listen();
        }
    }

    fn bind(&mut self, port: u16) -> Result<(), udp::BindError> {
        if port != 0 && self.sockets.port() == port {
            return Ok(());
        }
        let sockets = self.bind_sockets(port)?;
        self.port = sockets.port();
        self.replace_sockets(sockets);
        self.rebind_at = None;
        Ok(())
    }

    fn bind_sockets(&mut self, port: u16) -> Result<Sockets, udp::BindError> {
        let steering = self.shared.path.steering();
        let lanes = steering.lanes().count();
        let request = BindRequest {
            port,
            mark: self.mark,
            gso: self.offloads.udp_gso,
            gro: self.offloads.udp_gro,
            lanes,
            multiplier: steering.multiplier(),
        };
        Ok(Sockets::new(lanes, self.system.bind(&request)?))
    }

    /// Replaces the sockets. The old ones are closed when this returns, so that their port can be
    /// bound again at once.
    pub(super) fn replace_sockets(&mut self, sockets: Sockets) {
        let handshakes = sockets.handshakes.iter().map(Arc::clone);
        let handshakes =
            handshakes.map(|socket| InboundPath::new(Arc::clone(&self.own_lane), socket));
        self.handshakes = handshakes.collect();
        self.flood_filter.forget_sockets();
        self.sockets = sockets;
        self.lanes.replace_sockets(&self.sockets.lanes);
    }

    pub(super) fn set_port(&mut self, port: u16) -> Result<(), udp::BindError> {
        if self.driver.device().is_up() {
            return self.bind(port);
        }
        // The device binds the port when the interface comes up. Check it now, so that a port in
        // use is an error of this request and not a tunnel that does not work later.
        if port != 0 {
            self.bind_sockets(port)?;
        }
        self.port = port;
        Ok(())
    }

    pub(super) fn set_mark(&mut self, mark: u32) -> Result<(), Errno> {
        if mark == self.mark {
            // Setting the same mark again would need CAP_NET_ADMIN.
            return Ok(());
        }
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.all().map(|it| it.as_fd()).collect();
        match self.system.set_mark(&sockets, mark) {
            Ok(()) => {}
            Err(MarkError::Sockets(error)) => {
                warn!(%error, mark, "configuration refused: the mark cannot be set");
                return Err(Errno::AddressInUse);
            }
            Err(MarkError::Outer(error)) => {
                warn!(
                    error,
                    mark, "configuration refused: the outer tunnel's mark"
                );
                return Err(Errno::Invalid);
            }
        }
        self.mark = mark;
        self.driver.services().set_mark(mark);
        self.shared.underlay.changes.set_mark(mark);
        Ok(())
    }
}
