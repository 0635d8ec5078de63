//! The command line of `taupe run` and `taupe service`.

use crate::command_line::common::FILES;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use tracing_subscriber::filter::LevelFilter;

const RUN_STATUS: &str = "\
Exit status:
  0  Ctrl-C ended it, or its console was closed.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done.
  3  An elevated administrator is needed; nothing was done.
  4  The tunnel runs already; nothing was done.
  6  There is no driver of the packet filter; nothing was done.
  7  With --adapter: there is no wintun.dll; nothing was done.";

const SERVICE_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed; standard error says what, why and what to do. All changes are
     undone.
  2  Wrong usage; nothing was done.
  3  An elevated administrator is needed; nothing was done.
  4  The service is installed already, or runs already; nothing was done.
  5  There is no such service, or it does not run; nothing was done.";

const RUN: &str = "\
The tunnel is inside this process and works on the frames of the network cards. No adapter, route \
or name server of the system changes. With --adapter the tunnel has an adapter of its own, with the \
file's addresses, routes and name servers, for all applications; the system removes the adapter when \
the process ends. The tunnel has the name of its file. While it runs, `taupe show`, `set` and the \
like print and change its state.\n\n\
Options can be written with one dash, as -config.";

const RUN_EXAMPLES: &str = "\
Examples:
  taupe run -config C:\\ProgramData\\Taupe\\home.conf -log-level info
  taupe run --adapter --config C:\\ProgramData\\Taupe\\office.conf";

const SERVICE: &str = "\
The service runs the tunnel of a file, whose path it stores. It starts with the machine, some two \
minutes after other services, and starts again if it fails. It logs to the event log: Event Viewer, \
Windows Logs, Application, source TaupeTunnel$NAME.\n\n\
The lock belongs to the system (Windows Filtering Platform). It blocks its programs while no tunnel \
runs. It identifies programs by their files: the programs that the tunnel's file lists with a path, \
the executables in a folder that it lists, and those of its names that are registered with the \
system; `lock` prints these. If a program is installed later, run `lock` again.";

const SERVICE_EXAMPLES: &str = "\
Examples:
  taupe service install --config C:\\ProgramData\\Taupe\\home.conf
  taupe service start --config C:\\ProgramData\\Taupe\\home.conf";

/// Returns the end of the long help of `taupe run`.
pub(super) fn run_help() -> String {
    format!("{RUN}\n\n{RUN_STATUS}\n\n{FILES}\n\n{RUN_EXAMPLES}")
}

/// Returns the end of the long help of `taupe service`.
pub(super) fn service_help() -> String {
    format!("{SERVICE}\n\n{SERVICE_STATUS}\n\n{SERVICE_EXAMPLES}")
}

/// A tunnel to run in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunOrder {
    /// A path, or a name in the usual folder.
    pub(crate) file: OsString,
    pub(crate) mode: WindowsMode,
    pub(crate) level: LevelFilter,
}

/// The interface of a tunnel to the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WindowsMode {
    /// The frames of the network cards, by the packet filter.
    Frames,
    /// An adapter of its own.
    Adapter,
}

/// An action on a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ServiceOrder {
    /// For one tunnel.
    Tunnel {
        action: ServiceAction,
        /// Its file: a path, or a name in the usual folder.
        file: OsString,
    },
    /// Remove the lock.
    Unlock,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServiceAction {
    Install(WindowsMode, Level),
    Start,
    Stop,
    Uninstall,
    Status,
    /// Lock the programs that the file selects.
    Lock,
    /// Run as the service, called by the service manager.
    Run(WindowsMode, Level),
}

/// Log level, with the names of the client of 2021.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Level {
    /// Nothing.
    None,
    /// Events that matter to the user of a tunnel.
    Info,
    /// Also adapters, look-ups and dropped packets.
    Debug,
    /// All events.
    All,
}

impl Level {
    pub(crate) fn filter(self) -> LevelFilter {
        match self {
            Self::None => LevelFilter::OFF,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::All => LevelFilter::TRACE,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::All => "all",
        }
    }
}

#[derive(Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    config: ConfigOption,
    #[command(flatten)]
    adapter: AdapterOption,
    #[command(flatten)]
    log: LogOption,
}

impl RunArguments {
    pub(crate) fn order(self) -> RunOrder {
        RunOrder {
            file: self.config.config,
            mode: self.adapter.mode(),
            level: self.log.log_level.filter(),
        }
    }
}

