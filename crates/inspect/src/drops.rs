//! Packets that the devices of tunnels have dropped.
//!
//! Drops by eBPF programs are counters of [`Tunnel`](crate::status::Tunnel).

use crate::status::{self, Files, Status, StatusError};
use std::collections::BTreeMap;
use taupe_config::application::AppRules;

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

/// State of all tunnels, drops, and rules.
pub struct StateWithDrops {
    /// State of the tunnels.
    pub status: Status,
    /// Drops of the devices that carry them, without zeros.
    pub drops: Vec<DeviceDrops>,
    /// Rules of the tunnels' files, by the tunnels' names. Tunnels without rules are left out.
    pub rules: BTreeMap<String, AppRules>,
}

/// Reads tunnel states, drops and rules. `files` holds the parsed files of the previous call.
///
/// # Errors
/// See [`StatusError`].
pub fn look(files: &mut Files) -> Result<StateWithDrops, StatusError> {
    let looked = status::look_with_devices(files)?;
    let drops = looked.devices.into_iter().flat_map(|(interface, device)| {
        let counters = device.counters.into_iter();
        let drops = counters.filter(|it| it.group == GROUP && it.count > 0);
        drops.map(move |it| DeviceDrops {
            interface: interface.clone(),
            reason: it.name.into_owned(),
            count: it.count,
        })
    });
    Ok(StateWithDrops {
        drops: drops.collect(),
        status: looked.status,
        rules: looked.rules,
    })
}
