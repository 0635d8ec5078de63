//! The interface of a device.

use serde::{Deserialize, Serialize};
use taupe_os_bsd::routing::Interface;

/// The interface of a running device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceInterface {
    /// Its name: on FreeBSD that of the tunnel, on macOS `utunN`.
    pub name: String,
    /// Its index.
    pub index: u16,
}

impl DeviceInterface {
    /// Returns true if the interface is still there. `was_running` is true if the device's process
    /// has just answered.
    ///
    /// FreeBSD 14 keeps the interface of a process that was killed, and clears `IFF_RUNNING`
    /// (`sys/net/if_tuntap.c`, where it closes the device). A running one of this name and index is that of another
    /// program, such as the kernel's WireGuard: FreeBSD gives an index out again.
    #[must_use]
    pub fn is_left(&self, interfaces: &[Interface], was_running: bool) -> bool {
        interfaces.iter().any(|it| {
            it.index == self.index
                && it.name.as_ref() == Some(&self.name)
                && (was_running || !it.is_running())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_another_program_is_not_left_over() {
        let device = DeviceInterface {
            name: "wg0".to_owned(),
            index: 3,
        };
        let interface = |name: &str, index, flags| Interface {
            index,
            name: Some(name.to_owned()),
            mtu: 1420,
            medium: 0,
            ethernet: None,
            flags,
        };
        const RUNNING: u32 = 0x40;
        for (present, was_running, is_left) in [
            (interface("wg0", 3, 0), false, true),
            (interface("wg0", 3, RUNNING | 1), true, true),
            (interface("wg0", 3, RUNNING | 1), false, false),
            (interface("wg0", 4, 0), true, false),
            (interface("wg1", 3, 0), true, false),
        ] {
            assert_eq!(device.is_left(&[present], was_running), is_left);
        }
    }
}
