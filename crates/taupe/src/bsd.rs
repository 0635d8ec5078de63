//! The command on FreeBSD and macOS.

mod background;
mod device;
mod network;
mod quick;
mod up;
mod up_process;

use crate::command_line::ABOUT;
use crate::command_line::common::{FILES, FileArgument, RETRIES};
use crate::command_line::groups::grouped;
use crate::portable::{self, PortableCommand, after_help};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use taupe_config::file::Compatibility;

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version = crate::command_line::VERSION, about = ABOUT, after_long_help = after_help())]
struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up the tunnel of a file
    #[command(long_about = UP, after_long_help = format!("{UP_STATUS}\n\n{RETRIES}\n\n{FILES}\n\n{UP_EXAMPLES}"))]
    Up(UpArguments),
    /// Take a tunnel down
    #[command(after_long_help = format!("{DOWN_STATUS}\n\n{FILES}\n\n{DOWN_EXAMPLES}"))]
    Down(DownArguments),
    /// Write the tunnel's current state into its file
    ///
    /// Comments in the file are lost, and only its owner can read it then.
    #[command(after_long_help = FILES)]
    Save(FileArgument),
    /// Run a device, for `wg` and `wg-quick`
    #[command(after_long_help = DEVICE)]
    Device(DeviceArguments),
    #[command(flatten)]
    Portable(PortableCommand),
}

const UP: &str = "\
Bring up the tunnel of a file.\n\n\
Taupe creates an interface with addresses, routes and name servers, like wg-quick. Networks to \
which another interface has a route, or which are its local network, stay where they are: Taupe \
prints a line about each. While the tunnel is up, its routes to endpoints follow the network.\n\n\
With --foreground, SIGTERM and SIGINT take the tunnel down, without its PreDown commands. Without it, one process stays in the background.";

const UP_STATUS: &str = "\
Exit status:
  0  The tunnel can be used. With --foreground: it could be, and is down again.
  1  Failed, or the tunnel is up already; standard error says what, why and what
     to do. All changes are undone.
  2  Wrong usage; nothing was done.";

const UP_EXAMPLES: &str = "\
Examples:
  sudo taupe up home
  sudo taupe up --foreground ./home.conf";

const DOWN_STATUS: &str = "\
Exit status:
  0  The tunnel is down, and nothing of it is left.
  1  The tunnel is not up, or a change could not be undone; standard error says
     what, why and what to do.
  2  Wrong usage; nothing was done.";

const DOWN_EXAMPLES: &str = "\
Examples:
  sudo taupe down home";

#[derive(Args)]
struct UpArguments {
    #[command(flatten)]
    file: FileArgument,
    /// Stay in the foreground until a signal arrives
    #[arg(short, long)]
    foreground: bool,
    /// Take precedence over existing routes and the LAN
    #[arg(long)]
    override_routes: bool,
}

#[derive(Args)]
struct DownArguments {
    #[command(flatten)]
    file: FileArgument,
    /// Do not write the file, despite `SaveConfig = true`
    #[arg(long)]
    no_save: bool,
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
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if quick::is_quick(&arguments) {
        return quick::main(&arguments);
    }
    portable::main(by_name, |taupe: Taupe, arguments| match taupe.command {
        Command::Up(UpArguments {
            file,
            foreground,
            override_routes,
        }) => up::up(&up::UpOrder {
            file: file.file,
            foreground,
            override_routes,
            compatibility: Compatibility::Taupe,
        }),
        Command::Down(DownArguments { file, no_save }) => {
            up::down(&file.file, !no_save, Compatibility::Taupe)
        }
        Command::Save(FileArgument { file }) => up::save(&file, Compatibility::Taupe),
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
