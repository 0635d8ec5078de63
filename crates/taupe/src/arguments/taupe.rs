//! The command line of `taupe`.

use super::device::Device;
use super::{
    Action, AppAction, AppOrder, AppPlace, Destination, DeviceSettings, Environment, Error,
    ExplainOrder, ModeOption, Order, TunnelOrder, Up,
};
use crate::logging::Logging;
use crate::wg;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use taupe_adapter::Personality;
use taupe_config::application::Application;
use taupe_config::prefix::{self, Prefix};

const EXIT_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done. Of the commands that are those of `wg` too, 1.";

const UP_STATUS: &str = "\
Exit status:
  0  The tunnel can be used. With --foreground: it could be, and is down again.
  1  Failed, or it is up already; standard error says what, why and what to do.
     Whatever had been done is undone.
  2  Wrong usage; nothing was done.";

const DOWN_STATUS: &str = "\
Exit status:
  0  The tunnel is down, and nothing of it is left.
  1  It is not up, or something could not be undone; standard error says what, why
     and what to do.
  2  Wrong usage; nothing was done.";

const RELOAD_STATUS: &str = "\
Exit status:
  0  The tunnel is the one that its file describes.
  1  Failed; standard error says what, why and what to do. What had been changed is
     changed back.
  2  Wrong usage; nothing was done.";

const SAVE_STATUS: &str = "\
Exit status:
  0  The file describes the tunnel as it is.
  1  Failed, and the file is as it was; standard error says why and what to do.
  2  Wrong usage; nothing was done.";

const STRIP_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The file cannot be used or read; standard error says why and what to do.
  2  Wrong usage.";

const CHECK_STATUS: &str = "\
Exit status:
  0  The file can be used, perhaps with warnings.
  1  It cannot, or cannot be read.
  2  Wrong usage.";

const ALLOWED_IPS_STATUS: &str = "\
Exit status:
  0  Done; if nothing is left, the list is empty and standard error says so.
  1  The list could not be written.
  2  Wrong usage, or not a network.";

const WG_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed, or wrong usage; standard error says which.";

const FILES: &str = "\
See also:
  taupe.conf(5): all that a file can say, and what comes of it";

const FIELDS: &str = "\
One field of an interface or of its peers is printed in a line for each, with tabs
between its parts; with `all` the interface's name comes first.

Fields:
  public-key            the interface's public key
  private-key           its private key
  listen-port           its UDP port
  fwmark                the mark of its encrypted packets, or off
  peers                 the peers' public keys
  preshared-keys        of each peer the preshared key, or (none)
  endpoints             of each peer the address and port, or (none)
  allowed-ips           of each peer the networks, or (none)
  latest-handshakes     of each peer the seconds since 1970, or 0
  transfer              of each peer the bytes received and sent
  persistent-keepalive  of each peer the seconds, or off
  dump                  all of it: a line for the interface, then one for each peer

Environment:
  WG_COLOR_MODE  always, never, or auto [default]: colours on a terminal.
  WG_HIDE_KEYS   never: show secret keys instead of (hidden).";

const RELOADED: &str = "\
Keys, the port, the mark, peers, addresses, routes, MTU and name servers are made what
the file says, each only where it differs. Commands of the file are not run: that is
for `up` and `down`. How the tunnel was brought up (--override-routes, --no-firewall)
stays. Only a tunnel that `taupe up` has brought up can be reloaded.";

const SAVED: &str = "\
Comments in the file are lost. If everybody could read the old file, only its owner can
read the new one (mode 0600); otherwise those can who could before. In transparent mode
the interface has not what the file says, and nothing is saved.";

const FOREGROUND: &str = "\
With --foreground, SIGTERM and SIGINT take the tunnel down and end with status 0, and
SIGHUP is `taupe reload`. If the interface is deleted by somebody else, the rest is
undone and the status is 1. A service manager that sets NOTIFY_SOCKET (systemd's
Type=notify) is told when the tunnel can be used. Without --foreground, one process
stays in the background.";

