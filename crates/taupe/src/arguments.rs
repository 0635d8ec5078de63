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
mod prove;
mod quick;
mod taupe;
mod tunnels;
mod web;

pub(crate) use device::{DeviceOrder, DeviceSettings};

use crate::command_line::groups::grouped;
use crate::command_line::proxy::ProxyOrder;
use crate::command_line::{Environment, read};
use crate::wg;
use boringtun::Boringtun;
use clap::CommandFactory as _;
use device::DeviceProgram;
use ipnet::IpNet;
use std::borrow::Cow;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
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
    /// Act on the tunnel of a file.
    Tunnel(TunnelOrder),
    /// Take all tunnels down.
    DownAll(DownAll),
    /// Check a file.
    Check {
        /// A path, or a name in /etc/wireguard.
        file: OsString,
        json: bool,
    },
    /// Run a command with a tunnel as its only network.
    Exec(ExecOrder),
    /// Explain how packets of an application, or forwarded ones, are routed.
    Explain(ExplainOrder),
    /// Edit or list the applications of a file.
    App(AppOrder),
    /// Show the state of tunnels.
    Status(StatusOrder),
    /// Show tunnels, applications and connections continuously.
    #[cfg(feature = "top")]
    Top(TopOrder),
    /// List connections and their tunnels.
    Flows(FlowsOrder),
    /// Prove that an application's traffic goes through its tunnel.
    Prove(ProveOrder),
    /// Print changes of tunnels as they happen.
    Events(EventsOrder),
    /// Print or serve figures for a monitoring system.
    Metrics(MetricsOrder),
    /// Show tunnels and applications in a browser.
    Web(WebOrder),
    /// Check whether this system can run tunnels.
    Doctor(DoctorOrder),
    /// Write a report for a bug.
    Report(ReportOrder),
    /// Run a proxy to a file's tunnel.
    Proxy(ProxyOrder),
    /// Execute requests of users without root.
    Service,
    /// Compute a list of networks without some others.
    AllowedIps {
        networks: Vec<IpNet>,
        except: Vec<IpNet>,
    },
    /// A subcommand of `wg`, with its unparsed arguments.
    Wg {
        compatibility: wg::Compatibility,
        arguments: Vec<OsString>,
    },
    /// Print the usage of `wg-quick`, as requested or because the usage is wrong.
    QuickUsage { is_requested: bool },
}

/// An action on a tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TunnelOrder {
    pub(crate) compatibility: Compatibility,
    pub(crate) action: Action,
    /// A path, or a name in /etc/wireguard.
    pub(crate) file: OsString,
    /// Print every step.
    pub(crate) verbose: bool,
}

/// Arguments of `taupe down --all`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DownAll {
    /// Do not write the files, despite `SaveConfig = true`.
    pub(crate) no_save: bool,
    /// Keep blocking selected applications.
    pub(crate) keep_closed: bool,
    /// Print every step.
    pub(crate) verbose: bool,
}

/// Kind of an action on a tunnel, with its options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Up(Up),
    Down {
        /// Do not write the file, despite `SaveConfig = true`.
        no_save: bool,
        /// Keep blocking selected applications.
        keep_closed: bool,
    },
    /// Block the selected applications until the tunnel is up.
    Lock,
    Reload,
    Save,
    Strip,
}

/// Arguments of `taupe up`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Up {
    pub(crate) mode: Option<ModeOption>,
    /// File of the tunnel that carries its datagrams: a path, or a name in /etc/wireguard.
    pub(crate) via: Option<OsString>,
    /// Stay in the foreground, with the device in this process.
    pub(crate) foreground: bool,
    /// Take precedence over existing routes and the LAN.
    pub(crate) override_routes: bool,
    /// Do not change the packet filter.
    pub(crate) no_firewall: bool,
    /// Close open TCP connections of selected applications.
    pub(crate) reset_existing: bool,
    /// Keep blocking selected applications after a signal.
    pub(crate) keep_closed: bool,
    /// Time to wait for the peers' answers.
    pub(crate) wait: Option<Duration>,
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

/// The tunnel of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SandboxOrder {
    /// A tunnel of its own.
    New {
        /// A path, or a name in /etc/wireguard.
        file: OsString,
        /// Hide the session bus.
        hide_session: bool,
    },
    /// The tunnel of a running command.
    Join {
        /// The tunnel's name.
        name: OsString,
    },
}

