//! The maps of a tunnel's programs, without the programs.

use std::sync::atomic::Ordering;

use super::{Attached, CaptureMode};
use crate::error::TransparentError;
use crate::maps::Maps;
use crate::pins::Pins;
use crate::state::{Lock, Reason};

/// The state and the counters of a tunnel, which its eBPF programs share by their maps.
#[derive(Debug)]
pub struct TunnelMaps {
    pub(super) mode: CaptureMode,
    pub(super) pins: Pins,
    pub(super) maps: Maps,
}

impl TunnelMaps {
    /// Opens the maps of the programs that another process has attached for the tunnel `interface`
    /// in the calling thread's network namespace. Returns `None` if nothing is attached. Loads no
    /// program. Waits while another process brings the tunnel up or takes it down.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::Schema`].
    pub fn open(interface: &str) -> Result<Option<Self>, TransparentError> {
        // The lock keeps another process from removing the maps meanwhile.
        let Some(attached) = Attached::lock(interface)? else {
            return Ok(None);
        };
        Self::of(&attached).map(Some)
    }

    pub(super) fn of(attached: &Attached) -> Result<Self, TransparentError> {
        Ok(Self {
            mode: attached.mode,
            pins: attached.pins.clone(),
            maps: Maps::pinned(&attached.pins)?,
        })
    }

    /// Returns how packets get into the tunnel.
    #[must_use]
    pub fn mode(&self) -> CaptureMode {
        self.mode
    }

    /// Returns the PID of the daemon in the initial PID namespace, or `None` if it has ended.
    #[must_use]
    pub fn daemon(&self) -> Option<u32> {
        let daemon = self.maps.state.daemon.load(Ordering::Relaxed);
        (daemon != 0).then_some(daemon)
    }

    /// Returns the kill switch.
    #[must_use]
    pub fn lock(&self) -> Lock {
        Lock::of(self.maps.state.lock.load(Ordering::Relaxed))
    }

    /// Returns true if a process reads the TUN.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.maps.state.up.load(Ordering::Acquire) != 0
    }

    /// Returns the indices of the guarded interfaces. They include interfaces that an earlier
    /// process has guarded and that no longer exist.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`].
    pub fn guarded(&self) -> Result<Vec<u32>, TransparentError> {
        self.maps.uplinks()
    }

    /// Returns all counters since the tunnel was created.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`].
    pub fn counts(&self) -> Result<Vec<(Reason, u64)>, TransparentError> {
        let counts = Reason::ALL.iter().map(|reason| {
            let count = self.maps.count(*reason)?;
            Ok((*reason, count))
        });
        counts.collect()
    }
}