const NAME_SERVERS: &str = "\
Where neither systemd-resolved nor resolvconf manages /etc/resolv.conf, DNS replaces
that file; what was there is /etc/resolv.conf.before-taupe until the tunnel goes down.
If the machine goes off before, the next `up` or `down` puts it back.";

const RETRIES: &str = "\
Environment:
  WG_ENDPOINT_RESOLUTION_RETRIES  How often the name of an endpoint that cannot be
                                  resolved for now is tried again: a number
                                  [default: 15], or infinity.";

const DEVICE: &str = "
  LOG_LEVEL, TAUPE_OFFLOAD        As for `taupe device`.";

const MODES: &str = "\
The first line that is printed says in which mode the tunnel is brought up, and why.
Adapter mode is wg-quick's way: an interface with addresses, routes and DNS. Transparent
mode is for chosen applications: what they send goes through the tunnel from the network
that they use anyway, and nowhere while it is down. In adapter mode the same applications
are led there by a mark that their sockets get when they are made; so it is with --adapter,
and on a kernel (before Linux 5.19) that lacks what transparent mode needs. An endpoint whose name has no address
then leaves them held back, and is looked up again until it has one.";

const EXPLAIN_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The file cannot be used, or there is no such application or process.
  2  Wrong usage.";

const EXPLAINED: &str = "\
Every step is printed in the order in which it is taken; the one that decides has an
arrow. Nothing is changed, and it takes only the right to read the file; root is told too
what is otherwise while the tunnel is up in adapter mode.

Examples:
  taupe explain home --app curl --to 198.51.100.1:443
  taupe explain ./home.conf --app 4711
  taupe explain home --forwarded --to 198.51.100.1";

const APPS: &str = "\
The file says which applications are chosen; its other lines, comments among them, stay
as they are. If the tunnel is up, it follows at once, for sockets that are open too.
Either both are changed or nothing is. What the file says of all other applications stays:
where it has no AllowedApps, `allow` takes out of DisallowedApps; where it has, `deny`
takes out of those; a first entry or the last one is for who edits the file.

Applications are written as in a file: a name, /a/path, /a/folder/, cgroup:, uid:,
flatpak: or snap:.";

const APP_STATUS: &str = "\
Exit status:
  0  The file says so, and the tunnel follows it, if it is up.
  1  Failed, and both are as they were; standard error says what, why and what to do.
  2  Wrong usage; nothing was done.";

const STATUS_STATUS: &str = "\
Exit status:
  0  Printed.
  1  There is no such tunnel of chosen applications, or it cannot be looked at.
  2  Wrong usage.";

