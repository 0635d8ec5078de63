//! `wg` and its subcommands.
//!
//! Called as `wg`, the program prints the same bytes as `wg` of wireguard-tools. `taupe show` and
//! the other commands do the same with messages of Taupe's own.

mod conf;
mod console;
mod keys;
mod set;
mod show;
mod value;

use crate::system;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::ExitCode;

/// Version of wireguard-tools whose behaviour is reproduced.
const VERSION: &str = "1.0.20260223";

/// Selects the wording of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compatibility {
    /// Messages of Taupe, as in `taupe show`.
    Taupe,
    /// Messages of `wg` in wireguard-tools, byte for byte.
    Wg,
}

/// Invocation of a subcommand.
struct Call<'a> {
    compatibility: Compatibility,
    /// Name by which the program was called.
    program: &'a OsStr,
    command: Command,
    /// Arguments of the subcommand.
    rest: &'a [OsString],
}

/// A command has failed and has printed the reason.
struct Failed;

type Outcome = Result<(), Failed>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Command {
    Show,
    Showconf,
    Set,
    Setconf,
    Addconf,
    Syncconf,
    Genkey,
    Genpsk,
    Pubkey,
}

impl Command {
    const ALL: [Self; 9] = [
        Self::Show,
        Self::Showconf,
        Self::Set,
        Self::Setconf,
        Self::Addconf,
        Self::Syncconf,
        Self::Genkey,
        Self::Genpsk,
        Self::Pubkey,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Show => "show",
            Self::Showconf => "showconf",
            Self::Set => "set",
            Self::Setconf => "setconf",
            Self::Addconf => "addconf",
            Self::Syncconf => "syncconf",
            Self::Genkey => "genkey",
            Self::Genpsk => "genpsk",
            Self::Pubkey => "pubkey",
        }
    }

    const fn about(self) -> &'static str {
        match self {
            Self::Show => "Prints the state of interfaces, or one field of it",
            Self::Showconf => "Prints the configuration of an interface for `setconf'",
            Self::Set => "Changes the configuration of an interface",
            Self::Setconf => "Replaces the configuration of an interface with a file",
            Self::Addconf => "Adds a file to the configuration of an interface",
            Self::Syncconf => "Applies a file like `setconf', but keeps sessions",
            Self::Genkey => "Prints a new private key",
            Self::Genpsk => "Prints a new preshared key",
            Self::Pubkey => "Prints the public key of the private key on stdin",
        }
    }

    /// Returns the syntax of the subcommand's arguments.
    const fn grammar(self, compatibility: Compatibility) -> &'static str {
        match (self, compatibility) {
            (Self::Set, Compatibility::Taupe) => {
                " <interface> [listen-port <port>] [fwmark <mark>] [private-key <file path>] \
                 [pq-private-key <file path>] [peer <base64 public key> [remove] [preshared-key \
                 <file path>] [pq-public-key {<file path>|-}] [post-quantum \
                 {require|prefer|off|default}] [endpoint <host>:<port>] [persistent-keepalive \
                 <interval seconds>] [allowed-ips [+|-]<ip1>/<cidr1>[,[+|-]<ip2>/<cidr2>]...] ]..."
            }
            (Self::Genkey, Compatibility::Taupe) => " [--pq]",
            (Self::Pubkey, Compatibility::Taupe) => " [--pq [--suite {hybrid-768|hybrid-512}]]",
            (command, _) => command.grammar_of_wg(),
        }
    }

    const fn grammar_of_wg(self) -> &'static str {
        match self {
            Self::Show => {
                " { <interface> | all | interfaces } [public-key | private-key | listen-port | \
                 fwmark | peers | preshared-keys | endpoints | allowed-ips | latest-handshakes | \
                 transfer | persistent-keepalive | dump]"
            }
            Self::Showconf => " <interface>",
            Self::Set => {
                " <interface> [listen-port <port>] [fwmark <mark>] [private-key <file path>] \
                 [peer <base64 public key> [remove] [preshared-key <file path>] [endpoint \
                 <ip>:<port>] [persistent-keepalive <interval seconds>] [allowed-ips \
                 [+|-]<ip1>/<cidr1>[,[+|-]<ip2>/<cidr2>]...] ]..."
            }
            Self::Setconf | Self::Addconf | Self::Syncconf => {
                " <interface> <configuration filename>"
            }
            Self::Genkey | Self::Genpsk | Self::Pubkey => "",
        }
    }

    fn run(self, call: &Call<'_>) -> Outcome {
        match self {
            Self::Show => show::show(call),
            Self::Showconf => show::showconf(call),
            Self::Set => set::set(call),
            Self::Setconf | Self::Addconf | Self::Syncconf => conf::apply(call),
            Self::Genkey => keys::genkey(call),
            Self::Genpsk => keys::genpsk(call),
            Self::Pubkey => keys::pubkey(call),
        }
    }
}