#[derive(Args)]
pub(crate) struct ServiceArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install a service that starts with the machine
    #[command(after_long_help = "Examples:\n  taupe service install --config home")]
    Install {
        #[command(flatten)]
        config: ConfigOption,
        #[command(flatten)]
        adapter: AdapterOption,
        #[command(flatten)]
        log: LogOption,
    },
    /// Start the service
    #[command(after_long_help = "Examples:\n  taupe service start --config home")]
    Start(ConfigOption),
    /// Stop the service until the machine starts again
    #[command(after_long_help = "Examples:\n  taupe service stop --config home")]
    Stop(ConfigOption),
    /// Stop the service and remove it
    #[command(after_long_help = "Examples:\n  taupe service uninstall --config home")]
    Uninstall(ConfigOption),
    /// Show the state of the service
    ///
    /// It is running, changing, stopped or not installed.
    #[command(after_long_help = "Examples:\n  taupe service status --config home")]
    Status(ConfigOption),
    /// Block the selected programs while no tunnel runs
    ///
    /// The lock stays after a restart. It replaces the lock of another file.
    #[command(after_long_help = "Examples:\n  taupe service lock --config home")]
    Lock(ConfigOption),
    /// Remove the lock
    #[command(after_long_help = "Examples:\n  taupe service unlock")]
    Unlock,
    /// Run as a service, for the service manager
    #[command(hide = true)]
    Run {
        #[command(flatten)]
        config: ConfigOption,
        #[command(flatten)]
        adapter: AdapterOption,
        #[command(flatten)]
        log: LogOption,
    },
}

impl ServiceArguments {
    pub(crate) fn order(self) -> ServiceOrder {
        let (action, config) = match self.command {
            Command::Install {
                config,
                adapter,
                log,
            } => (
                ServiceAction::Install(adapter.mode(), log.log_level),
                config,
            ),
            Command::Start(config) => (ServiceAction::Start, config),
            Command::Stop(config) => (ServiceAction::Stop, config),
            Command::Uninstall(config) => (ServiceAction::Uninstall, config),
            Command::Status(config) => (ServiceAction::Status, config),
            Command::Lock(config) => (ServiceAction::Lock, config),
            Command::Unlock => return ServiceOrder::Unlock,
            Command::Run {
                config,
                adapter,
                log,
            } => (ServiceAction::Run(adapter.mode(), log.log_level), config),
        };
        ServiceOrder::Tunnel {
            action,
            file: config.config,
        }
    }
}

#[derive(Args)]
struct ConfigOption {
    /// NAME.conf, or NAME of a file in C:\ProgramData\Taupe
    ///
    /// The tunnel has the name of its file.
    #[arg(long, value_name = "CONF", value_hint = ValueHint::FilePath)]
    config: OsString,
}

#[derive(Args)]
struct AdapterOption {
    /// Create an adapter that all applications use
    ///
    /// The adapter has the file's addresses and routes. This needs wintun.dll beside taupe.exe.
    #[arg(long)]
    adapter: bool,
}

impl AdapterOption {
    fn mode(&self) -> WindowsMode {
        match self.adapter {
            true => WindowsMode::Adapter,
            false => WindowsMode::Frames,
        }
    }
}

#[derive(Args)]
struct LogOption {
    /// Log level: none, info, debug or all
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "info",
        hide_possible_values = true
    )]
    log_level: Level,
}

/// Rewrites `-config`, `-log-level` (of the client of 2021) and `-adapter` with two dashes.
/// Arguments of other commands are not changed.
pub(crate) fn with_two_dashes(arguments: &[OsString]) -> Vec<OsString> {
    let is_own = arguments
        .get(1)
        .is_some_and(|word| word == "run" || word == "service");
    let one = |argument: &OsString| {
        let text = argument.to_str().unwrap_or_default();
        let name = text.split('=').next();
        match name {
            Some("-config" | "-log-level" | "-adapter") if is_own => format!("-{text}").into(),
            _ => argument.clone(),
        }
    };
    arguments.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::with_two_dashes;
    use std::ffi::OsString;

    #[test]
    fn options_of_the_old_client_have_one_dash() {
        let read = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            with_two_dashes(&words)
        };
        assert_eq!(
            read(&[
                "taupe",
                "run",
                "-config",
                "a-config.conf",
                "-log-level=all",
                "-h"
            ]),
            [
                "taupe",
                "run",
                "--config",
                "a-config.conf",
                "--log-level=all",
                "-h"
            ]
        );
        assert_eq!(
            read(&["taupe", "run", "--config"]),
            ["taupe", "run", "--config"]
        );
        assert_eq!(
            read(&["taupe", "show", "-config"]),
            ["taupe", "show", "-config"]
        );
    }
}
