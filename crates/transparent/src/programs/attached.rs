//! Programs that another process has attached.

use std::fs::File;
use std::sync::atomic::Ordering;

use super::CaptureMode;
use crate::error::TransparentError;
use crate::maps::{self, Maps};
use crate::pins::Pins;
use crate::state::MappedState;

/// The attached programs of a tunnel, without the code that inspects or changes them. No process
/// attaches or removes programs of this tunnel while the value exists.
pub(crate) struct Attached {
    pub(crate) pins: Pins,
    pub(crate) mode: CaptureMode,
    pub(crate) state: MappedState,
    _lock: File,
}

impl Attached {
    /// Returns `None` if no programs are attached for the tunnel `interface` in the calling
    /// thread's network namespace. Waits while another process brings the tunnel up or takes it
    /// down.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::Schema`].
    pub(crate) fn lock(interface: &str) -> Result<Option<Self>, TransparentError> {
        let pins = Pins::here(interface)?;
        let Some(lock) = pins.lock_shared()? else {
            return Ok(None);
        };
        let Some(mode) = CaptureMode::of(&pins) else {
            return Ok(None);
        };
        let state = Maps::pinned_state(&pins)?;
        let is_set_up = |state: &MappedState| state.schema.load(Ordering::Acquire) != 0;
        let Some(state) = state.filter(is_set_up) else {
            return Ok(None);
        };
        if maps::NAMES.iter().any(|name| !pins.map(name).exists()) {
            return Ok(None);
        }
        Ok(Some(Self {
            pins,
            mode,
            state,
            _lock: lock,
        }))
    }
}
