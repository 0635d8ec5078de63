//! Arguments, commands and sections of help that all systems have.

use crate::system;
use clap::{Args, Subcommand, ValueHint};
use ipnet::IpNet;
use std::ffi::OsString;
use taupe_uapi::prefix;

pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done. Commands that `wg` has too exit with 1.";

pub(crate) const STRIP_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The file cannot be used or read; standard error says why and what to do.
  2  Wrong usage.";

pub(crate) const STRIP_EXAMPLES: &str = "\
Examples:
  taupe strip ./home.conf";

pub(crate) const CHECK_JSON: &str = "\
JSON:
  An object with `schema` (1), `file`, `usable` and `remarks`, a list of objects
  with severity (error, warning), line, column, reason, fix, and command (one
  that helps to follow the fix, or null).";

pub(crate) const CHECK_STATUS: &str = "\
Exit status:
  0  The file can be used, perhaps with warnings.
  1  The file cannot be used, or cannot be read.
  2  Wrong usage.";

pub(crate) const CHECK_EXAMPLES: &str = "\
Examples:
  taupe check ./home.conf
  taupe check ./home.conf --json";

pub(crate) const ALLOWED_IPS_STATUS: &str = "\
Exit status:
  0  Done. If no network is left, the list is empty and standard error says so.
  1  The list could not be written.
  2  Wrong usage, or not a network.";

pub(crate) const WG_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed, or wrong usage; standard error says which.";

pub(crate) const FILES: &str = "\
See also:
  taupe.conf(5): every key of a file";

pub(crate) const FIELDS: &str = "\
Without a FIELD, Taupe prints the lines of `wg show`, followed by lines about its own state. With a \
FIELD, it prints one line for the interface or one for each peer, with tabs between the parts. With \
`all`, each line begins with the interface's name.\n\n\
Fields:
  public-key            the interface's public key
  private-key           its private key
  listen-port           its UDP port
  fwmark                the mark of its encrypted packets, or off
  peers                 the peers' public keys
  preshared-keys        each peer's preshared key, or (none)
  endpoints             each peer's address and port, or (none)
  allowed-ips           each peer's networks, or (none)
  latest-handshakes     each peer's last handshake in seconds since 1970, or 0
  transfer              each peer's bytes received and sent
  persistent-keepalive  each peer's interval in seconds, or off
  dump                  all fields: a line for the interface and for each peer

Environment:
  WG_COLOR_MODE  always, never, or auto (default): colours on a terminal.
  WG_HIDE_KEYS   never: print secret keys instead of (hidden).";

/// The section about the environment for commands that look up endpoint names.
pub(crate) const RETRIES: &str = "\
Environment:
  WG_ENDPOINT_RESOLUTION_RETRIES  How often Taupe looks up an endpoint's name
                                  again if it has no address yet: a number
                                  (default: 15), or infinity.";

pub(crate) const ALLOWED_IPS_EXAMPLES: &str = "\
Examples:
  taupe allowed-ips 0.0.0.0/0,::/0 --except 192.168.0.0/16
  taupe allowed-ips 10.0.0.0/8 --except 10.1.2.3";

const SHOW_EXAMPLES: &str = "\
Examples:
  sudo taupe show
  sudo taupe show wg0 latest-handshakes";

const SHOWCONF_EXAMPLES: &str = "\
Examples:
  sudo taupe showconf wg0 > wg0.conf";

const SET_EXAMPLES: &str = "\
Examples:
  sudo taupe set wg0 listen-port 51820
  sudo taupe set wg0 peer KEY endpoint 192.0.2.1:51820 allowed-ips 10.0.0.0/8";

const SETCONF_EXAMPLES: &str = "\
Examples:
  sudo taupe setconf wg0 wg0.conf";

const ADDCONF_EXAMPLES: &str = "\
Examples:
  sudo taupe addconf wg0 peer.conf";

const SYNCCONF_EXAMPLES: &str = "\
Examples:
  sudo taupe syncconf wg0 wg0.conf";

const GENKEY: &str = "With --pq, the key is for post-quantum handshakes.";

const GENKEY_EXAMPLES: &str = "\
Examples:
  (umask 077; taupe genkey > key)
  (umask 077; taupe genkey --pq > pq-key)";

const GENPSK_EXAMPLES: &str = "\
Examples:
  (umask 077; taupe genpsk > psk)";

const PUBKEY: &str = "\
With --pq, both keys are for post-quantum handshakes, of the suite hybrid-768 (default) or hybrid-512.";

const PUBKEY_EXAMPLES: &str = "\
Examples:
  taupe pubkey < key
  taupe pubkey --pq < pq-key";

#[derive(Args)]
pub(crate) struct FileArgument {
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    #[arg(help = file_help(), long_help = file_help() + "\n\nThe tunnel has the name of its file.")]
    pub(crate) file: OsString,
}

