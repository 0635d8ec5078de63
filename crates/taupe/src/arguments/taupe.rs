//! The command line of `taupe`.

use super::common::{
    ALLOWED_IPS_STATUS, AllowedIps, CHECK_STATUS, EXAMPLES, EXIT_STATUS, FILES, FileArgument,
    RETRIES, STRIP_STATUS, Wg, joined,
};
use super::device::Device;
use super::exec;
use super::proxy::{self, Proxy};
use super::{
    Action, AppAction, AppOrder, AppPlace, DeviceSettings, DoctorOrder, Environment, Error,
    ExecOrder, ExplainOrder, FlowsOrder, ModeOption, Order, ReportOrder, SandboxOrder, StatusOrder,
    TunnelOrder, Up,
};
use crate::logging::Logging;
use crate::wg;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use taupe_config::application::Application;
use taupe_config::file::Personality;
use taupe_inspect::destination::Destination;

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

const LOCK_STATUS: &str = "\
Exit status:
  0  What the chosen applications send is held back.
  1  Failed, and nothing was changed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done.";

const LOCKED: &str = "\
The lock blocks traffic of the selected applications, as when a tunnel is down, before there is a
tunnel. It makes no interface, looks up no name, reads no key file and leaves no process.
`taupe up` takes the lock over without a gap; `taupe down` ends it. While the tunnel is up this
command has nothing to do: the tunnel's own kill switch blocks when the tunnel goes down.

For the time between the start of the machine and `taupe@NAME`, which the network has to be
up for:
  systemctl enable taupe-lock@NAME taupe@NAME
If taupe-lock@NAME fails, as for a mistake in the file, the network comes up with nothing
held back: `systemctl --failed` names it, and the console says why. `systemctl edit` of
what makes the network (such as NetworkManager.service) with these lines keeps the network
down then, and a machine that is far away out of reach:
  [Unit]
  Requires=taupe-lock@NAME.service
  After=taupe-lock@NAME.service";

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

const VIA: &str = "\
With --via, the tunnel's datagrams to its peers go through a second tunnel, in the same process.
Of the second file Taupe uses the keys, Endpoint, AllowedIPs, Address, MTU, ListenPort, FwMark
and DNS. If an endpoint name of the first file is not in /etc/hosts, Taupe asks the servers of
that DNS through the second tunnel. If the second file has no DNS, Taupe asks the system's name
servers through the second tunnel, except those with local addresses. All other keys of the
second file have no effect. The second tunnel has no interface, address or route on this
machine; `taupe show` prints its state. Every Endpoint of the first file has to be in
AllowedIPs of the second. The MTU is at least 80 bytes less than that of the second, which
is printed. `taupe down` and `taupe reload` of the first file are as ever; an edit of the
second one holds after `down` and `up`.";

const EXPLAIN_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The file cannot be used, or there is no such application or process.
  2  Wrong usage.";

const EXPLAINED: &str = "\
Every step is printed in the order in which it is taken; the one that decides has an
arrow, and what comes behind it would have been asked otherwise. Tunnels decide by
addresses, so a host's name is not taken. Without --conf that is done for each tunnel that chooses applications and has not
been taken down. Nothing is changed, and with --conf it takes only the right to read the
file; root is told too what is otherwise while the tunnel is up in adapter mode.

Examples:
  sudo taupe explain curl 198.51.100.1:443
  sudo taupe explain 4711
  taupe explain --conf ./home.conf firefox-esr 198.51.100.1:53
  taupe explain --conf home --forwarded 198.51.100.1";

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
Exit status, of several tunnels that of the worst:
  0  It is up.
  1  It is down, or there is none.
  2  It is degraded: it is there, and something of it does not work.
  3  Nobody can say: wrong usage, no such tunnel, or no right to look.";

const STATUS_JSON: &str = "\
A tunnel is degraded if one of these holds:
  - Its process has ended without `taupe down`; its traffic is blocked.
  - A peer with an Endpoint in the file does not answer. (A peer without one starts handshakes
    itself, and is silent after it has left; that is no fault.)
  - Its name servers do not answer, or name queries bypass it.
  - The name of an endpoint has no address, or no route leads to an endpoint.
  - Another device has the same PrivateKey and peer.
  - An uplink is not guarded.
  - A peer needs a PqPrivateKey of this side, and there is none.
  - Another program has changed a network setting of the tunnel.
  - An application has all the flows that it may have.
  - The state of its selected applications in the kernel cannot be read.

