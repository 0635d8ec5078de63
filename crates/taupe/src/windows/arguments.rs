//! The command line of `taupe run` and `taupe service`.

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use std::ffi::OsString;
use tracing_subscriber::filter::LevelFilter;

pub(crate) const RUN_STATUS: &str = "\
Exit status:
  0  Ctrl-C has ended it, or its console was closed.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done.
  3  It takes an elevated administrator; nothing was done.
  4  The tunnel runs already; nothing was done.
  6  There is no driver of the packet filter; nothing was done.
  7  With --adapter: there is no wintun.dll; nothing was done.";

pub(crate) const SERVICE_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed; standard error says what, why and what to do. Whatever had been done of it is
     undone.
  2  Wrong usage; nothing was done.
  3  It takes an elevated administrator; nothing was done.
  4  The service is installed already, or runs already; nothing was done.
  5  There is no such service, or it does not run; nothing was done.";

pub(crate) const RUN: &str = "\
The tunnel is in this process, on the frames of the network cards: no adapter, route or name
server of the system changes. With --adapter it is on an adapter of its own, with the file's
addresses, routes and name servers, for all applications; the system removes the adapter when
the process ends. The tunnel is named after its file. Meanwhile `taupe show`, `set` and the
others tell of it and change it.

Options can be written with one dash, as -config.

Examples:
  taupe run -config C:\\ProgramData\\Taupe\\home.conf -log-level info
  taupe run --adapter --config C:\\ProgramData\\Taupe\\office.conf";

pub(crate) const SERVICE: &str = "\
The service is the tunnel of a file, whose path it keeps; it starts with the machine, some two
minutes after the rest, and again when it fails. It logs to the event log: Event Viewer, Windows
Logs, Application, of the source TaupeTunnel$NAME.

The lock is the system's (Windows Filtering Platform), and holds while no tunnel runs, whatever
has become of it. It knows programs by their files: those that the file of the tunnel writes with their
path, those in a folder that it writes, and those of its names that are registered with the
system, which are printed. What is installed later is locked by another `lock`.

Examples:
  taupe service install --config C:\\ProgramData\\Taupe\\home.conf
  taupe service start --config C:\\ProgramData\\Taupe\\home.conf";

/// To run a tunnel in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RunOrder {
    /// A path, or a name in the usual folder.
    pub(crate) file: OsString,
    pub(crate) mode: Mode,
    pub(crate) level: LevelFilter,
}

/// On what a tunnel runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// The frames of the network cards, by the packet filter.
    Frames,
    /// An adapter of its own.
    Adapter,
}

/// To do something with a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ServiceOrder {
    /// About one tunnel.
    Tunnel {
        action: Action,
        /// Its file: a path, or a name in the usual folder.
        file: OsString,
    },
    /// Lock no programs any more.
    Unlock,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Install(Mode, Level),
    Start,
    Stop,
    Uninstall,
    Status,
    /// Lock what it chooses.
    Lock,
    /// To be one: asked by the service manager.
    Run(Mode, Level),
}

/// How much is logged: the words of the client of 2021.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Level {
    /// Nothing.
    None,
    /// What matters to who uses the tunnel.
    Info,
    /// Adapters, look-ups and what was dropped too.
    Debug,
    /// All there is.
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
pub(crate) struct Run {
    #[command(flatten)]
    config: Config,
    #[command(flatten)]
    on: On,
    #[command(flatten)]
    log: Log,
}

impl Run {
    pub(crate) fn order(self) -> RunOrder {
        RunOrder {
            file: self.config.config,
            mode: self.on.mode(),
            level: self.log.log_level.filter(),
        }
    }
}

#[derive(Args)]
pub(crate) struct Service {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Have the tunnel of a file start with the machine
    Install {
        #[command(flatten)]
        config: Config,
        #[command(flatten)]
        on: On,
        #[command(flatten)]
        log: Log,
    },
    /// Start the service
    Start(Config),
    /// Stop the service; it starts again with the machine
    Stop(Config),
    /// Stop the service and remove it
    Uninstall(Config),
    /// Print how the service is: running, changing, stopped or not installed
    Status(Config),
    /// Let the programs that a file chooses use no network without its tunnel, also after a
    /// restart; instead of those of another file
    Lock(Config),
    /// Let all programs use the network again
    Unlock,
    /// Be the service, for the service manager
    #[command(hide = true)]
    Run {
        #[command(flatten)]
        config: Config,
        #[command(flatten)]
        on: On,
        #[command(flatten)]
        log: Log,
    },
}

impl Service {
    pub(crate) fn order(self) -> ServiceOrder {
        let (action, config) = match self.command {
            Command::Install { config, on, log } => {
                (Action::Install(on.mode(), log.log_level), config)
            }
            Command::Start(config) => (Action::Start, config),
            Command::Stop(config) => (Action::Stop, config),
            Command::Uninstall(config) => (Action::Uninstall, config),
            Command::Status(config) => (Action::Status, config),
            Command::Lock(config) => (Action::Lock, config),
            Command::Unlock => return ServiceOrder::Unlock,
            Command::Run { config, on, log } => (Action::Run(on.mode(), log.log_level), config),
        };
        ServiceOrder::Tunnel {
            action,
            file: config.config,
        }
    }
}

#[derive(Args)]
struct Config {
    /// A file NAME.conf, or the NAME of one in C:\ProgramData\Taupe
    ///
    /// The tunnel is named after the file.
    #[arg(long, value_name = "CONF", value_hint = ValueHint::FilePath)]
    config: OsString,
}

#[derive(Args)]
struct On {
    /// Use an adapter of its own, with addresses and routes, for all applications; takes
    /// wintun.dll beside taupe.exe
    #[arg(long)]
    adapter: bool,
}

impl On {
    fn mode(&self) -> Mode {
        match self.adapter {
            true => Mode::Adapter,
            false => Mode::Frames,
        }
    }
}

#[derive(Args)]
struct Log {
    /// How much to log
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: Level,
}

/// Makes of `-config` and `-log-level`, as the client of 2021 had them, and of `-adapter`, what
/// is understood here. After a word of another command nothing is changed.
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
