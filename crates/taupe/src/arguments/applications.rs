//! The command lines of `taupe app` and `taupe explain`.

use super::{AppAction, AppOrder, AppPlace, ExplainOrder};
use crate::command_line::common::FileArgument;
use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use taupe_config::application::Application;
use taupe_inspect::destination::Destination;

pub(super) const APP: &str = "\
Taupe edits the lists AllowedApps and DisallowedApps of the file. All other lines, including \
comments, stay as they are. If the tunnel is up, it applies the change at once, also to open \
sockets. If a step fails, neither the file nor the tunnel is changed.\n\n\
Selections of other applications stay. If the file has no AllowedApps, `allow` removes entries \
from DisallowedApps. If it has AllowedApps, `deny` removes entries from them. A change that affects \
all other applications is refused, such as the first entry of AllowedApps or removing its last one: \
edit the file instead.\n\n\
An application is written as in a file: a name, /a/path, /a/folder/, cgroup:, uid:, flatpak: or \
snap:.";

pub(super) const APP_STATUS: &str = "\
Exit status:
  0  The file is changed, and the tunnel applies it if it is up.
  1  Failed, and neither is changed; standard error says what, why and what to
     do.
  2  Wrong usage; nothing was done.";

pub(super) const APP_EXAMPLES: &str = "\
Examples:
  sudo taupe app allow home curl
  sudo taupe app list home";

const ALLOW_EXAMPLES: &str = "\
Examples:
  sudo taupe app allow home curl /opt/games/";

const DENY_EXAMPLES: &str = "\
Examples:
  sudo taupe app deny home curl";

const REMOVE_EXAMPLES: &str = "\
Examples:
  sudo taupe app remove home curl";

const LIST_EXAMPLES: &str = "\
Examples:
  taupe app list home";

const LIST_JSON: &str = "\
JSON:
  An object with `schema` (1), `file`, `apps_of_user` (the only user whose
  applications the rules select, or null), `others` (tunnel, direct: what all
  other applications use) and `rules`, a list of objects with line, key,
  application and processes: objects with pid, application and sockets. Without
  root, only your own processes are listed.";

pub(super) const EXPLAIN: &str = "\
Taupe prints the rules in the order in which they are evaluated. An arrow marks the rule that \
decides; the rules after it are not reached. Tunnels decide by address, so a host name is refused. \
Without --conf, Taupe answers for each tunnel that selects applications and has not been taken \
down.\n\n\
Nothing is changed. With --conf, the command needs only the right to read the file; for root it \
also prints what differs while the tunnel is up in adapter mode.";

pub(super) const EXPLAIN_JSON: &str = "\
JSON:
  An object with `schema` (1), `packets` (sender and destination), `warning`
  (or null) and `tunnels`, a list of objects with interface, file, warning (or
  null) and steps: objects with title, text and decides. The first step that
  decides counts.";

pub(super) const EXPLAIN_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The file cannot be used, or there is no such application or process.
  2  Wrong usage.";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  sudo taupe explain curl 198.51.100.1:443
  sudo taupe explain 4711
  taupe explain --conf ./home.conf firefox-esr 198.51.100.1:53
  taupe explain --conf home --forwarded 198.51.100.1";

#[derive(Args)]
pub(super) struct AppArguments {
    #[command(subcommand)]
    command: AppCommand,
}

#[derive(Subcommand)]
enum AppCommand {
    /// Route applications through the tunnel
    #[command(after_long_help = format!("{APP_STATUS}\n\n{ALLOW_EXAMPLES}"))]
    Allow(AppList),
    /// Let applications bypass the tunnel
    #[command(after_long_help = format!("{APP_STATUS}\n\n{DENY_EXAMPLES}"))]
    Deny(AppList),
    /// Remove applications from both lists
    #[command(after_long_help = format!("{APP_STATUS}\n\n{REMOVE_EXAMPLES}"))]
    Remove(AppList),
    /// Print both lists and the processes that match them
    #[command(after_long_help = format!("{LIST_JSON}\n\n{LIST_EXAMPLES}"))]
    List(ListArguments),
}

#[derive(Args)]
struct ListArguments {
    #[command(flatten)]
    file: FileArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct AppList {
    #[command(flatten)]
    file: FileArgument,
    /// Application, written as in a file
    #[arg(value_name = "APP", required = true)]
    applications: Vec<Application>,
}

impl AppArguments {
    pub(super) fn order(self) -> AppOrder {
        let edit = |place, list: AppList| AppOrder {
            file: list.file.file,
            action: AppAction::Edit(place, list.applications),
        };
        match self.command {
            AppCommand::Allow(list) => edit(AppPlace::Allowed, list),
            AppCommand::Deny(list) => edit(AppPlace::Disallowed, list),
            AppCommand::Remove(list) => edit(AppPlace::Nowhere, list),
            AppCommand::List(list) => AppOrder {
                file: list.file.file,
                action: AppAction::List { json: list.json },
            },
        }
    }
}

#[derive(Args)]
pub(super) struct ExplainArguments {
    /// Executable (path or name in PATH), or process ID
    #[arg(value_name = "APP|PID", value_hint = ValueHint::ExecutablePath)]
    #[arg(required_unless_present = "forwarded", conflicts_with = "forwarded")]
    app: Option<OsString>,
    /// Destination address, with or without a port
    #[arg(value_name = "DEST")]
    to: Option<Destination>,
    /// Explain traffic that this machine forwards
    ///
    /// With DEST, the answer is for this destination.
    #[arg(long, value_name = "DEST", num_args = 0..=1)]
    forwarded: Option<Option<Destination>>,
    /// Use this file, even if its tunnel is down
    ///
    /// Default: all tunnels that are up.
    #[arg(long, value_name = "CONF", value_hint = ValueHint::FilePath)]
    conf: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ExplainArguments {
    pub(super) fn order(self) -> ExplainOrder {
        ExplainOrder {
            file: self.conf,
            application: self.app,
            destination: self.to.or(self.forwarded.flatten()),
            json: self.json,
        }
    }
}