const EXAMPLES: &str = "\
Examples:
  taupe allowed-ips 0.0.0.0/0,::/0 --except 192.168.0.0/16
  taupe allowed-ips 10.0.0.0/8 --except 10.1.2.3";

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version, about = super::ABOUT)]
#[command(after_help = format!("{EXIT_STATUS}\n\n{FILES}"))]
pub(super) struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up the tunnel that a file describes
    #[command(after_help = format!(
        "{MODES}\n\n{FOREGROUND}\n\n{NAME_SERVERS}\n\n{RETRIES}{DEVICE}\n\n\
         {UP_STATUS}\n\n{FILES}"
    ))]
    Up(UpArguments),
    /// Take a tunnel down, and undo all that `up` did
    ///
    /// This works too when the tunnel's process is dead, however it ended.
    #[command(after_help = format!("{DOWN_STATUS}\n\n{FILES}"))]
    Down(DownArguments),
    /// Make a tunnel that is up the one that its file describes now
    ///
    /// Sessions of peers that stay go on.
    #[command(after_help = format!("{RELOADED}\n\n{RETRIES}\n\n{RELOAD_STATUS}\n\n{FILES}"))]
    Reload(ReloadArguments),
    /// Write the present state of a tunnel into its file
    #[command(after_help = format!("{SAVED}\n\n{SAVE_STATUS}\n\n{FILES}"))]
    Save(FileArgument),
    /// Print a file as `wg setconf` takes it, without the keys of `wg-quick`
    #[command(after_help = format!("{STRIP_STATUS}\n\n{FILES}"))]
    Strip(FileArgument),
    /// Say all that is wrong with a file, where, why and what to do
    ///
    /// Nothing is changed, and no name is resolved.
    #[command(after_help = format!("{CHECK_STATUS}\n\n{FILES}"))]
    Check(FileArgument),
    /// Say what becomes of an application's packets, step by step, and why
    #[command(after_help = format!("{EXPLAINED}\n\n{EXPLAIN_STATUS}\n\n{FILES}"))]
    Explain(ExplainArguments),
    /// Choose applications, in a file and for its tunnel at once
    #[command(after_help = format!("{APPS}\n\n{APP_STATUS}\n\n{FILES}"))]
    App(AppArguments),
    /// Show tunnels of chosen applications: how they are, and what they have dropped
    #[command(after_help = STATUS_STATUS)]
    Status(StatusArguments),
    /// Print the shortest list of networks that leaves some out
    #[command(after_help = format!("{EXAMPLES}\n\n{ALLOWED_IPS_STATUS}"))]
    AllowedIps(AllowedIps),
    #[command(flatten)]
    Wg(Wg),
    /// Run a WireGuard interface, to be configured with `wg`
    Device(Device),
}

#[derive(Args)]
struct FileArgument {
    /// A file NAME.conf, or the NAME of one in /etc/wireguard
    ///
    /// The tunnel is named after the file.
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    file: OsString,
}

#[derive(Args)]
struct UpArguments {
    #[command(flatten)]
    file: FileArgument,
    /// An interface with addresses, routes and DNS, as wg-quick makes it
    #[arg(long, conflicts_with = "transparent")]
    adapter: bool,
    /// For chosen applications, or all: no address, no route, no name server
    #[arg(long)]
    transparent: bool,
    /// Stay, with the device in this process, until a signal ends it
    #[arg(short, long)]
    foreground: bool,
    /// Let the tunnel win over routes that exist and over the local network
    #[arg(long)]
    override_routes: bool,
    /// Leave the packet filter alone
    #[arg(long)]
    no_firewall: bool,
    /// Close TCP connections that chosen applications have open already
    #[arg(long, conflicts_with = "adapter")]
    reset_existing: bool,
    /// When a signal ends it, go on holding back the chosen applications
    #[arg(long, requires = "foreground")]
    keep_closed: bool,
    #[command(flatten)]
    detail: Detail,
}

#[derive(Args)]
struct DownArguments {
    #[command(flatten)]
    file: FileArgument,
    /// Leave the file as it is, although it says `SaveConfig = true`
    #[arg(long)]
    no_save: bool,
    /// Go on holding back the chosen applications, until `up` or another `down`
    #[arg(long)]
    keep_closed: bool,
    #[command(flatten)]
    detail: Detail,
}

#[derive(Args)]
struct ExplainArguments {
    #[command(flatten)]
    file: FileArgument,
    /// An executable, by its path or its name in PATH, or the number of a process
    #[arg(long, value_name = "PATH|PID", value_hint = ValueHint::ExecutablePath)]
    #[arg(required_unless_present = "forwarded")]
    app: Option<OsString>,
    /// What this machine forwards for others instead
    #[arg(long, conflicts_with = "app")]
    forwarded: bool,
    /// Where it sends to
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    to: Option<Destination>,
}

#[derive(Args)]
struct AppArguments {
    #[command(subcommand)]
    command: AppCommand,
}

