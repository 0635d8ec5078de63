//! What `taupe help exec` says.

pub(super) const ABOUT: &str = "\
It takes no root: the command runs as the same user, in a user, a network and a mount
namespace of its own, without any capability. There is nothing but loopback and the
tunnel; what AllowedIPs does not contain is unreachable at once. The command begins when
the tunnel can take packets, which wait for the first handshake. Names are asked of the
file's DNS. systemd-resolved, nscd, the system bus and Avahi are hidden, as they would ask
elsewhere, and /run has what it had at the start; other Unix sockets with a path are not
(X11, Wayland, ssh-agent, Docker): who listens there has this machine's network. So has
whatever the command has others start for it (cron, `systemd-run`, a shell at the same
terminal). Open sockets are not passed on to it, but Unix ones and standard input, output
and error. Files are not protected from the command, though /etc is read-only to it unless
something is mounted there, as in containers. `sudo` does not work.
The command has this terminal. Where the kernel lets programs type into theirs (TIOCSTI:
before Linux 6.2, or with sysctl dev.tty.legacy_tiocsti=1), one that is not to be trusted
can so have the shell that it was started from do things, with this machine's network, when
it has ended. `sysctl -w dev.tty.legacy_tiocsti=0` ends that for all programs, and
`script -qc 'taupe exec ...' /dev/null` gives the command a terminal of its own.

The tunnel ends with the last of its commands. If this process is killed, they go on
without a network. Signals but SIGTSTP and SIGCONT are passed on to the command.
PreUp and its like are not run, and applications that the file chooses mean nothing.

Examples:
  taupe exec ./home.conf -- curl https://example.org
  taupe exec ./home.conf -- bash
  taupe exec --join home -- firefox";

pub(super) const STATUS: &str = "\
Exit status:
  125    Nothing was started; standard error says what, why and what to do.
  126    The command cannot be executed.
  127    There is no such command.
  other  That of the command; 128 and a signal's number if that has ended it.";