#[derive(Args)]
pub(crate) struct CheckArguments {
    #[command(flatten)]
    pub(crate) file: FileArgument,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn file_help() -> String {
    format!(
        "File NAME.conf, or NAME of a file in {}",
        system::CONF_FOLDER
    )
}

#[derive(Args)]
pub(crate) struct AllowedIps {
    /// Networks or addresses, separated by commas
    #[arg(value_name = "NETWORKS", required = true, value_parser = networks)]
    pub(crate) networks: Vec<Networks>,
    /// Networks to leave out, separated by commas
    ///
    /// This option may be given more than once.
    #[arg(long, value_name = "NETWORKS", value_parser = quoted_list)]
    pub(crate) except: Vec<Networks>,
}

/// Part of a list of networks, in one word of the command line.
#[derive(Clone)]
pub(crate) struct Networks(Vec<IpNet>);

/// The sub-commands of `wg`. `crate::wg` parses their arguments; this definition serves help,
/// manual pages and completions.
#[derive(Subcommand)]
pub(crate) enum Wg {
    /// Show the state of interfaces
    #[command(
        after_help = format!("{FIELDS}\n\n{WG_STATUS}\n\n{SHOW_EXAMPLES}"),
        override_usage = "\
        taupe show\n       \
        taupe show (INTERFACE | all | interfaces) [FIELD]"
    )]
    Show(UnparsedArguments),
    /// Print the configuration of an interface for `setconf`
    #[command(after_help = format!("{WG_STATUS}\n\n{SHOWCONF_EXAMPLES}"), override_usage = "taupe showconf INTERFACE")]
    Showconf(UnparsedArguments),
    /// Change the configuration of an interface
    #[command(
        after_help = format!("{WG_STATUS}\n\n{SET_EXAMPLES}"),
        override_usage = "\
        taupe set INTERFACE [listen-port PORT] [fwmark MARK] [private-key FILE]\n           \
        [pq-private-key FILE]\n           \
        [peer KEY [remove] [preshared-key FILE] [pq-public-key FILE|-]\n           \
        [post-quantum require|prefer|off|default] [endpoint HOST:PORT]\n           \
        [persistent-keepalive SECONDS] [allowed-ips NETWORKS]]..."
    )]
    Set(UnparsedArguments),
    /// Replace the configuration of an interface with a file
    #[command(
        after_help = format!("{WG_STATUS}\n\n{SETCONF_EXAMPLES}"),
        override_usage = "taupe setconf INTERFACE FILE"
    )]
    Setconf(UnparsedArguments),
    /// Add a file to the configuration of an interface
    #[command(
        after_help = format!("{WG_STATUS}\n\n{ADDCONF_EXAMPLES}"),
        override_usage = "taupe addconf INTERFACE FILE"
    )]
    Addconf(UnparsedArguments),
    /// Apply a file like `setconf`, but keep sessions
    #[command(
        after_help = format!("{WG_STATUS}\n\n{SYNCCONF_EXAMPLES}"),
        override_usage = "taupe syncconf INTERFACE FILE"
    )]
    Syncconf(UnparsedArguments),
    /// Print a new private key
    #[command(after_help = format!("{GENKEY}\n\n{WG_STATUS}\n\n{GENKEY_EXAMPLES}"), override_usage = "taupe genkey [--pq]")]
    Genkey(UnparsedArguments),
    /// Print a new preshared key
    #[command(after_help = format!("{WG_STATUS}\n\n{GENPSK_EXAMPLES}"), override_usage = "taupe genpsk")]
    Genpsk(UnparsedArguments),
    /// Compute the public key of a private key on standard input
    #[command(
        after_help = format!("{PUBKEY}\n\n{WG_STATUS}\n\n{PUBKEY_EXAMPLES}"),
        override_usage = "taupe pubkey [--pq [--suite hybrid-768|hybrid-512]]"
    )]
    Pubkey(UnparsedArguments),
}

/// The arguments of a sub-command of `wg`, unparsed.
#[derive(Args)]
pub(crate) struct UnparsedArguments {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _rest: Vec<OsString>,
}

fn networks(word: &str) -> Result<Networks, prefix::PrefixError> {
    let entries = word.split(',').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    entries
        .map(prefix::parse)
        .collect::<Result<_, _>>()
        .map(Networks)
}

/// Parses a list that has to be one word: a word after a comma and a blank would count as part of
/// the other list.
fn quoted_list(word: &str) -> Result<Networks, String> {
    if word.trim_end().ends_with(',') {
        return Err("the list ends in a comma; put it in quotes, or omit the blanks".into());
    }
    networks(word).map_err(|error| error.to_string())
}

pub(crate) fn joined(lists: Vec<Networks>) -> Vec<IpNet> {
    lists.into_iter().flat_map(|list| list.0).collect()
}
