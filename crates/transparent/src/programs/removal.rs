//! Removal of a tunnel's programs: waits until no packet depends on the filters alone, then removes
//! them.

use std::sync::atomic::Ordering;

use taupe_os_linux::netlink::Netlink;

use super::pinned_sockets::PinnedSockets;
use super::{Programs, guards, wait_for_programs};
use crate::error::TransparentError;
use crate::maps;
use crate::pins::Pins;
use crate::reset::{self, Reset, SocketKinds};
use crate::state::{Lock, SCHEMA};

impl Programs {
    /// Removes everything. From then on selected applications send as all others.
    ///
    /// # Errors
    ///
    /// As [`remove_pinned`](Self::remove_pinned).
    pub fn remove(mut self) -> Result<(), TransparentError> {
        self.setup_lock = None;
        Self::remove_pinned(&self.pins).map(drop)
    }

    /// Removes the programs of another process, running or not. Call it in the tunnel's network
    /// namespace, since the filters of old kernels are there. The `clsact` queues stay, since other
    /// programs may use them.
    ///
    /// Returns an error that kept it from waiting until no packet depended on the filters alone.
    /// Then packets of selected applications may have left outside the tunnel.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`] names the pin that cannot be removed. The remaining programs
    /// still work.
    pub fn remove_pinned(pins: &Pins) -> Result<Option<TransparentError>, TransparentError> {
        // A process that has ended too early has left the earlier ones.
        let all: Vec<Pins> = pins.earlier().chain([pins.clone()]).collect();
        // An error here concerns only a few packets, so it must not stop the removal.
        let drained = all.iter().map(drain).fold(Ok(()), Result::and);
        for pins in &all {
            Self::remove_undrained(pins)?;
        }
        Ok(drained.err())
    }

    /// Ends the conversations of the sockets that the programs of another version have selected. New ones
    /// do not begin in the tunnel meanwhile.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`].
    pub(crate) fn end_conversations(pins: &Pins) -> Result<Reset, TransparentError> {
        let Some(sockets) = PinnedSockets::open(pins)? else {
            return Ok(Reset::default());
        };
        if let Some(state) = maps::pinned_state_of_any_schema(pins) {
            state.up.store(0, Ordering::Release);
        }
        wait_for_programs()?;
        reset::end(|| sockets.list(), SocketKinds::ConnectionsAndUdp)
    }

    /// Removes programs without draining. Use it only if other programs block the same traffic, or if
    /// nothing needs to be blocked.
    pub(super) fn remove_undrained(pins: &Pins) -> Result<(), TransparentError> {
        // Without the lock a reader could keep the directory from being removed.
        let _lock = pins.lock_exclusive();
        // Also removes the filters of another version, since every layout has the mark in the same
        // place.
        let state = maps::pinned_state_of_any_schema(pins);
        if let Some(state) = &state {
            detach_filters(pins, state.mark.load(Ordering::Relaxed));
        }
        pins.remove()?;
        // A filter that is left somewhere must not block anything.
        if let Some(state) = state
            && state.schema.load(Ordering::Acquire) == SCHEMA
        {
            state.lock.store(Lock::Off as u32, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Blocks packets of selected applications at their sockets, and waits until none is between a
/// socket and a filter.
pub(super) fn drain(pins: &Pins) -> Result<(), TransparentError> {
    let uplinks = maps::remove_pinned_uplinks(pins)?;
    if uplinks.is_empty() {
        return Ok(());
    }
    wait_for_programs()?;
    guards::drop_unresolved_packets(&uplinks)
}

/// Removes the unpinned filters from all interfaces, since an interface's map entry may have been
/// removed before its filter.
fn detach_filters(pins: &Pins, mark: u32) {
    let links = Netlink::open().and_then(|mut system| system.links());
    for link in links.unwrap_or_default() {
        let pin = pins.link(&format!("{}-taupe_out", link.index));
        if !pin.exists() {
            maps::detach_filters(&link.name, mark);
        }
    }
}
