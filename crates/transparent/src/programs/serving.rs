//! The processes that serve a tunnel: its daemon, which keeps the eBPF programs, and the packet
//! processes, whose broker it is. The eBPF programs know them by their PIDs (`bpf/daemon.h`).

use std::sync::atomic::Ordering;

use super::{Programs, wait_for_programs};
use crate::error::TransparentError;
use crate::records;
use crate::state::PacketProcesses;

impl Programs {
    /// Makes this process the daemon in place of the previous one. It and its packet processes, which
    /// must be its children, are never selected, and the end of any of them sets the tunnel down.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::NoPacketProcess`].
    pub(super) fn become_daemon(
        &mut self,
        packet_processes: PacketProcesses,
    ) -> Result<(), TransparentError> {
        self.name(packet_processes);
        let adopted = self.adopt(packet_processes);
        match adopted {
            Ok(()) => self.own_id = self.daemon(),
            Err(_) => self.name([None, None]),
        }
        adopted
    }

    fn adopt(&self, packet_processes: PacketProcesses) -> Result<(), TransparentError> {
        let adopt = || self.iterators.read("taupe_adopt");
        adopt()?;
        if packet_processes == [None, None] {
            return Ok(());
        }
        // If a process ended before its PID was written, `taupe_exit` missed it. After the wait, the
        // second pass lists only processes that are alive, and `taupe_exit` finds each later end.
        wait_for_programs()?;
        let listed = adopt()?;
        let alive: Vec<u32> = records::parse(&listed).collect();
        for (index, id) in (0..).zip(packet_processes) {
            if let Some(id) = id.filter(|_| !alive.contains(&index)) {
                return Err(TransparentError::NoPacketProcess(id));
            }
        }
        Ok(())
    }

    /// Names packet processes, and forgets those from before.
    fn name(&self, packet_processes: PacketProcesses) {
        let state = &self.maps.state;
        let found = &state.packet_processes;
        let words = state.named_packet_processes.iter().zip(found);
        for ((named, found), id) in words.zip(packet_processes) {
            named.store(id.unwrap_or(0), Ordering::Relaxed);
            found.store(0, Ordering::Relaxed);
        }
    }

    /// Lets packets of selected applications enter the tunnel. Its TUN must have its filters.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::NoPacketProcess`],
    /// [`TransparentError::NoDaemon`]: the tunnel is down.
    pub(super) fn set_served(&self) -> Result<(), TransparentError> {
        self.maps.state.up.store(1, Ordering::Release);
        // If a process ended before that, `taupe_exit` cleared `up` too early. After the wait
        // `taupe_exit` has finished, so the check finds that the process is missing.
        let is_served = wait_for_programs().and_then(|()| self.check_processes());
        if is_served.is_err() {
            self.set_down();
        }
        is_served
    }

    /// Sets the tunnel down, and treats the packet processes like any other, unless another process has
    /// become the daemon meanwhile. This process is about to end.
    pub(crate) fn end_service(&self) {
        if !self.is_succeeded() {
            self.set_down();
            self.name([None, None]);
        }
    }

    /// Blocks the packets of selected applications, unless this process was the daemon and another one
    /// is now. The applications get an error.
    pub fn set_down(&self) {
        if !self.is_succeeded() {
            self.maps.state.up.store(0, Ordering::Release);
        }
    }

    /// Returns true if another process has become the daemon after this one.
    fn is_succeeded(&self) -> bool {
        let own = self.own_id;
        own.is_some() && self.daemon().is_some_and(|daemon| Some(daemon) != own)
    }

    /// Checks that the daemon and the packet processes that it has named have not ended.
    fn check_processes(&self) -> Result<(), TransparentError> {
        let state = &self.maps.state;
        if self.daemon().is_none() {
            return Err(TransparentError::NoDaemon);
        }
        let found = &state.packet_processes;
        for (named, found) in state.named_packet_processes.iter().zip(found) {
            let id = named.load(Ordering::Relaxed);
            if id != 0 && found.load(Ordering::Relaxed) == 0 {
                return Err(TransparentError::NoPacketProcess(id));
            }
        }
        Ok(())
    }
}
