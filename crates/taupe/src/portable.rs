//! Commands of systems other than Linux.

use crate::command_line::common::{
    ALLOWED_IPS_EXAMPLES, ALLOWED_IPS_STATUS, AllowedIps, CHECK_EXAMPLES, CHECK_JSON, CHECK_STATUS,
    CheckArguments, EXIT_STATUS, FILES, FileArgument, RETRIES, STRIP_EXAMPLES, STRIP_STATUS, Wg,
    joined,
};
use crate::command_line::groups::grouped;
use crate::command_line::proxy::{self, ProxyArguments};
use crate::command_line::read;
use crate::remarks::with_command;
use crate::{FAILED, MISUSED, allowed_ips, complain, console, exit, exit_status, wg};
use clap::Subcommand;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use taupe_config::file::Compatibility;
use taupe_inspect::check::{self, check};
use taupe_inspect::conf::Conf;

/// Commands that every system other than Linux has.
#[derive(Subcommand)]
pub(crate) enum PortableCommand {
    /// Print a file in the format of `wg setconf`
    #[command(after_long_help = format!("{STRIP_STATUS}\n\n{FILES}\n\n{STRIP_EXAMPLES}"))]
    Strip(FileArgument),
    /// Check a file and print every mistake with its fix
    ///
    /// Nothing is changed, and no name is looked up.
    #[command(after_long_help = format!("{CHECK_JSON}\n\n{CHECK_STATUS}\n\n{FILES}\n\n{CHECK_EXAMPLES}"))]
    Check(CheckArguments),
    /// Serve a tunnel as a SOCKS and HTTP proxy
    #[command(after_long_help = format!(
        "{}\n\n{RETRIES}\n\n{}\n\n{FILES}\n\n{}",
        proxy::PROXY, proxy::PROXY_STATUS, proxy::PROXY_EXAMPLES
    ))]
    Proxy(ProxyArguments),
    /// Compute a list of networks without some others
    #[command(after_long_help = format!("{ALLOWED_IPS_STATUS}\n\n{ALLOWED_IPS_EXAMPLES}"))]
    AllowedIps(AllowedIps),
    #[command(flatten)]
    Wg(Wg),
}

/// Sections at the end of the program's long help.
pub(crate) fn after_help() -> String {
    format!("{EXIT_STATUS}\n\n{FILES}\n\n{CHECK_EXAMPLES}")
}

/// Reason why the command line gives no command.
#[derive(Debug, thiserror::Error)]
enum UsageError {
    /// The command line is wrong, or asks for help or the version only.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// Another system has the command.
    #[error(
        "there is no `taupe {command}` on this system, as there is on Linux; `taupe help` lists the \
         commands of this system, such as `taupe proxy`"
    )]
    OnlyOnLinux { command: &'static str },
}

/// Commands that exist on Linux, and not on every other system.
const ONLY_ON_LINUX: [&str; 18] = [
    "app", "device", "doctor", "down", "events", "exec", "explain", "flows", "lock", "metrics",
    "prove", "reload", "report", "save", "status", "top", "up", "web",
];

/// Executes the command in the process's arguments, which `prepare` may rewrite. `run` executes a
/// command line of Taupe.
pub(crate) fn main<P: clap::Parser>(
    prepare: impl FnOnce(&[OsString]) -> Vec<OsString>,
    run: impl FnOnce(P, &[OsString]) -> ExitCode,
) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if is_wg(&arguments) {
        return wg::main(wg::Compatibility::Wg, &arguments);
    }
    let arguments = prepare(&arguments);
    match parse::<P>(&arguments) {
        Ok(command_line) => run(command_line, &arguments),
        Err(UsageError::CommandLine(error)) => exit_status::usage(&error, MISUSED),
        Err(error) => complain(&error, MISUSED),
    }
}

/// Checks whether the program is called as `wg`.
fn is_wg(arguments: &[OsString]) -> bool {
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    path.file_stem().is_some_and(|name| name == "wg")
}

/// Parses a command line. `--help` and `--version` are errors in this sense.
fn parse<P: clap::Parser>(arguments: &[OsString]) -> Result<P, UsageError> {
    read::<P>(grouped(P::command()), arguments, "taupe").map_err(only_on_linux)
}

/// Recognises a command that exists on Linux.
fn only_on_linux(error: clap::Error) -> UsageError {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(command) = ONLY_ON_LINUX.into_iter().find(|command| command == word)
    {
        return UsageError::OnlyOnLinux { command };
    }
    UsageError::CommandLine(error)
}

impl PortableCommand {
    /// Executes the command. `arguments` are those of the process.
    pub(crate) fn run(self, arguments: &[OsString]) -> ExitCode {
        match self {
            Self::Strip(FileArgument { file }) => strip(&file, Compatibility::Taupe),
            Self::Check(check) => crate::check::main(&check.file.file, check.json),
            Self::Proxy(proxy) => crate::proxy::main(&proxy.order(&|name| std::env::var_os(name))),
            Self::AllowedIps(AllowedIps { networks, except }) => {
                allowed_ips::main(&joined(networks), &joined(except))
            }
            Self::Wg(_) => {
                let arguments: Vec<_> = std::iter::once("taupe".into())
                    .chain(arguments.iter().skip(1).cloned())
                    .collect();
                wg::main(wg::Compatibility::Taupe, &arguments)
            }
        }
    }
}

/// Prints a file in the form that devices take. Fails if the file has errors.
pub(crate) fn strip(word: &OsStr, compatibility: Compatibility) -> ExitCode {
    let conf = match Conf::find(word, compatibility) {
        Ok(conf) => conf,
        Err(error) => return complain(&error, FAILED),
    };
    let checked = match check(&conf, compatibility) {
        Ok(checked) => checked,
        Err(error) => return complain(&error, FAILED),
    };
    if checked.file.is_none() {
        for remark in &checked.remarks {
            console::say(&with_command(remark));
        }
        let (file, errors) = (conf.shown.display(), check::count(&checked.remarks));
        return complain(
            &format_args!("{file} has {errors}; nothing was done"),
            FAILED,
        );
    }
    let stripped = check::strip(&conf, &checked.text, compatibility.dialect());
    exit(console::print(&stripped), ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::{ONLY_ON_LINUX, PortableCommand, UsageError, is_wg, parse};
    use clap::{CommandFactory as _, Parser};
    use std::ffi::OsString;

    #[derive(Parser)]
    #[command(name = "taupe")]
    struct Taupe {
        #[command(subcommand)]
        command: PortableCommand,
    }

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(Into::into).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Taupe::command().debug_assert();
        crate::command_line().debug_assert();
    }

    #[test]
    fn a_command_of_linux_is_named_as_such_and_another_word_is_not() {
        for word in ONLY_ON_LINUX {
            let error = parse::<Taupe>(&words(&["taupe.exe", word, "x"])).err();
            let error = error.expect(word);
            assert!(error.to_string().contains("Linux"), "{error}");
        }
        let error = parse::<Taupe>(&words(&["taupe.exe", "nonsense"])).err();
        let error = error.expect("no command");
        assert!(matches!(error, UsageError::CommandLine(_)), "{error}");
    }

    #[test]
    fn the_name_of_the_program_is_without_its_ending() {
        assert!(is_wg(&words(&["wg.exe", "genkey"])));
        let arguments = words(&["taupe.exe", "check", "a.conf"]);
        assert!(!is_wg(&arguments));
        let taupe = parse::<Taupe>(&arguments).expect("a command");
        let PortableCommand::Check(check) = taupe.command else {
            panic!("another command");
        };
        assert_eq!((check.file.file, check.json), ("a.conf".into(), false));
    }
}