#[derive(Subcommand)]
enum AppCommand {
    /// Have applications use the tunnel
    #[command(after_help = APP_STATUS)]
    Allow(AppList),
    /// Have applications go past the tunnel
    #[command(after_help = APP_STATUS)]
    Deny(AppList),
    /// Take applications out of both lists
    #[command(after_help = APP_STATUS)]
    Remove(AppList),
    /// Print the lists, and which processes are in them
    List(FileArgument),
}

#[derive(Args)]
struct AppList {
    #[command(flatten)]
    file: FileArgument,
    /// As a file names them
    #[arg(value_name = "APP", required = true)]
    applications: Vec<Application>,
}

#[derive(Args)]
struct StatusArguments {
    /// A file NAME.conf, or the NAME of a tunnel; all of them without it
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    file: Option<OsString>,
}

#[derive(Args)]
struct ReloadArguments {
    #[command(flatten)]
    file: FileArgument,
    #[command(flatten)]
    detail: Detail,
}

#[derive(Args)]
struct Detail {
    /// Print every step, also when there are many routes
    ///
    /// LOG_LEVEL=verbose does so too.
    #[arg(short, long)]
    verbose: bool,
}

impl Detail {
    const PLAIN: Self = Self { verbose: false };

    fn is_wanted(&self, environment: Environment<'_>) -> bool {
        let level = environment("LOG_LEVEL");
        let level = level.as_deref().map(|word| word.to_string_lossy());
        self.verbose || Logging::from_log_level(level.as_deref()).is_verbose()
    }
}

#[derive(Args)]
struct AllowedIps {
    /// Networks or addresses, separated by commas
    #[arg(value_name = "NETWORKS", required = true, value_parser = networks)]
    networks: Vec<Networks>,
    /// What to leave out of them, separated by commas; may be given more than once
    #[arg(long, value_name = "NETWORKS", value_parser = whole_list)]
    except: Vec<Networks>,
}

/// What one word says of a list that commas and blanks separate.
#[derive(Clone)]
struct Networks(Vec<Prefix>);

/// The sub-commands of `wg`. Their arguments are read where they are carried out;
/// what stands here is for help, manual pages and completions.
#[derive(Subcommand)]
enum Wg {
    /// Show the state of interfaces: as `wg show`, and more after its lines
    #[command(
        after_help = format!("{FIELDS}\n\n{WG_STATUS}"),
        override_usage = "\
        taupe show\n       \
        taupe show (INTERFACE | all | interfaces) [FIELD]"
    )]
    Show(Rest),
    /// Print the configuration of an interface as a file for `setconf`
    #[command(after_help = WG_STATUS, override_usage = "taupe showconf INTERFACE")]
    Showconf(Rest),
    /// Change the configuration of an interface
    #[command(
        after_help = WG_STATUS,
        override_usage = "\
        taupe set INTERFACE [listen-port PORT] [fwmark MARK] [private-key FILE]\n           \
        [peer KEY [remove] [preshared-key FILE] [endpoint HOST:PORT]\n           \
        [persistent-keepalive SECONDS] [allowed-ips NETWORKS]]..."
    )]
    Set(Rest),
    /// Replace the configuration of an interface by that of a file
    #[command(
        after_help = WG_STATUS,
        override_usage = "taupe setconf INTERFACE FILE"
    )]
    Setconf(Rest),
    /// Add the configuration of a file to that of an interface
    #[command(
        after_help = WG_STATUS,
        override_usage = "taupe addconf INTERFACE FILE"
    )]
    Addconf(Rest),
    /// As `setconf`, with no more change than needed: sessions go on
    #[command(
        after_help = WG_STATUS,
        override_usage = "taupe syncconf INTERFACE FILE"
    )]
    Syncconf(Rest),
    /// Print a new private key
    #[command(after_help = WG_STATUS, override_usage = "taupe genkey")]
    Genkey(Rest),
    /// Print a new preshared key
    #[command(after_help = WG_STATUS, override_usage = "taupe genpsk")]
    Genpsk(Rest),
    /// Read a private key from standard input and print its public key
    #[command(after_help = WG_STATUS, override_usage = "taupe pubkey")]
    Pubkey(Rest),
}