/// Arguments of `taupe status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StatusOrder {
    /// A path or a name. Default: all tunnels.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
    /// List all peers.
    pub(crate) all_peers: bool,
    /// Interval for printing it again.
    pub(crate) watch: Option<Duration>,
}

/// Arguments of `taupe top`.
#[cfg(feature = "top")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TopOrder {
    /// Time between two readings.
    pub(crate) interval: Duration,
}

/// Arguments of `taupe events`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EventsOrder {
    /// A path or a name. Default: all tunnels.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
    /// Command that a shell runs for each event.
    pub(crate) command: Option<OsString>,
}

/// Arguments of `taupe metrics`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MetricsOrder {
    /// Address and port at which they are served.
    pub(crate) listen: Option<SocketAddr>,
    /// Path of a socket at which they are served.
    pub(crate) unix: Option<PathBuf>,
    /// Use Prometheus's older text format.
    pub(crate) prometheus: bool,
}

/// Arguments of `taupe web`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct WebOrder {
    /// Loopback address and port of the page. `None` if only a Unix socket is wanted.
    pub(crate) listen: Option<SocketAddr>,
    /// Path of a socket at which the page is served.
    pub(crate) unix: Option<PathBuf>,
    /// True if the page may change the applications of tunnels.
    pub(crate) has_switches: bool,
}

/// Arguments of `taupe flows`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FlowsOrder {
    /// A path or a name, for the flows in this tunnel. Default: all flows.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
    /// Continue, and print changes.
    pub(crate) follow: bool,
}

/// Arguments of `taupe prove`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProveOrder {
    /// A path, a name in `PATH`, or a process id.
    pub(crate) application: OsString,
    /// Name of the tunnel. Default: the one that selects the application.
    pub(crate) tunnel: Option<String>,
    pub(crate) duration: Duration,
    /// A STUN server of the user's choice.
    pub(crate) stun: Option<SocketAddr>,
    /// Send a packet in clear that the capture must see.
    pub(crate) control: bool,
    pub(crate) json: bool,
}

/// Arguments of `taupe doctor`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DoctorOrder {
    /// A path or a name, to check this file too.
    pub(crate) file: Option<OsString>,
    pub(crate) json: bool,
    /// Load all programs, even if they were accepted before.
    pub(crate) fresh: bool,
}

/// Arguments of `taupe report`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReportOrder {
    /// A path or a name. Default: all tunnels that are up.
    pub(crate) file: Option<OsString>,
    /// File to create. Default: standard output.
    pub(crate) output: Option<PathBuf>,
    pub(crate) hide_endpoints: bool,
}

/// Arguments of `taupe explain`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExplainOrder {
    /// A path, or a name in /etc/wireguard. Default: the file of each tunnel.
    pub(crate) file: Option<OsString>,
    /// A path, a name in `PATH`, or a process id. `None` means forwarded packets.
    pub(crate) application: Option<OsString>,
    pub(crate) destination: Option<Destination>,
    pub(crate) json: bool,
}

/// Arguments of `taupe app`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AppOrder {
    /// A path, or a name in /etc/wireguard.
    pub(crate) file: OsString,
    pub(crate) action: AppAction,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AppAction {
    /// Put applications into one list, or into none.
    Edit(AppPlace, Vec<Application>),
    List {
        json: bool,
    },
}

/// A list of applications in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AppPlace {
    Allowed,
    Disallowed,
    Nowhere,
}

/// A mode that an option selects.
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
    let name = program_name(arguments);
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
        // systemd starts it. It is in no help, completion or suggestion.
        _ if matches!(arguments, [_, word] if word == SERVICE) => Ok(Order::Service),
        _ => {
            read::<taupe::Taupe>(command_line(), arguments, "taupe")?.order(arguments, environment)
        }
    }
}

/// The command that executes requests of users without root.
const SERVICE: &str = "service";

/// Returns true if a command line runs a device and does nothing else.
pub(crate) fn is_of_device(arguments: &[OsString]) -> bool {
    match &*program_name(arguments) {
        "taupe-device" | "wireguard-go" | "boringtun-cli" | "boringtun" => true,
        "wg" | "wg-quick" => false,
        _ => arguments.get(1).is_some_and(|word| word == "device"),
    }
}

/// Returns the name that the program is called by.
fn program_name(arguments: &[OsString]) -> Cow<'_, str> {
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// Returns the definition of the command line, from which manual pages and shell completions are
/// generated.
#[must_use]
pub fn command_line() -> clap::Command {
    grouped(taupe::Taupe::command())
}

#[cfg(test)]
mod tests;
