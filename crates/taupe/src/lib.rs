//! The command and daemon.
//!
//! [`main`] is all of it: the command line and the environment become an order,
//! which is carried out.
//!
//! Exit status, but for `wg` and `wg-quick`, which have those programs', for the
//! commands that are `wg`'s too, where wrong usage is 1, and for `exec`, which has that of
//! the command, or 125 to 127 as `env` has:
//!
//! | | |
//! |---|---|
//! | 0 | it is done. A device in the background: the interface is there and its configuration socket answers; in the foreground: it ended by a signal, or because its interface or its socket was removed |
//! | 1 | it failed; the reason is on standard error |
//! | 2 | the command line or a variable is wrong, and nothing was done |
//!
//! `taupe status` says how tunnels are by its own: 0 up, 1 down, 2 degraded, 3 unknown.

#![forbid(unsafe_code)]

mod app;
mod arguments;
mod background;
mod capture;
mod check;
mod conf;
mod console;
mod device;
mod doctor;
mod doubts;
mod endpoints;
mod exec;
mod explain;
mod families;
mod flows;
mod interface;
mod json;
mod kept;
mod logging;
mod mode;
mod names;
mod processes;
mod proxy;
mod reach;
mod report;
mod rivals;
mod root;
mod silence;
mod status;

mod tunnel;
mod via;
mod wg;

pub use device::Device;

use arguments::{DeviceOrder, Order};
use background::Starter;
use console::NotPrinted;
use device::Failure;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;
use taupe_config::networks::subtract;
use taupe_config::prefix::{Prefix, display};

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

/// Does what the process's arguments and environment ask for, with devices of
/// the given kind.
#[must_use]
pub fn main<D: Device>() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let order = match arguments::parse(&arguments, &|name| std::env::var_os(name)) {
        Ok(order) => order,
        Err(arguments::Error::CommandLine(error)) => {
            // The text of `--help` and `--version` comes this way too.
            let printed = console::print_by(|| error.print());
            return if error.use_stderr() {
                misused(&arguments).into()
            } else {
                exit(printed, ExitCode::SUCCESS)
            };
        }
        Err(error) => return complain(&error, misused(&arguments)),
    };
    match order {
        Order::Device(order) => run_device::<D>(&order, &arguments),
        Order::Tunnel(order) => tunnel::main::<D>(&order, &arguments),
        Order::Check { file } => check::main(&file),
        Order::Exec(order) => exec::main::<D>(&order),
        Order::Explain(order) => explain::main(&order),
        Order::App(order) => app::main(&order, &arguments),
        Order::Status(order) => status::main(&order, &arguments),
        Order::Flows(order) => flows::main(&order, &arguments),
        Order::Doctor(order) => doctor::main(&order),
        Order::Report(order) => report::main(&order, &arguments),
        Order::Proxy(order) => proxy::main(&order),
        Order::AllowedIps { networks, except } => allowed_ips(&networks, &except),
        Order::Wg {
            personality,
            arguments,
        } => wg::main(personality, &arguments),
        Order::QuickUsage { asked } => quick_usage(asked),
    }
}

/// The status of wrong usage: that of `exec` is none that a command may have, and to
/// `status` the usual one means something else.
fn misused(arguments: &[OsString]) -> u8 {
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("exec") => taupe_cell::NOT_SET_UP,
        Some("status") => status::UNKNOWN,
        _ => MISUSED,
    }
}

/// The definition of the command line, from which manual pages and shell
/// completions are made.
#[must_use]
pub fn command_line() -> clap::Command {
    arguments::definition()
}

fn run_device<D: Device>(order: &DeviceOrder, arguments: &[OsString]) -> ExitCode {
    let outcome = match Starter::of_this_process() {
        Ok(Some(starter)) => device::run_for::<D>(order, starter),
        Ok(None) if order.foreground => device::run::<D>(order),
        Ok(None) => background::start(order, arguments),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => FAILED.into(),
        Err(error) => complain(&error, FAILED),
    }
}

/// Prints the shortest list, as it can stand after `AllowedIPs =`.
fn allowed_ips(networks: &[Prefix], except: &[Prefix]) -> ExitCode {
    let left = subtract(networks, except);
    if left.is_empty() {
        console::say(&"taupe: nothing is left: the list is empty");
    }
    let left: Vec<_> = left
        .into_iter()
        .map(|one| display(one).to_string())
        .collect();
    let printed = console::print(format!("{}\n", left.join(", ")).as_bytes());
    exit(printed, ExitCode::SUCCESS)
}

/// Prints how `wg-quick` is called, as it does: to standard error.
fn quick_usage(asked: bool) -> ExitCode {
    let _ = std::io::stderr().write_all(QUICK_USAGE.as_bytes());
    if asked {
        ExitCode::SUCCESS
    } else {
        FAILED.into()
    }
}

const QUICK_USAGE: &str = "\
Usage: wg-quick up | down | save | strip  CONFIG_FILE | INTERFACE

CONFIG_FILE is a path that ends in INTERFACE.conf; an INTERFACE alone stands for
/etc/wireguard/INTERFACE.conf. The file is that of `wg setconf`, and its [Interface]
section can have these keys besides:

  Address                          addresses of the interface, with prefix length
  DNS                              servers and search domains while it is up
  MTU                              instead of what fits the way to the endpoints
  Table                            a routing table, auto (as without it) or off
  PreUp, PostUp, PreDown, PostDown commands for bash; %i is the interface
  SaveConfig                       true: `down` writes the present state to the file

This is Taupe, called as wg-quick. `taupe help` tells more.
";

/// The status of something that was to print and has come out as `status`.
fn exit(printed: Result<(), NotPrinted>, status: ExitCode) -> ExitCode {
    match printed {
        Ok(()) => status,
        Err(error) if error.is_unread() => FAILED.into(),
        Err(error) => complain(&error, FAILED),
    }
}

fn complain(error: &dyn Display, status: u8) -> ExitCode {
    console::say(&format_args!("taupe: {error}"));
    status.into()
}
