//! The processes that serve a tunnel: its daemon and its packet processes. The eBPF programs know them
//! by their PIDs (`bpf/daemon.h`).

use std::sync::atomic::Ordering;

use super::{Programs, wait_for_programs};
use crate::error::TransparentError;
use crate::state::PacketProcesses;
use crate::syscall::AttachTarget;

impl Programs {
    /// Makes this process the daemon in place of the previous one. It and its packet processes are
    /// never selected, and the end of any of them sets the tunnel down.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::NoPacketProcess`].
    pub(super) fn become_daemon(
        &self,
        packet_processes: PacketProcesses,
    ) -> Result<(), TransparentError> {
        let state = &self.maps.state;
        let words = state
            .named_packet_processes
            .iter()
            .zip(&state.packet_processes);
        for ((named, found), id) in words.zip(packet_processes) {
            named.store(id.unwrap_or(0), Ordering::Relaxed);
            found.store(0, Ordering::Relaxed);
        }
        self.read_iterator("taupe_adopt", AttachTarget::Iterator)?;
        self.check_packet_processes()
    }

    /// Lets packets of selected applications enter the tunnel, whose TUN must have its filters.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::NoPacketProcess`]: the tunnel is down.
    pub(super) fn set_served(&self) -> Result<(), TransparentError> {
        self.maps.state.up.store(1, Ordering::Release);
        // A packet process may have ended before that. After the wait, the program that has noticed
        // its end has ended too.
        let is_served = wait_for_programs().and_then(|()| self.check_packet_processes());
        if is_served.is_err() {
            self.set_down();
        }
        is_served
    }

    /// Blocks the packets of selected applications. The applications get an error.
    pub fn set_down(&self) {
        self.maps.state.up.store(0, Ordering::Release);
    }

    /// Checks that the packet processes that have been named run.
    fn check_packet_processes(&self) -> Result<(), TransparentError> {
        let state = &self.maps.state;
        let words = state
            .named_packet_processes
            .iter()
            .zip(&state.packet_processes);
        for (named, found) in words {
            let id = named.load(Ordering::Relaxed);
            if id != 0 && found.load(Ordering::Relaxed) == 0 {
                return Err(TransparentError::NoPacketProcess(id));
            }
        }
        Ok(())
    }
}
