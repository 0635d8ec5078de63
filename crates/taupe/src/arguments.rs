//! The command line on Linux: from arguments and the environment to an [`Order`].
//!
//! The name that the program is called by decides how the rest is read:
//! `taupe-device` and `wireguard-go` are `taupe device`; `boringtun-cli` and
//! `boringtun` take that program's options; `wg` and `wg-quick` are those of
//! wireguard-tools; any other name is `taupe`.

mod applications;
mod boringtun;
mod device;
mod diagnosis;
mod exec;
mod quick;
mod taupe;
mod tunnels;

pub(crate) use device::{DeviceOrder, DeviceSettings, TUN, UAPI};

use crate::command_line::groups::grouped;
use crate::command_line::proxy::ProxyOrder;
use crate::command_line::{Environment, read};
use crate::wg;
use boringtun::Boringtun;
use clap::CommandFactory as _;
use device::DeviceProgram;
use ipnet::IpNet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use taupe_config::application::Application;
use taupe_config::file::Compatibility;
use taupe_inspect::destination::Destination;

/// Reason why the command line gives no order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArgumentError {
    /// The command line is wrong, or asks for help or the version only.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// A variable of the environment is wrong.
    #[error("the environment has {variable}={value}: {reason}")]
    Variable {
        variable: &'static str,
        value: String,
        reason: String,
    },
}

/// A command with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Run a device.
    Device(DeviceOrder),
    /// Something with a tunnel that a file describes.
    Tunnel(TunnelOrder),
    /// Say all that is wrong with a file.
    Check {
        /// A path, or a name in /etc/wireguard.
        file: OsString,
    },
    /// Run a command with a tunnel as its only network.
    Exec(ExecOrder),
    /// Say what becomes of an application's packets, or of what is forwarded.
    Explain(ExplainOrder),
    /// Something with the applications of a file.
    App(AppOrder),
    /// Say how tunnels are.
    Status(StatusOrder),
    /// List connections, and where each goes.
    Flows(FlowsOrder),
    /// Look for what would keep tunnels from working here.
    Doctor(DoctorOrder),
    /// Put together what a report of a bug should have.
    Report(ReportOrder),
    /// Run a proxy to a file's tunnel.
    Proxy(ProxyOrder),
    /// Print the minimal list of networks without some others.
    AllowedIps {
        networks: Vec<IpNet>,
        except: Vec<IpNet>,
    },
    /// A sub-command of `wg`, whose arguments it reads itself.
    Wg {
        compatibility: wg::Compatibility,
        arguments: Vec<OsString>,
    },
    /// Say how `wg-quick` is called, because somebody asked or because this was
    /// wrong.
    QuickUsage { is_requested: bool },
}

/// Something to do with a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TunnelOrder {
    pub(crate) compatibility: Compatibility,
    pub(crate) action: Action,
    /// A path, or a name in /etc/wireguard.
    pub(crate) file: OsString,
    /// Tell of every step, however many there are.
    pub(crate) verbose: bool,
}

/// An action on a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Up(Up),
    Down {
        /// Leave the file alone although it says `SaveConfig = true`.
        no_save: bool,
        /// Leave the chosen applications held back.
        keep_closed: bool,
    },
    /// Hold back the chosen applications until it is up.
    Lock,
    Reload,
    Save,
    Strip,
}

/// Arguments of `taupe up`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Up {
    pub(crate) mode: Option<ModeOption>,
    /// The file of a tunnel that it is to go through: a path, or a name in /etc/wireguard.
    pub(crate) via: Option<OsString>,
    /// Stay, with the device in this process.
    pub(crate) foreground: bool,
    /// Win over routes that exist and networks that are near.
    pub(crate) override_routes: bool,
    /// Leave the packet filter alone.
    pub(crate) no_firewall: bool,
    /// Close the TCP connections that chosen applications have open.
    pub(crate) reset_existing: bool,
    /// Leave the chosen applications held back when a signal ends it.
    pub(crate) keep_closed: bool,
    pub(crate) device: DeviceSettings,
}

/// A command to run with a tunnel as its only network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExecOrder {
    pub(crate) sandbox: SandboxOrder,
    /// A program and its arguments.
    pub(crate) command: Vec<OsString>,
    pub(crate) device: DeviceSettings,
}

/// Which tunnel a command uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SandboxOrder {
    /// Its own.
    New {
        /// A path, or a name in /etc/wireguard.
        file: OsString,
        /// Keep it from the session bus.
        hide_session: bool,
    },
    /// The tunnel of a command that runs.
    Join {
        /// The tunnel's name.
        name: OsString,
    },
}

/// Arguments of `taupe status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StatusOrder {
    /// A path or a name; all of them without.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
}

/// Which connections are to be listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FlowsOrder {
    /// A path or a name: those in this tunnel; all there are without.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
    /// Go on with what changes.
    pub(crate) follow: bool,
}

/// Arguments of `taupe doctor`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DoctorOrder {
    /// A path or a name: this file too.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
}

/// Arguments of `taupe report`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReportOrder {
    /// A path or a name; all tunnels that are up without.
    pub(crate) file: Option<OsString>,
    /// Standard output without.
    pub(crate) output: Option<PathBuf>,
    pub(crate) hide_endpoints: bool,
}

/// Whose packets' way is to be explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExplainOrder {
    /// A path, or a name in /etc/wireguard; without, that of each tunnel there is.
    pub(crate) file: Option<OsString>,
    /// A path, a name in `PATH`, or the number of a process; `None` is what this machine
    /// forwards.
    pub(crate) application: Option<OsString>,
    pub(crate) destination: Option<Destination>,
}

/// Something to do with the applications of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AppOrder {
    /// A path, or a name in /etc/wireguard.
    pub(crate) file: OsString,
    pub(crate) action: AppAction,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AppAction {
    /// Have applications stand in one place, and in no other.
    Choose(AppPlace, Vec<Application>),
    List,
}

/// The list of a file that an application stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AppPlace {
    Allowed,
    Disallowed,
    Nowhere,
}

/// A mode that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ModeOption {
    Adapter,
    Transparent,
}

/// Reads a command line, whose first argument is the program's name.
///
/// # Errors
///
/// See [`ArgumentError`]. `--help` and `--version` are errors in this sense, except those
/// of `wg` and `wg-quick`.
pub(crate) fn parse(
    arguments: &[OsString],
    environment: Environment<'_>,
) -> Result<Order, ArgumentError> {
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match &*name {
        "taupe-device" | "wireguard-go" => {
            read::<DeviceProgram>(DeviceProgram::command(), arguments, &name)?
                .device
                .order(environment)
                .map(Order::Device)
        }
        "boringtun-cli" | "boringtun" => read::<Boringtun>(Boringtun::command(), arguments, &name)?
            .order(environment)
            .map(Order::Device),
        "wg" => Ok(Order::Wg {
            compatibility: wg::Compatibility::Wg,
            arguments: arguments.to_vec(),
        }),
        "wg-quick" => quick::order(arguments, environment),
        _ => {
            read::<taupe::Taupe>(command_line(), arguments, "taupe")?.order(arguments, environment)
        }
    }
}

/// Returns the definition of the command line, from which manual pages and shell completions are
/// generated.
#[must_use]
pub fn command_line() -> clap::Command {
    grouped(taupe::Taupe::command())
}

#[cfg(test)]
mod tests;
