//! The command on FreeBSD and macOS.

mod background;
mod device;
mod network;

use crate::command_line::ABOUT;
use crate::command_line::groups::grouped;
use crate::portable::{self, PortableCommand, after_help};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version, about = ABOUT, after_long_help = after_help())]
struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a device, for `wg` and `wg-quick`
    #[command(after_long_help = DEVICE)]
    Device(DeviceArguments),
    #[command(flatten)]
    Portable(PortableCommand),
}

const DEVICE: &str = "\
Environment:
  LOG_LEVEL              silent, error, warn (default), info, verbose or debug,
                         trace. The log goes to standard error; a background
                         process logs only if it is set.
  WG_PROCESS_FOREGROUND  1 is the same as -f.
  WG_TUN_FD              Number of an open TUN to use instead of creating one.
  WG_TUN_NAME_FILE       File to which the interface's name is written.
  WG_UAPI_FD             Number of a listening socket to use instead of
                         /var/run/wireguard/IFACE.sock.

Exit status:
  0  In the background: the interface exists, and its configuration socket
     answers. With -f: SIGTERM or SIGINT ended it, or its interface or socket
     was removed.
  1  It could not start, or could not continue; standard error says why.
  2  Wrong usage; nothing was done.

Examples:
  sudo taupe device wg0                                        (FreeBSD)
  sudo taupe device utun                                       (macOS)
  sudo WG_QUICK_USERSPACE_IMPLEMENTATION=taupe-device wg-quick up wg0
                              (taupe-device is a link to taupe)";

#[derive(Args)]
struct DeviceArguments {
    /// Interface to create; on macOS utun, or utun and a number
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Stay in the foreground
    ///
    /// Without it, the command ends when the interface answers.
    #[arg(short, long)]
    foreground: bool,
}

/// Returns the definition of the command line, from which manual pages and shell completions are
/// generated.
#[must_use]
pub fn command_line() -> clap::Command {
    grouped(Taupe::command())
}

/// Executes the command in the process's arguments and environment.
#[must_use]
pub fn main() -> ExitCode {
    portable::main(by_name, |taupe: Taupe, arguments| match taupe.command {
        Command::Device(DeviceArguments {
            interface,
            foreground,
        }) => device::main(&interface, foreground),
        Command::Portable(command) => command.run(arguments),
    })
}

/// Executes the command in the process's arguments and environment.
#[must_use]
pub fn run() -> ExitCode {
    main()
}

/// As `taupe-device` or `wireguard-go`, the program is `taupe device`: `wg-quick` starts a userspace
/// implementation with the name of an interface as the only argument.
fn by_name(arguments: &[OsString]) -> Vec<OsString> {
    let mut arguments = arguments.to_vec();
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    let is_device = path
        .file_name()
        .is_some_and(|name| name == "taupe-device" || name == "wireguard-go");
    if is_device {
        arguments.insert(1, "device".into());
    }
    arguments
}
