//! The command lines of `taupe up`, `down`, `lock`, `reload` and `save`.

use super::{
    Action, ArgumentError, DeviceSettings, DownAll, Environment, ModeOption, Order, TunnelOrder, Up,
};
use crate::command_line::common::FileArgument;
use crate::device_log::Logging;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::time::Duration;
use taupe_adapter::Compatibility;

pub(super) const UP: &str = "\
Taupe brings the tunnel up in one of two modes, and prints first which one and why. In \
transparent mode, Taupe routes only the selected applications through the tunnel; addresses, \
routes, rules and DNS settings stay as they are. If the tunnel goes down, traffic of these \
applications is blocked. In adapter mode, Taupe creates an interface with addresses, routes and \
DNS, like wg-quick.\n\n\
If a file selects applications, the tunnel is in transparent mode. With --adapter, or on a kernel \
without the features that transparent mode needs (before Linux 5.19), Taupe marks the sockets of \
selected applications when they are created, and routes marked packets into the adapter. If an \
endpoint's name has no address yet, these applications are blocked, and Taupe looks the name up \
again until it has one.\n\n\
With --via, the tunnel's datagrams to its peers travel through a second tunnel that Taupe \
starts too. Of the second file Taupe uses the keys, Endpoint, AllowedIPs, Address, MTU, ListenPort, \
FwMark and DNS; all other keys have no effect. The second tunnel has no interface, address or \
route on this machine; `taupe show` prints its state. Every Endpoint of the first file has to be \
in AllowedIPs of the second. If an endpoint name of the first file is not in /etc/hosts, Taupe \
asks the servers of the second file's DNS through the second tunnel. If the second file has no \
DNS, Taupe asks the system's name servers through the second tunnel, except those with local \
addresses. The MTU is at least 80 bytes less than that of the second tunnel; Taupe prints it. \
`taupe down` and `taupe reload` of the first file work as usual. An edit of the second file takes \
effect after `down` and `up`.\n\n\
With --foreground, SIGTERM and SIGINT take the tunnel down, and the exit status is 0. SIGHUP has \
the effect of `taupe reload`. If another program deletes the interface, Taupe undoes the other \
changes and exits with 1. If a service manager sets NOTIFY_SOCKET (systemd's Type=notify), Taupe \
notifies it when the tunnel can be used. Without --foreground, the tunnel's processes run in the \
background.\n\n\
If neither systemd-resolved nor resolvconf manages /etc/resolv.conf, Taupe replaces this file \
according to DNS, and keeps the original in /etc/resolv.conf.before-taupe until the tunnel goes \
down. If the machine goes off before that, the next `up` or `down` restores it.";

/// Follows [`RETRIES`](crate::command_line::common::RETRIES).
pub(super) const RETRIES_EXCEPTION: &str = " No effect in
                                  transparent mode, or if the file selects
                                  applications.";

pub(super) const UP_STATUS: &str = "\
Exit status:
  0  The tunnel can be used. With --foreground: it could be, and is down again.
  1  Failed, or the tunnel is up already; standard error says what, why and what
     to do. All changes are undone. Traffic stays blocked if it was so before,
     after the process of a full tunnel was killed.
  2  Wrong usage; nothing was done.
  75 With --foreground: the device failed. If the tunnel was up, its changes
     stay; otherwise they are undone, except that selected applications stay
     blocked. Traffic of a full tunnel that was up, and of selected applications
     unless KillSwitch = off, stays blocked until `taupe down`, or `taupe up`
     succeeds.";

pub(super) const UP_EXAMPLES: &str = "\
Examples:
  sudo taupe up home
  sudo taupe up --wait home
  sudo taupe up --foreground ./home.conf
  sudo taupe up ./inner.conf --via ./outer.conf";

pub(super) const DOWN_STATUS: &str = "\
Exit status:
  0  The tunnel is down, and nothing of it is left. With --all: all are.
  1  The tunnel is not up, or a change could not be undone; standard error says
     what, why and what to do.
  2  Wrong usage; nothing was done.";

pub(super) const DOWN_EXAMPLES: &str = "\
Examples:
  sudo taupe down home
  sudo taupe down --keep-closed home
  sudo taupe down --all";

pub(super) const LOCK: &str = "\
The lock blocks traffic of the selected applications, as when a tunnel is down, before there is a \
tunnel. It makes no interface, looks up no name, reads no key file and leaves no process. \
`taupe up` takes the lock over without a gap; `taupe down` ends it. While the tunnel is up, this \
command has nothing to do: the tunnel's own kill switch blocks when the tunnel goes down.\n\n\
To block traffic from boot on, enable taupe-lock@NAME and taupe@NAME (see the examples). \
taupe-lock@NAME starts before the network, taupe@NAME after it. If taupe-lock@NAME fails, for \
example because of a mistake in the file, the network comes up and nothing is blocked. \
`systemctl --failed` then names the unit, and the console shows the reason.\n\n\
To keep the network down in this case, add the following lines to the unit that brings it up, \
such as NetworkManager.service, by `systemctl edit`. A remote machine is then out of reach.";

pub(super) const LOCK_UNIT: &str = "\
Lines for the unit:
  [Unit]
  Requires=taupe-lock@NAME.service
  After=taupe-lock@NAME.service";

pub(super) const LOCK_STATUS: &str = "\
Exit status:
  0  Traffic of the selected applications is blocked.
  1  Failed, and nothing was changed; standard error says what, why and what to
     do.
  2  Wrong usage; nothing was done.";

pub(super) const LOCK_EXAMPLES: &str = "\
Examples:
  sudo taupe lock home
  sudo systemctl enable taupe-lock@home taupe@home";

