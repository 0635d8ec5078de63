//! Replaces the programs of another version whose process has ended, if its maps have another layout.
//! Its kill switch still blocks the selected applications.
//!
//! Maps of another layout cannot be taken over. The new programs get maps and pins of their own and
//! are attached beside the earlier programs, which block until the new ones do all their work. Then the
//! earlier programs are removed. So at every moment a complete set of programs is attached. If a process
//! ends in between, both sets block, and the next process continues.
//!
//! Some conversations used the tunnel but are not selected by the new programs: those of applications that
//! the rules no longer select, of closed sockets that still send, and of processes whose files this
//! process cannot list. They are closed before the earlier programs are removed; otherwise they would
//! bypass the tunnel. The earlier programs list them (`pinned_sockets.rs`). If one cannot be closed, the
//! earlier programs stay.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use tracing::warn;

use super::pinned_sockets::PinnedSockets;
use super::{CaptureMode, Programs, guards, wait_for_programs};
use crate::error::TransparentError;
use crate::maps::{self, Maps};
use crate::pins::Pins;
use crate::records::ANY_COOKIE;
use crate::reset::{self, Reset, Socket, SocketKinds};

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
        && maps::open_pinned_flows(pins).is_ok()
}

impl Programs {
    /// Returns the pins if [`load`](Self::load) has created them.
    pub(crate) fn created_pins(&self) -> Option<Pins> {
        self.is_new.then(|| self.pins.clone())
    }

    /// Removes the programs that [`load`](Self::load) has found abandoned. Call it when these programs
    /// block or carry all traffic of the selected applications by themselves.
    ///
    /// # Errors
    ///
    /// [`TransparentError::OpenSockets`]; [`TransparentError::Call`] names the pin that cannot be
    /// removed; [`TransparentError::Map`]. Earlier programs that remain continue to block.
    pub fn remove_earlier(&self) -> Result<(), TransparentError> {
        for earlier in self.pins.earlier() {
            if let Some(sockets) = PinnedSockets::open(&earlier)? {
                reset::end_all(|| Ok(except(sockets.list()?, &self.selected_sockets()?)))?;
                // The last packets of these sockets may wait for a neighbour, and only the earlier filters
                // drop them.
                wait_for_programs()?;
                guards::drop_unresolved_packets(&self.maps.uplinks()?)?;
            }
            Self::remove_undrained(&earlier)?;
        }
        Ok(())
    }

    /// Removes programs that [`load`](Self::load) has created, so that all is as before. Earlier programs
    /// stay.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`] names the pin that cannot be removed.
    pub(crate) fn remove_created(pins: &Pins) -> Result<(), TransparentError> {
        // If the tunnel has been up for a moment, some conversations have begun in it.
        match end_begun(pins) {
            Ok(Reset { left: 0, .. }) => {}
            Ok(Reset { left, .. }) => warn!(left, "connections in the tunnel continue outside it"),
            Err(error) => warn!(%error, "connections in the tunnel continue outside it"),
        }
        // An error here concerns only a few packets.
        let _ = super::removal::drain(pins);
        Self::remove_undrained(pins)
    }
}

/// Ends the conversations that have begun by these programs, unless earlier ones block them.
fn end_begun(pins: &Pins) -> Result<Reset, TransparentError> {
    let Some(sockets) = PinnedSockets::open(pins)? else {
        return Ok(Reset::default());
    };
    let begun = || {
        let blocked = selected_by(pins.earlier())?;
        Ok(except(sockets.list_with_flows()?, &blocked))
    };
    reset::end(begun, SocketKinds::ConnectionsAndUdp)
}

/// Returns the sockets that programs select.
fn selected_by(all: impl Iterator<Item = Pins>) -> Result<Vec<Socket>, TransparentError> {
    let mut selected = Vec::new();
    for pins in all {
        if let Some(sockets) = PinnedSockets::open(&pins)? {
            selected.extend(sockets.list()?);
        }
    }
    Ok(selected)
}

/// Returns the sockets that are not among `others`.
fn except(mut sockets: Vec<Socket>, others: &[Socket]) -> Vec<Socket> {
    let cookies: HashSet<u64> = others.iter().map(|it| it.connection.cookie).collect();
    let unnamed = || (others.iter()).filter(|it| it.connection.cookie == ANY_COOKIE);
    sockets.retain(|socket| match socket.connection.cookie {
        ANY_COOKIE => !others.iter().any(|it| it.is(socket)),
        cookie => !cookies.contains(&cookie) && !unnamed().any(|it| it.is(socket)),
    });
    sockets
}