With --json: an object with `schema` (1; members are added without notice), `state` (up,
degraded, down, or null without tunnels) and `tunnels`, a list of objects with
  interface, state, mode (transparent, marks, adapter; null where it cannot be seen), file,
  since (Unix time)
  findings      why it is not up: objects with code and text. Codes: process-ended,
                process-silent, changing, down, no-handshake, handshake-old,
                peer-silent, udp-swallowed, no-route, no-carrier, next-hop-silent, key-shared,
                endpoint-unresolved, uplink-unguarded, unknown-layout, out-of-reach,
                names-past-tunnel, no-pq-private-key, flows-refused (an application has all
                the flows that it may have), name-servers-silent (while chosen applications
                ask, and none of a family answers); for a setting that another program has
                changed since `up`, link-changed, mtu-changed, addresses-changed, dns-changed,
                routes-changed, rules-changed, firewall-changed, mark-changed, sysctl-changed,
                or settings-unknown; bypass-route (a route that was added since leads around
                the tunnel)
  notes         sentences
  gaps          promises of transparent mode that this kernel, or the place where Taupe was
                started, does not let it keep: objects with code and text. Codes: handover,
                families, forwarding, services, queues, outsiders
  kill_switch   app, all or off; null where no applications are chosen, or what they have
                in the kernel cannot be seen
  rules         of its file: line, key, application
  forwarded     what this machine forwards uses it too
  uplinks       name, guarded
  counters      name, count, text: what was sent, delivered, refused and dropped
  peers         public_key, endpoint, latest_handshake (Unix time),
                unanswered_handshakes, received_bytes, sent_bytes, post_quantum (null where
                nothing is said of it: wanted, latched, session, suite, text)
No private or preshared key is in it.";

const FLOWS: &str = "\
A line for each TCP connection and each UDP socket that has another end, and for the
others of UDP that are in a tunnel; not for what stays on this machine. The verdict is
`tunnel`, `direct` (past every tunnel), or `refused` (held back). Bytes are payload; of
UDP past the tunnel nobody counts them. The other end is whom the application asked, also
where that is a resolver on this machine and one of the tunnel's name servers answers. What
this machine forwards has no socket, and is not listed.

With --json an object with `schema` (1), `truncated` and `flows`, a list of objects with
  protocol (tcp, udp), local, remote (null: none yet), tunnel (null: none), verdict,
  pid, application (both null for a socket that no process has any more), uid,
  sent_bytes, received_bytes (null: not counted), why (the rule that decided).
With --follow a line for what has begun (+), ended (-) or another verdict (=), until a
signal or until nobody reads them; with --json the same object in a line, with `event`:
begun, changed or ended. It looks once a second: a connection that begins and ends in
between is not seen. A look that fails, as when the tunnel is down, is said once, and the
next one is made.
No more than 65536 are listed.";

const FLOWS_STATUS: &str = "\
Exit status:
  0  Printed.
  1  They cannot be listed, or there is no such tunnel.
  2  Wrong usage.";

const DOCTOR: &str = "\
The kernel is asked by trial: programs are loaded and let go again, and nothing is left
behind. With --json: an object with `schema` (1), `fails` and `checks`, a list of objects
with name, result (ok, warn, fail, or unknown where it takes root to look), text and fix
(null where there is nothing to do).";

const DOCTOR_STATUS: &str = "\
Exit status:
  0  Nothing fails; there may be warnings, and what an ordinary user cannot see.
  1  Something does, or cannot be looked at.
  2  Wrong usage.";

const REPORT: &str = "\
One text in Markdown: versions, `doctor`, `status`, connections, links, routes and rules,
the tunnels' files and the end of the log. Keys, the commands of files and whatever looks
like a key are replaced; read it before you give it to anybody, since addresses, names of
programs and of networks are in it. --hide-endpoints takes endpoints out too.";

const REPORT_STATUS: &str = "\
Exit status:
  0  Written.
  1  Failed; standard error says why.
  2  Wrong usage.";

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
        "{MODES}\n\n{VIA}\n\n{FOREGROUND}\n\n{NAME_SERVERS}\n\n{RETRIES}{DEVICE}\n\n\
         {UP_STATUS}\n\n{FILES}"
    ))]
    Up(UpArguments),
    /// Take a tunnel down, and undo all that `up` did
    ///
    /// This works too when the tunnel's process is dead, however it ended.
    #[command(after_help = format!("{DOWN_STATUS}\n\n{FILES}"))]
    Down(DownArguments),
    /// Hold back the applications that a file chooses, until its tunnel is up
    #[command(after_help = format!("{LOCKED}\n\n{LOCK_STATUS}\n\n{FILES}"))]
    Lock(FileArgument),
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
    /// Run a command whose only network is a tunnel, without root
    #[command(after_help = format!(
        "{}\n\n{RETRIES}{DEVICE}\n\n{}\n\n{FILES}", exec::ABOUT, exec::STATUS
    ))]
    Exec(ExecArguments),
    /// Say what becomes of an application's packets, step by step, and why
    #[command(after_help = format!("{EXPLAINED}\n\n{EXPLAIN_STATUS}\n\n{FILES}"))]
    Explain(ExplainArguments),
    /// Choose applications, in a file and for its tunnel at once
    #[command(after_help = format!("{APPS}\n\n{APP_STATUS}\n\n{FILES}"))]
    App(AppArguments),
    /// Say how tunnels are: up, degraded or down, why, and what they have dropped
    #[command(after_help = format!("{STATUS_JSON}\n\n{STATUS_STATUS}"))]
    Status(StatusArguments),
    /// List connections: whose each is, whether it is in a tunnel, and why
    #[command(after_help = format!("{FLOWS}\n\n{FLOWS_STATUS}"))]
    Flows(FlowsArguments),
    /// Look for what would keep tunnels from working on this system, each with its fix
    #[command(after_help = format!("{DOCTOR}\n\n{DOCTOR_STATUS}"))]
    Doctor(DoctorArguments),
    /// Put together what a report of a bug should have, without any secret
    #[command(after_help = format!("{REPORT}\n\n{REPORT_STATUS}"))]
    Report(ReportArguments),
    /// Serve a file's tunnel to programs that use proxies, without root
    #[command(after_help = format!(
        "{}\n\n{RETRIES}\n\n{}\n\n{FILES}", proxy::ABOUT, proxy::STATUS
    ))]
    Proxy(Proxy),
    /// Print the shortest list of networks that leaves some out
    #[command(after_help = format!("{EXAMPLES}\n\n{ALLOWED_IPS_STATUS}"))]
    AllowedIps(AllowedIps),
    #[command(flatten)]
    Wg(Wg),
    /// Run a WireGuard interface, to be configured with `wg`
    Device(Device),
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
    /// Go through the tunnel of another file, which is seen nowhere else
    #[arg(long, value_name = "CONF", value_hint = ValueHint::FilePath)]
    via: Option<OsString>,
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
#[command(override_usage = "\
    taupe exec [--no-session-bus] CONF -- COMMAND...\n       \
    taupe exec --join NAME -- COMMAND...")]
