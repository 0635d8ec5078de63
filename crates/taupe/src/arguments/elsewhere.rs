//! The command line on other systems than Linux.

use super::common::{
    ALLOWED_IPS_EXAMPLES, ALLOWED_IPS_STATUS, AllowedIps, CHECK_EXAMPLES, CHECK_STATUS,
    EXIT_STATUS, FILES, FileArgument, RETRIES, STRIP_EXAMPLES, STRIP_STATUS, Wg, joined,
};
use super::groups::grouped;
use super::proxy::{self, Proxy, ProxyOrder};
use super::{Environment, Error, read};
use crate::wg;
#[cfg(windows)]
use crate::windows::arguments::{self as windows, RunOrder, ServiceOrder};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};
use ipnet::IpNet;
use std::ffi::OsString;
use std::path::Path;

/// A command with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Say all that is wrong with a file.
    Check {
        /// A path, or a name in the folder of files.
        file: OsString,
    },
    /// Print a file as devices take it.
    Strip {
        /// A path, or a name in the folder of files.
        file: OsString,
    },
    /// Run a proxy to a file's tunnel.
    Proxy(ProxyOrder),
    /// Run a file's tunnel.
    #[cfg(windows)]
    Run(RunOrder),
    /// Something with the service of a file's tunnel.
    #[cfg(windows)]
    Service(ServiceOrder),
    /// Print the minimal list of networks without some others.
    AllowedIps {
        networks: Vec<IpNet>,
        except: Vec<IpNet>,
    },
    /// A sub-command of `wg`, whose arguments it reads itself.
    Wg {
        personality: wg::Compatibility,
        arguments: Vec<OsString>,
    },
}

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version, about = super::ABOUT)]
#[command(after_long_help = format!("{EXIT_STATUS}\n\n{FILES}\n\n{CHECK_EXAMPLES}"))]
struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print a file in the format of `wg setconf`
    #[command(after_long_help = format!("{STRIP_STATUS}\n\n{FILES}\n\n{STRIP_EXAMPLES}"))]
    Strip(FileArgument),
    /// Check a file and print every mistake with its fix
    ///
    /// Nothing is changed, and no name is looked up.
    #[command(after_long_help = format!("{CHECK_STATUS}\n\n{FILES}\n\n{CHECK_EXAMPLES}"))]
    Check(FileArgument),
    /// Serve a tunnel as a SOCKS and HTTP proxy
    #[command(after_long_help = format!(
        "{}\n\n{RETRIES}\n\n{}\n\n{FILES}\n\n{}",
        proxy::PROXY, proxy::PROXY_STATUS, proxy::PROXY_EXAMPLES
    ))]
    Proxy(Proxy),
    /// Run the tunnel of a file in this process
    #[cfg(windows)]
    #[command(after_long_help = format!(
        "{}\n\n{RETRIES}\n\n{}\n\n{FILES}\n\n{}",
        windows::RUN, windows::RUN_STATUS, windows::RUN_EXAMPLES
    ))]
    Run(windows::Run),
    /// Manage the service that starts a tunnel with the machine
    #[cfg(windows)]
    #[command(after_long_help = format!(
        "{}\n\n{}\n\n{}",
        windows::SERVICE, windows::SERVICE_STATUS, windows::SERVICE_EXAMPLES
    ))]
    Service(windows::Service),
    /// Compute a list of networks without some others
    #[command(after_long_help = format!("{ALLOWED_IPS_STATUS}\n\n{ALLOWED_IPS_EXAMPLES}"))]
    AllowedIps(AllowedIps),
    #[command(flatten)]
    Wg(Wg),
}

/// Commands that exist only on Linux.
const OF_LINUX: [&str; 13] = [
    "app", "device", "doctor", "down", "exec", "explain", "flows", "lock", "reload", "report",
    "save", "status", "up",
];

/// Reads a command line, whose first argument is the program's name.
///
/// # Errors
///
/// See [`Error`]. `--help` and `--version` are errors in this sense, except those of `wg`.
pub(crate) fn parse(arguments: &[OsString], environment: Environment<'_>) -> Result<Order, Error> {
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    if path.file_stem().is_some_and(|name| name == "wg") {
        return Ok(Order::Wg {
            personality: wg::Compatibility::Wg,
            arguments: arguments.to_vec(),
        });
    }
    #[cfg(windows)]
    let arguments = &*windows::with_two_dashes(arguments);
    let taupe = read::<Taupe>(definition(), arguments, "taupe").map_err(of_linux)?;
    Ok(taupe.order(arguments, environment))
}

/// The definition of `taupe`'s command line, from which manual pages and shell completions are
/// made.
pub(crate) fn definition() -> clap::Command {
    grouped(Taupe::command())
}

/// Tells a word that is a command on Linux from one that is none.
fn of_linux(error: clap::Error) -> Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(command) = OF_LINUX.into_iter().find(|command| command == word)
    {
        return Error::OfLinux { command };
    }
    Error::CommandLine(error)
}

impl Taupe {
    fn order(self, arguments: &[OsString], environment: Environment<'_>) -> Order {
        match self.command {
            Command::Strip(FileArgument { file }) => Order::Strip { file },
            Command::Check(FileArgument { file }) => Order::Check { file },
            Command::Proxy(proxy) => Order::Proxy(proxy.order(environment)),
            #[cfg(windows)]
            Command::Run(run) => Order::Run(run.order()),
            #[cfg(windows)]
            Command::Service(service) => Order::Service(service.order()),
            Command::AllowedIps(AllowedIps { networks, except }) => Order::AllowedIps {
                networks: joined(networks),
                except: joined(except),
            },
            Command::Wg(_) => Order::Wg {
                personality: wg::Compatibility::Taupe,
                arguments: std::iter::once("taupe".into())
                    .chain(arguments.iter().skip(1).cloned())
                    .collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, OF_LINUX, Order, definition, parse};
    use std::ffi::OsString;

    fn parsed(words: &[&str]) -> Result<Order, Error> {
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        parse(&words, &|_| None)
    }

    #[test]
    fn the_command_line_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn a_command_of_linux_is_named_as_such_and_another_word_is_not() {
        for word in OF_LINUX {
            let error = parsed(&["taupe.exe", word, "x"]).expect_err(word);
            assert!(error.to_string().contains("Linux"), "{error}");
        }
        let error = parsed(&["taupe.exe", "nonsense"]).expect_err("no command");
        assert!(matches!(error, Error::CommandLine(_)), "{error}");
    }

    #[test]
    fn the_name_of_the_program_is_without_its_ending() {
        let order = parsed(&["wg.exe", "genkey"]).expect("an order");
        assert!(matches!(order, Order::Wg { .. }), "{order:?}");
        let order = parsed(&[r"taupe.exe", "check", "a.conf"]).expect("an order");
        let file = "a.conf".into();
        assert_eq!(order, Order::Check { file });
    }
}