/// Runs a subcommand of `wg`.
///
/// `arguments` begins with the name by which the program was called (`wg` or `taupe`), which
/// messages repeat. The subcommand and its unparsed arguments follow.
#[must_use]
pub(crate) fn main(compatibility: Compatibility, arguments: &[OsString]) -> ExitCode {
    let (program, rest) = match arguments.split_first() {
        Some((program, rest)) => (program.as_os_str(), rest),
        None => (OsStr::new("wg"), &[][..]),
    };
    let word = rest.first().map(OsString::as_os_str);
    if rest.len() == 1 {
        match word.and_then(OsStr::to_str) {
            Some("-v" | "--version" | "version") => return exit(version()),
            Some("-h" | "--help" | "help") => return exit(console::print(usage(program))),
            _ => {}
        }
    }
    let command = match word {
        None => Some(Command::Show),
        Some(word) => Command::ALL
            .into_iter()
            .find(|command| word == command.name()),
    };
    let Some(command) = command else {
        let word = word.unwrap_or_default().as_encoded_bytes();
        let message = [b"Invalid subcommand: `", word, b"'\n", &usage(program)].concat();
        console::complain(&message);
        return ExitCode::FAILURE;
    };
    exit(command.run(&Call {
        compatibility,
        program,
        command,
        rest: rest.get(1..).unwrap_or_default(),
    }))
}

fn exit(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed) => ExitCode::FAILURE,
    }
}

impl Call<'_> {
    /// Fails and prints the usage of the subcommand.
    fn misused(&self) -> Failed {
        self.print_usage();
        Failed
    }

    fn print_usage(&self) {
        let command = [
            self.command.name(),
            self.command.grammar(self.compatibility),
            "\n",
        ]
        .concat();
        let program = self.program.as_encoded_bytes();
        console::complain(&[b"Usage: ", program, b" ", command.as_bytes()].concat());
    }

    /// Fails with the message of the program to behave like.
    fn failed(&self, wg: &[u8], taupe: impl FnOnce() -> String) -> Failed {
        match self.compatibility {
            Compatibility::Wg => console::complain(&[wg, b"\n"].concat()),
            Compatibility::Taupe => console::complain(format!("taupe: {}\n", taupe()).as_bytes()),
        }
        Failed
    }

    /// Fails because a device refused a request. `trying` describes the request in the words of
    /// `wg`.
    fn refused(&self, trying: &str, interface: &str, error: &taupe_client::Error) -> Failed {
        use taupe_client::Error::{Io, NoDevice, NoKernelSupport, NoPostQuantum};
        let wg = format!("{trying}: {}", taupe_client::errno_text(error.errno()));
        self.failed(wg.as_bytes(), || {
            // The kernel returns EOPNOTSUPP for interfaces that are not WireGuard's.
            let unseen = matches!(error, NoDevice | NoKernelSupport) || error.errno() == EOPNOTSUPP;
            let is_denied = match error {
                Io(error) => error.kind() == io::ErrorKind::PermissionDenied,
                _ => matches!(error.errno(), EPERM | EACCES),
            };
            if is_denied {
                format!("{interface}: {error}; {}", system::DENIED)
            } else if matches!(error, NoPostQuantum) {
                format!(
                    "{interface}: {error}; bring the tunnel up with `taupe up`, or remove the \
                     post-quantum keys"
                )
            } else if unseen && !system::sees_all_devices() {
                format!("{interface}: only root sees WireGuard devices; run it with sudo")
            } else if unseen && taupe_client::zone::index(interface).is_some() {
                format!("{interface} exists but is not a WireGuard interface")
            } else {
                format!("{interface}: {error}")
            }
        })
    }
}

/// Linux's error numbers, which devices use on other systems too.
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EOPNOTSUPP: i32 = 95;

fn version() -> Outcome {
    let text = format!(
        "wireguard-tools v{VERSION} - https://git.zx2c4.com/wireguard-tools/\n\
         by Taupe {}, compatible with that version\n",
        env!("CARGO_PKG_VERSION")
    );
    console::print(text.into_bytes())
}

fn usage(program: &OsStr) -> Vec<u8> {
    let commands =
        Command::ALL.map(|command| format!("  {}: {}\n", command.name(), command.about()));
    [
        b"Usage: ",
        program.as_encoded_bytes(),
        b" <cmd> [<args>]\n\nAvailable subcommands:\n",
        commands.concat().as_bytes(),
        b"Each of them prints its syntax with `--help'.\n",
    ]
    .concat()
}
