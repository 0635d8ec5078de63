//! Commands for Windows: the tunnel of a file on a packet filter or an adapter, in this process
//! (`taupe run`) or as a service (`taupe service`).

mod arguments;
mod run;
mod service;

mod adapter;
mod event_log;
mod frame_tunnel;
mod lock;
mod owners;
mod packet_filter;
mod pipe;
mod requests;
mod sockets;
mod tunnel;

pub use packet_filter::PacketFilter;

use crate::command_line::ABOUT;
use crate::command_line::groups::grouped;
use crate::portable::{self, PortableCommand, after_help};
use arguments::{RunArguments, ServiceArguments, with_two_dashes};
use clap::{CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;
use taupe_transparent_windows::{PacketTap, TapError};

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version = crate::command_line::VERSION, about = ABOUT, after_long_help = after_help())]
struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Portable(PortableCommand),
    /// Run the tunnel of a file in this process
    #[command(after_long_help = arguments::run_help())]
    Run(RunArguments),
    /// Manage the service that starts a tunnel with the machine
    #[command(after_long_help = arguments::service_help())]
    Service(ServiceArguments),
}

/// Returns the definition of the command line, from which manual pages and shell completions are
/// generated.
#[must_use]
pub fn command_line() -> clap::Command {
    grouped(Taupe::command())
}

/// Executes the command in the process's arguments and environment, with a packet filter of the
/// given kind.
#[must_use]
pub fn main<D: Driver>() -> ExitCode {
    portable::main(with_two_dashes, execute::<D>)
}

/// Executes the command in the process's arguments and environment, with Windows Packet Filter.
#[must_use]
pub fn run() -> ExitCode {
    main::<PacketFilter>()
}

fn execute<D: Driver>(taupe: Taupe, arguments: &[OsString]) -> ExitCode {
    match taupe.command {
        Command::Portable(command) => command.run(arguments),
        Command::Run(run) => run::main::<D>(&run.order()),
        Command::Service(service) => service::main::<D>(&service.order()),
    }
}

/// Access to a packet filter. Tests have an implementation of their own.
pub trait Driver: 'static {
    /// Source and destination of frames.
    type Tap: PacketTap;

    /// Opens the packet filter, without intercepting anything yet.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice, for example if no packet filter is installed.
    fn open() -> Result<Self::Tap, TapError>;
}
