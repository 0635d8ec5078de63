//! The command on Linux.

use crate::arguments::{self, ArgumentError, DeviceOrder, Order};
use crate::background::{self, BackgroundFiles, Starter};
use crate::daemon::{self, DaemonError};
use crate::device::Device;
use crate::plan::DevicePlan;
use crate::{FAILED, MISUSED, complain, exit_status};
use crate::{allowed_ips, app, check, doctor, events, exec, explain, flows, prove, proxy, report};
use crate::{
    metrics, other_version, packet_process, service, status, tunnel, unprivileged, web, wg,
};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use taupe_broker::PacketProcess;
use taupe_os_linux::packet_process::{ARGUMENT, PROGRAM};

/// Executes the order in the process's arguments and environment.
#[must_use]
pub fn run() -> ExitCode {
    main::<PacketProcess>()
}

/// Executes the order in the process's arguments and environment, with devices of the given kind.
#[must_use]
pub fn main<D: Device>() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let [program, argument, _interface] = &*arguments
        && program == PROGRAM
        && argument == ARGUMENT
    {
        return packet_process::main();
    }
    if let [program, argument] = &*arguments
        && program == PROGRAM
        && argument == metrics::server::ARGUMENT
    {
        return metrics::server::main();
    }
    if let [program, argument] = &*arguments
        && program == prove::probe::PROGRAM
        && argument == prove::probe::ARGUMENT
    {
        return prove::probe::main();
    }
    match Starter::of_this_process(&arguments) {
        Ok(None) => {}
        Ok(Some(starter)) => return ended(daemon::run_for::<D>(starter)),
        Err(error) => return ended(Err(error.into())),
    }
    let order = match arguments::parse(&arguments, &|name| std::env::var_os(name)) {
        Ok(order) => order,
        Err(ArgumentError::CommandLine(error)) => {
            return exit_status::usage(&error, misused(&arguments));
        }
        Err(error) => return complain(&error, misused(&arguments)),
    };
    if let Some(status) = unprivileged::run(&order, arguments.len()) {
        return status;
    }
    other_version::hand_over(&order, &arguments);
    match order {
        Order::Device(order) => run_device::<D>(&order, &arguments),
        Order::Tunnel(order) => tunnel::main::<D>(&order, &arguments),
        Order::DownAll(order) => tunnel::take_all_down(order, &arguments),
        Order::Check { file, json } => check::main(&file, json),
        Order::Exec(order) => exec::main(&order),
        Order::Explain(order) => explain::main(&order),
        Order::App(order) => app::main(&order, &arguments),
        Order::Status(order) => status::main(&order, &arguments),
        #[cfg(feature = "top")]
        Order::Top(order) => crate::top::main(&order, &arguments),
        Order::Flows(order) => flows::main(&order, &arguments),
        Order::Prove(order) => prove::main(&order, &arguments),
        Order::Events(order) => events::main(&order, &arguments),
        Order::Metrics(order) => metrics::main(&order, &arguments),
        Order::Web(order) => web::main(&order, &arguments),
        Order::Doctor(order) => doctor::main(&order),
        Order::Report(order) => report::main(&order, &arguments),
        Order::Proxy(order) => proxy::main(&order),
        Order::Service => service::main(),
        Order::AllowedIps { networks, except } => allowed_ips::main(&networks, &except),
        Order::Wg {
            compatibility,
            arguments,
        } => wg::main(compatibility, &arguments),
        Order::QuickUsage { is_requested } => quick_usage(is_requested),
    }
}

/// Returns the exit status of wrong usage. That of `exec` differs from the status of common
/// commands. For `status`, the usual one has another meaning.
fn misused(arguments: &[OsString]) -> u8 {
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("exec") => taupe_sandbox::NOT_SET_UP,
        Some("status") => status::UNKNOWN,
        _ => MISUSED,
    }
}

fn run_device<D: Device>(order: &DeviceOrder, arguments: &[OsString]) -> ExitCode {
    let plan = DevicePlan::of_order(order);
    if order.foreground {
        return ended(daemon::run::<D>(plan, &order.logging));
    }
    let files = BackgroundFiles {
        log: &order.logging.background,
        pid: order.pid_file.as_deref(),
    };
    ended(background::start(&plan, &files, arguments).map_err(DaemonError::from))
}

/// Prints why a device has ended, and returns the exit status.
fn ended(outcome: Result<(), DaemonError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(DaemonError::Reported) => FAILED.into(),
        Err(error) => complain(&error, FAILED),
    }
}

/// Prints the usage of `wg-quick` to standard error, as that program does.
fn quick_usage(is_requested: bool) -> ExitCode {
    let _ = std::io::stderr().write_all(QUICK_USAGE.as_bytes());
    if is_requested {
        ExitCode::SUCCESS
    } else {
        FAILED.into()
    }
}

const QUICK_USAGE: &str = "\
Usage: wg-quick up | down | save | strip  CONFIG_FILE | INTERFACE

CONFIG_FILE is a path that ends in INTERFACE.conf; INTERFACE alone means
/etc/wireguard/INTERFACE.conf. The format of the file is that of `wg setconf`, with
these additional keys in the [Interface] section:

  Address                          addresses of the interface, with prefix length
  DNS                              servers and search domains while it is up
  MTU                              default: what fits the path to the endpoints
  Table                            a routing table, auto (default) or off
  PreUp, PostUp, PreDown, PostDown commands for bash; %i is the interface
  SaveConfig                       true: `down` writes the current state to the file

This is Taupe, called as wg-quick. See also `taupe help`.
";
