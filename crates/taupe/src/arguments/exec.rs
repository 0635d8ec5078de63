//! The command line of `taupe exec`.

use super::{ArgumentError, DeviceSettings, Environment, ExecOrder, SandboxOrder};
use clap::{Args, ValueHint};
use std::ffi::OsString;

pub(super) const EXEC: &str = "\
The command runs as the same user, in a user, a network and a mount namespace of its own, without \
any capability; root is not needed. Its network consists of loopback and the tunnel. A destination \
outside AllowedIPs is unreachable at once. The command starts when the tunnel accepts packets; the \
packets wait for the first handshake.\n\n\
Names are looked up at the servers of the file's DNS. systemd-resolved, nscd, the system bus and \
Avahi would use this machine's network, so they are hidden. /run shows its content from the start \
of the command. Other Unix sockets with a path stay reachable (X11, Wayland, ssh-agent, Docker): the \
program that listens there has this machine's network. So has every program that the command has \
others start for it (cron, `systemd-run`, a shell at the same terminal). The command inherits \
standard input, output and error, and open Unix sockets, but no other open sockets.\n\n\
Files are not protected from the command, except that /etc is read-only to it unless something is \
mounted there, as in containers. `sudo` does not work.\n\n\
The command has this terminal. If the kernel lets programs insert input into their terminal \
(TIOCSTI: before Linux 6.2, or with sysctl dev.tty.legacy_tiocsti=1), a hostile command can have the \
shell run commands with this machine's network after it has ended. \
`sysctl -w dev.tty.legacy_tiocsti=0` prevents this for all programs, and \
`script -qc 'taupe exec ...' /dev/null` gives the command a terminal of its own.\n\n\
The tunnel ends with the last of its commands. If this process is killed, the commands continue \
without a network. All signals except SIGTSTP and SIGCONT are passed on to the command. The file's \
commands (PreUp and the like) are not run, and keys about applications have no effect.";

pub(super) const EXEC_STATUS: &str = "\
Exit status:
  125    Nothing was started; standard error says what, why and what to do.
  126    The command cannot be executed.
  127    There is no such command.
  other  That of the command; 128 plus the signal's number if a signal ended it.";

pub(super) const EXEC_EXAMPLES: &str = "\
Examples:
  taupe exec ./home.conf -- curl https://example.org
  taupe exec ./home.conf -- bash
  taupe exec --join home -- firefox";

#[derive(Args)]
#[command(override_usage = "\
    taupe exec [--no-session-bus] CONF -- COMMAND...\n       \
    taupe exec --join NAME -- COMMAND...")]
pub(super) struct ExecArguments {
    /// File NAME.conf, or NAME of a file in /etc/wireguard
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "join")]
    file: Option<OsString>,
    /// Use the tunnel of a running `taupe exec`
    ///
    /// NAME is the name of its file.
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    join: Option<OsString>,
    /// Hide the session bus and the user's systemd
    ///
    /// Both can start programs outside the tunnel.
    #[arg(long, conflicts_with = "join")]
    no_session_bus: bool,
    /// Program to run, with its arguments
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

impl ExecArguments {
    pub(super) fn order(self, environment: Environment<'_>) -> Result<ExecOrder, ArgumentError> {
        Ok(ExecOrder {
            sandbox: match self.join {
                Some(name) => SandboxOrder::Join { name },
                None => SandboxOrder::New {
                    // One of the two is required.
                    file: self.file.unwrap_or_default(),
                    hide_session: self.no_session_bus,
                },
            },
            command: self.command,
            device: DeviceSettings::read(environment)?,
        })
    }
}
