//! The interface of a device.

use serde::{Deserialize, Serialize};

/// The interface of a running device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceInterface {
    /// Its name: on FreeBSD that of the tunnel, on macOS `utunN`.
    pub name: String,
    /// Its index.
    pub index: u16,
}
