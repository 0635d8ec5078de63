//! The grammar of `wg-quick`: an action and a file, and nothing else.

use super::DeviceSettings;
use super::{Action, ArgumentError, Environment, Order, TunnelOrder, Up};
use std::ffi::OsString;
use taupe_adapter::Compatibility;

pub(super) fn order(
    arguments: &[OsString],
    environment: Environment<'_>,
) -> Result<Order, ArgumentError> {
    let words: Vec<_> = arguments.iter().skip(1).collect();
    let (action, file) = match words.as_slice() {
        [word] => {
            let is_requested = ["--help", "-h", "help"].iter().any(|help| word == help);
            return Ok(Order::QuickUsage { is_requested });
        }
        [action, file] => (action.to_str(), *file),
        _ => {
            return Ok(Order::QuickUsage {
                is_requested: false,
            });
        }
    };
    let action = match action {
        Some("up") => Action::Up(Up {
            mode: None,
            via: None,
            foreground: false,
            override_routes: false,
            no_firewall: false,
            reset_existing: false,
            keep_closed: false,
            wait: None,
            device: DeviceSettings::read(environment)?,
        }),
        Some("down") => Action::Down {
            no_save: false,
            keep_closed: false,
        },
        Some("save") => Action::Save,
        Some("strip") => Action::Strip,
        _ => {
            return Ok(Order::QuickUsage {
                is_requested: false,
            });
        }
    };
    Ok(Order::Tunnel(TunnelOrder {
        compatibility: Compatibility::WgQuick,
        action,
        file: file.clone(),
        verbose: true,
    }))
}
