//! Layers of the running kernel.

use crate::layer::{Layer, LayerState, LayerStatus};
use crate::{filter, paths};

/// Checks which layers the kernel has. Changes nothing. The other layers exist on every kernel that
/// Taupe runs on.
#[must_use]
pub fn available() -> [LayerStatus; 2] {
    [
        LayerStatus::new(Layer::Paths, paths::available()),
        LayerStatus::new(Layer::Calls, LayerState::of(filter::available())),
    ]
}