pub(super) const RELOAD: &str = "\
Taupe compares keys, port, mark, peers, addresses, routes, MTU and name servers with the file, and \
changes those that differ. Commands of the file are not run: only `up` and `down` run them. The \
options with which the tunnel was brought up (--override-routes, --no-firewall) stay in effect. \
In transparent mode, changes of Address and DNS are refused. Only a tunnel of `taupe up` can be \
reloaded.";

pub(super) const RELOAD_STATUS: &str = "\
Exit status:
  0  The tunnel matches its file.
  1  Failed, and all changes are undone; standard error says what, why and what
     to do.
  2  Wrong usage; nothing was done.";

pub(super) const RELOAD_EXAMPLES: &str = "\
Examples:
  sudo taupe reload home";

pub(super) const SAVE: &str = "\
Comments in the file are lost. If everybody could read the old file, only its owner can read the \
new one (mode 0600); otherwise the permissions stay. In transparent mode the interface does not \
have the settings of the file, so nothing is saved.";

pub(super) const SAVE_STATUS: &str = "\
Exit status:
  0  The file describes the tunnel's current state.
  1  Failed, and the file was not changed; standard error says why and what to
     do.
  2  Wrong usage; nothing was done.";

pub(super) const SAVE_EXAMPLES: &str = "\
Examples:
  sudo taupe save home";

#[derive(Args)]
pub(super) struct UpArguments {
    #[command(flatten)]
    pub(super) file: FileArgument,
    /// Create an interface with addresses, routes and DNS
    #[arg(long, conflicts_with = "transparent")]
    adapter: bool,
    /// Change no address, route or DNS setting
    ///
    /// Taupe tunnels the selected applications, or all if the file selects none.
    #[arg(long)]
    transparent: bool,
    /// Send the tunnel's datagrams through a second tunnel
    #[arg(long, value_name = "CONF", value_hint = ValueHint::FilePath)]
    via: Option<OsString>,
    /// Stay in the foreground until a signal arrives
    #[arg(short, long)]
    foreground: bool,
    /// Take precedence over existing routes and the LAN
    #[arg(long)]
    override_routes: bool,
    /// Do not change the packet filter
    #[arg(long)]
    no_firewall: bool,
    /// Close open TCP connections of selected applications
    #[arg(long, conflicts_with = "adapter")]
    reset_existing: bool,
    /// Keep blocking selected applications after a signal
    #[arg(long, requires = "foreground")]
    keep_closed: bool,
    /// Wait until peers answer (15 s without a value)
    ///
    /// Waits for each peer with an Endpoint. If one does not answer in time, `up` fails and prints the
    /// reason. The tunnel stays up.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "15", value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "foreground")]
    wait: Option<u16>,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

impl UpArguments {
    pub(super) fn action(&self, environment: Environment<'_>) -> Result<Action, ArgumentError> {
        Ok(Action::Up(Up {
            mode: match (self.adapter, self.transparent) {
                (true, _) => Some(ModeOption::Adapter),
                (false, true) => Some(ModeOption::Transparent),
                (false, false) => None,
            },
            via: self.via.clone(),
            foreground: self.foreground,
            override_routes: self.override_routes,
            no_firewall: self.no_firewall,
            reset_existing: self.reset_existing,
            keep_closed: self.keep_closed,
            wait: self.wait.map(|seconds| Duration::from_secs(seconds.into())),
            device: DeviceSettings::read(environment)?,
        }))
    }
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("tunnels").args(["file", "all"]).required(true))]
pub(super) struct DownArguments {
    #[command(flatten)]
    file: Option<FileArgument>,
    /// Take down all tunnels, and end this namespace's locks
    ///
    /// Does not take down tunnels of other network namespaces: if there are any, the exit status is 1.
    /// Does not remove the locks of other network namespaces.
    #[arg(long)]
    all: bool,
    /// Do not write the file, despite `SaveConfig = true`
    #[arg(long)]
    no_save: bool,
    /// Keep blocking selected applications
    ///
    /// The next `up`, or a `down` without this option, ends this.
    #[arg(long)]
    keep_closed: bool,
    #[command(flatten)]
    output: OutputOptions,
}

impl DownArguments {
    pub(super) fn order(self, environment: Environment<'_>) -> Order {
        let Self {
            no_save,
            keep_closed,
            ..
        } = self;
        let verbose = self.output.is_verbose(environment);
        match self.file {
            Some(FileArgument { file }) => Order::Tunnel(TunnelOrder {
                compatibility: Compatibility::Taupe,
                action: Action::Down {
                    no_save,
                    keep_closed,
                },
                file,
                verbose,
            }),
            None => Order::DownAll(DownAll {
                no_save,
                keep_closed,
                verbose,
            }),
        }
    }
}

#[derive(Args)]
pub(super) struct ReloadArguments {
    #[command(flatten)]
    pub(super) file: FileArgument,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

/// Options about the amount of output.
#[derive(Args)]
pub(super) struct OutputOptions {
    /// Print every step, even for many routes
    ///
    /// LOG_LEVEL=verbose has the same effect.
    #[arg(short, long)]
    verbose: bool,
}

impl OutputOptions {
    pub(super) const DEFAULT: Self = Self { verbose: false };

    pub(super) fn is_verbose(&self, environment: Environment<'_>) -> bool {
        let level = environment("LOG_LEVEL");
        let level = level.as_deref().map(|word| word.to_string_lossy());
        self.verbose || Logging::from_log_level(level.as_deref()).is_verbose()
    }
}