/// What belongs to a sub-command of `wg`.
#[derive(Args)]
struct Rest {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<OsString>,
}

impl Taupe {
    pub(super) fn order(
        self,
        arguments: &[OsString],
        environment: Environment<'_>,
    ) -> Result<Order, Error> {
        let tunnel = |action, argument: FileArgument, detail: Detail| {
            Order::Tunnel(TunnelOrder {
                personality: Personality::Taupe,
                action,
                file: argument.file,
                verbose: detail.is_wanted(environment),
            })
        };
        Ok(match self.command {
            Command::Up(up) => tunnel(
                Action::Up(Up {
                    mode: match (up.adapter, up.transparent) {
                        (true, _) => Some(ModeOption::Adapter),
                        (false, true) => Some(ModeOption::Transparent),
                        (false, false) => None,
                    },
                    foreground: up.foreground,
                    override_routes: up.override_routes,
                    no_firewall: up.no_firewall,
                    reset_existing: up.reset_existing,
                    keep_closed: up.keep_closed,
                    device: DeviceSettings::read(environment)?,
                }),
                up.file,
                up.detail,
            ),
            Command::Down(DownArguments {
                file,
                no_save,
                keep_closed,
                detail,
            }) => {
                let down = Action::Down {
                    no_save,
                    keep_closed,
                };
                tunnel(down, file, detail)
            }
            Command::Reload(ReloadArguments { file, detail }) => {
                tunnel(Action::Reload, file, detail)
            }
            Command::Save(file) => tunnel(Action::Save, file, Detail::PLAIN),
            Command::Strip(file) => tunnel(Action::Strip, file, Detail::PLAIN),
            Command::Check(FileArgument { file }) => Order::Check { file },
            Command::Explain(ExplainArguments { file, app, to, .. }) => {
                Order::Explain(ExplainOrder {
                    file: file.file,
                    application: app,
                    destination: to,
                })
            }
            Command::App(app) => Order::App(app.command.order()),
            Command::Status(StatusArguments { file }) => Order::Status { file },
            Command::AllowedIps(AllowedIps { networks, except }) => Order::AllowedIps {
                networks: joined(networks),
                except: joined(except),
            },
            Command::Wg(_) => Order::Wg {
                personality: wg::Personality::Taupe,
                arguments: std::iter::once("taupe".into())
                    .chain(arguments.iter().skip(1).cloned())
                    .collect(),
            },
            Command::Device(device) => Order::Device(device.order(environment)?),
        })
    }
}

impl AppCommand {
    fn order(self) -> AppOrder {
        let choose = |place, list: AppList| AppOrder {
            file: list.file.file,
            action: AppAction::Choose(place, list.applications),
        };
        match self {
            Self::Allow(list) => choose(AppPlace::Allowed, list),
            Self::Deny(list) => choose(AppPlace::Disallowed, list),
            Self::Remove(list) => choose(AppPlace::Nowhere, list),
            Self::List(FileArgument { file }) => AppOrder {
                file,
                action: AppAction::List,
            },
        }
    }
}

fn networks(word: &str) -> Result<Networks, prefix::PrefixError> {
    let entries = word.split(',').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    entries
        .map(prefix::parse)
        .collect::<Result<_, _>>()
        .map(Networks)
}

/// A list in one word: what comes after a comma and a blank would be taken for
/// networks of the other list.
fn whole_list(word: &str) -> Result<Networks, String> {
    if word.trim_end().ends_with(',') {
        return Err("the list ends in a comma; put it in quotes, or leave the blanks out".into());
    }
    networks(word).map_err(|error| error.to_string())
}

fn joined(lists: Vec<Networks>) -> Vec<Prefix> {
    lists.into_iter().flat_map(|list| list.0).collect()
}
