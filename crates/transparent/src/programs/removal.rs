//! The end: first nothing may be on its way that only filters would hold back, then they go.

use std::sync::atomic::Ordering;

use taupe_os_linux::netlink::System;

use super::{Programs, guards};
use crate::fault::Fault;
use crate::maps;
use crate::pins::Pins;
use crate::state::{Lock, SCHEMA};
use crate::syscall;

impl Programs {
    /// Removes everything: chosen applications are like all others from then on.
    ///
    /// # Errors
    ///
    /// As [`remove_pinned`](Self::remove_pinned).
    pub fn remove(mut self) -> Result<(), Fault> {
        self.beginning = None;
        Self::remove_pinned(&self.pins).map(drop)
    }

    /// Removes what another process has set up, whether or not it still runs. To be
    /// called in the tunnel's namespace, for there the filters of old kernels are. The
    /// `clsact` queues that these were on stay, since others may use them by now.
    ///
    /// Returns what kept it from seeing that nothing is on its way that only filters would
    /// hold back: then packets of chosen applications may have left in the clear.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`] naming what cannot be removed: the rest still holds.
    pub fn remove_pinned(pins: &Pins) -> Result<Option<Fault>, Fault> {
        // Without it, who looks meanwhile may keep the directory from being removed.
        let _alone = pins.lock();
        // It keeps a few packets from leaving, and the end may not depend on it.
        let on_their_way = withdraw(pins).err();
        // Another version's filters go too, if it has the number in the same place.
        let state = maps::any_pinned_state(pins);
        if let Some(state) = &state {
            detach_filters(pins, state.stamp.load(Ordering::Relaxed));
        }
        pins.remove()?;
        // Whatever filter is left somewhere holds nothing back.
        if let Some(state) = state
            && state.schema.load(Ordering::Relaxed) == SCHEMA
        {
            state.lock.store(Lock::Nobody as u32, Ordering::Relaxed);
        }
        Ok(on_their_way)
    }
}

/// Has chosen applications' packets refused at their sockets, and waits until none is
/// between there and a filter.
fn withdraw(pins: &Pins) -> Result<(), Fault> {
    let uplinks = maps::take_pinned_uplinks(pins)?;
    if uplinks.is_empty() {
        return Ok(());
    }
    syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))?;
    guards::drop_what_waits(&uplinks)
}

/// Removes the filters that are not pinned: from all interfaces, since an entry of one may
/// have gone before its filter.
fn detach_filters(pins: &Pins, stamp: u32) {
    let links = System::open().and_then(|mut system| system.links());
    for link in links.unwrap_or_default() {
        let pin = pins.link(&format!("{}-taupe_out", link.index));
        if !pin.exists() {
            maps::detach_filters(&link.name, stamp);
        }
    }
}
