//! Packets that the devices of tunnels have dropped.
//!
//! Drops by eBPF programs are counters of [`Tunnel`](crate::status::Tunnel).

use crate::status::{self, Looked, Status, StatusError};

/// Group of counters in the answer of a device.
const GROUP: &str = "drop";

/// Packets and messages that a device has dropped for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceDrops {
    /// Interface of the device.
    pub interface: String,
    /// Stable identifier of the reason.
    pub reason: String,
    /// Number since the start of the device.
    pub count: u64,
}

/// Collects the state of all tunnels, and the drops of the devices that carry them, without zeros.
///
/// # Errors
/// See [`StatusError`].
pub fn look() -> Result<(Status, Vec<DeviceDrops>), StatusError> {
    let Looked {
        status, devices, ..
    } = status::look_with_devices()?;
    let drops = devices.into_iter().flat_map(|(interface, device)| {
        let counters = device.counters.into_iter();
        let drops = counters.filter(|it| it.group == GROUP && it.count > 0);
        drops.map(move |it| DeviceDrops {
            interface: interface.clone(),
            reason: it.name.into_owned(),
            count: it.count,
        })
    });
    let drops = drops.collect();
    Ok((status, drops))
}
