//! Replaces the programs of another version whose process has ended, if its maps have another layout.
//! Its kill switch still blocks the selected applications.
//!
//! Maps of another layout cannot be taken over. The new programs get maps and pins of their own and
//! are attached beside the earlier programs, which block until the new ones do all their work. Then the
//! earlier programs are removed. So at every moment a complete set of programs is attached. If a process
//! ends in between, both sets block, and the next process continues.
//!
//! The new programs classify the sockets that processes have open. Some connections used the tunnel but
//! are not selected by the new programs, for example closed sockets that still send. They are closed
//! before the earlier programs are removed; otherwise they would bypass the tunnel. The flow table lists
//! them, so its layout must be the same.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;

use taupe_os_linux::netlink::{SockDiag, SocketInfo};
use taupe_packet::ip::Family;
use tracing::warn;

use super::{CaptureMode, Programs};
use crate::error::TransparentError;
use crate::maps::{self, Maps};
use crate::pins::Pins;
use crate::state::FlowKey;

/// Returns true if another version has attached the programs of transparent mode, the process that
/// served them has ended, and its flows can be read. The fields of the state that this reads are the
/// same in every layout.
pub(crate) fn is_abandoned(pins: &Pins) -> bool {
    let layout = Maps::pinned_state(pins);
    let daemon = || {
        let state = maps::pinned_state_of_any_schema(pins);
        state.map(|state| state.daemon.load(Ordering::Relaxed))
    };
    matches!(layout, Err(TransparentError::Schema { .. }))
        && CaptureMode::of(pins) == Some(CaptureMode::TrafficControl)
        && daemon() == Some(0)
        && maps::pinned_flows(pins).is_ok()
}

impl Programs {
    /// Removes the programs that [`load`](Self::load) has found abandoned. Call it when these programs
    /// block or carry all traffic of the selected applications by themselves.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`] names the pin that cannot be removed; [`TransparentError::Map`]. Earlier
    /// programs that remain continue to block.
    pub fn remove_earlier(&self) -> Result<(), TransparentError> {
        for earlier in self.pins.earlier() {
            self.end_unselected(&earlier)?;
            // No packet can pass between the two sets, so nothing is drained.
            Self::remove_undrained(&earlier)?;
        }
        Ok(())
    }

    /// Closes the sockets whose flows the earlier programs have sent into the tunnel, and which these
    /// programs do not select.
    fn end_unselected(&self, earlier: &Pins) -> Result<(), TransparentError> {
        let flows = maps::pinned_flows(earlier)?;
        if flows.is_empty() {
            return Ok(());
        }
        let sockets = SockDiag::open().map_err(io::Error::other);
        let mut sockets = sockets.map_err(TransparentError::call("ending connections"))?;
        let mut found = Vec::new();
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            for family in [Family::V4, Family::V6] {
                let listed = sockets.sockets(protocol as u8, family);
                let listed = listed.map_err(io::Error::other);
                found.extend(listed.map_err(TransparentError::call("listing connections"))?);
            }
        }
        found.retain(|socket| flows.contains(&FlowKey::of_socket(&socket.id)));
        // The kernel has given each listed socket its cookie, by which this list names it.
        let selected = self.selected_sockets()?.into_iter();
        let selected: HashSet<_> = selected.map(|it| it.connection.cookie).collect();
        let is_selected = |socket: &SocketInfo| selected.contains(&socket.id.cookie);
        for socket in found.iter().filter(|socket| !is_selected(socket)) {
            match sockets.destroy(&socket.id) {
                Err(error) if error.source.kind() != io::ErrorKind::NotFound => warn!(
                    %error,
                    "cannot close a connection that used the tunnel; its traffic now bypasses the tunnel"
                ),
                _ => {}
            }
        }
        Ok(())
    }
}