struct ExecArguments {
    /// A file NAME.conf, or the NAME of one in /etc/wireguard
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "join")]
    file: Option<OsString>,
    /// Use the tunnel of an `exec` that is running, which is named after its file
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    join: Option<OsString>,
    /// Hide the session bus and the user's systemd too, which can start programs outside
    #[arg(long, conflicts_with = "join")]
    no_session_bus: bool,
    /// The program to run, and its arguments
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

#[derive(Args)]
struct ExplainArguments {
    /// An executable, by its path or its name in PATH, or the number of a process
    #[arg(value_name = "APP|PID", value_hint = ValueHint::ExecutablePath)]
    #[arg(required_unless_present = "forwarded", conflicts_with = "forwarded")]
    app: Option<OsString>,
    /// Where it sends to: an address, with or without a port
    #[arg(value_name = "DEST")]
    to: Option<Destination>,
    /// Explain what this machine forwards for others instead, perhaps to there
    #[arg(long, value_name = "DEST", num_args = 0..=1)]
    forwarded: Option<Option<Destination>>,
    /// By this file, whether its tunnel is up or not; without, by those of all that are
    #[arg(long, value_name = "CONF", value_hint = ValueHint::FilePath)]
    conf: Option<OsString>,
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
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// For programs
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct TunnelArgument {
    /// A file NAME.conf, or the NAME of a tunnel; all of them without it
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    file: Option<OsString>,
}

#[derive(Args)]
struct FlowsArguments {
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// For programs
    #[arg(long)]
    json: bool,
    /// Go on, with what begins, ends or changes
    #[arg(short, long)]
    follow: bool,
}

#[derive(Args)]
struct DoctorArguments {
    /// A file NAME.conf, or the NAME of one in /etc/wireguard, to look at too
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    file: Option<OsString>,
    /// For programs
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ReportArguments {
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// Where to write it, in place of standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Leave out where the tunnels' peers are
    #[arg(long)]
    hide_endpoints: bool,
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
                    via: up.via,
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
            Command::Lock(file) => tunnel(Action::Lock, file, Detail::PLAIN),
            Command::Save(file) => tunnel(Action::Save, file, Detail::PLAIN),
            Command::Strip(file) => tunnel(Action::Strip, file, Detail::PLAIN),
            Command::Check(FileArgument { file }) => Order::Check { file },
            Command::Exec(exec) => Order::Exec(ExecOrder {
                sandbox: match exec.join {
                    Some(name) => SandboxOrder::Join { name },
                    None => SandboxOrder::New {
                        // One of the two is required.
                        file: exec.file.unwrap_or_default(),
                        hide_session: exec.no_session_bus,
                    },
                },
                command: exec.command,
                device: DeviceSettings::read(environment)?,
            }),
            Command::Explain(explain) => Order::Explain(ExplainOrder {
                file: explain.conf,
                application: explain.app,
                destination: explain.to.or(explain.forwarded.flatten()),
            }),
            Command::App(app) => Order::App(app.command.order()),
            Command::Status(StatusArguments { tunnel, json }) => Order::Status(StatusOrder {
                file: tunnel.file,
                json,
            }),
            Command::Flows(flows) => Order::Flows(FlowsOrder {
                file: flows.tunnel.file,
                json: flows.json,
                follow: flows.follow,
            }),
            Command::Doctor(DoctorArguments { file, json }) => {
                Order::Doctor(DoctorOrder { file, json })
            }
            Command::Report(report) => Order::Report(ReportOrder {
                file: report.tunnel.file,
                output: report.output,
                hide_endpoints: report.hide_endpoints,
            }),
            Command::Proxy(proxy) => Order::Proxy(proxy.order(environment)),
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
