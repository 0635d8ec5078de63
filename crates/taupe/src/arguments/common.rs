//! What the command line of `taupe` has on every system.

use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use taupe_uapi::prefix::{self, Prefix};

pub(super) const EXIT_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done. Of the commands that are those of `wg` too, 1.";

pub(super) const STRIP_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The file cannot be used or read; standard error says why and what to do.
  2  Wrong usage.";

pub(super) const CHECK_STATUS: &str = "\
Exit status:
  0  The file can be used, perhaps with warnings.
  1  It cannot, or cannot be read.
  2  Wrong usage.";

pub(super) const ALLOWED_IPS_STATUS: &str = "\
Exit status:
  0  Done; if nothing is left, the list is empty and standard error says so.
  1  The list could not be written.
  2  Wrong usage, or not a network.";

pub(super) const WG_STATUS: &str = "\
Exit status:
  0  Done.
  1  Failed, or wrong usage; standard error says which.";

pub(super) const FILES: &str = "\
See also:
  taupe.conf(5): all that a file can say, and what comes of it";

pub(super) const FIELDS: &str = "\
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

pub(super) const RETRIES: &str = "\
Environment:
  WG_ENDPOINT_RESOLUTION_RETRIES  How often the name of an endpoint that cannot be
                                  resolved for now is tried again: a number
                                  [default: 15], or infinity.";

pub(super) const EXAMPLES: &str = "\
Examples:
  taupe allowed-ips 0.0.0.0/0,::/0 --except 192.168.0.0/16
  taupe allowed-ips 10.0.0.0/8 --except 10.1.2.3";

#[derive(Args)]
pub(super) struct FileArgument {
    #[cfg_attr(
        windows,
        doc = r"A file NAME.conf, or the NAME of one in C:\ProgramData\Taupe"
    )]
    #[cfg_attr(
        not(windows),
        doc = "A file NAME.conf, or the NAME of one in /etc/wireguard"
    )]
    ///
    /// The tunnel is named after the file.
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    pub(super) file: OsString,
}

#[derive(Args)]
pub(super) struct AllowedIps {
    /// Networks or addresses, separated by commas
    #[arg(value_name = "NETWORKS", required = true, value_parser = networks)]
    pub(super) networks: Vec<Networks>,
    /// What to leave out of them, separated by commas; may be given more than once
    #[arg(long, value_name = "NETWORKS", value_parser = whole_list)]
    pub(super) except: Vec<Networks>,
}

/// What one word says of a list that commas and blanks separate.
#[derive(Clone)]
pub(super) struct Networks(Vec<Prefix>);

/// The sub-commands of `wg`. Their arguments are read where they are carried out;
/// what stands here is for help, manual pages and completions.
#[derive(Subcommand)]
pub(super) enum Wg {
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
        [pq-private-key FILE]\n           \
        [peer KEY [remove] [preshared-key FILE] [pq-public-key FILE|-]\n           \
        [post-quantum require|prefer|off|default] [endpoint HOST:PORT]\n           \
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
    /// Print a new private key; with --pq the one that post-quantum handshakes take besides
    #[command(after_help = WG_STATUS, override_usage = "taupe genkey [--pq]")]
    Genkey(Rest),
    /// Print a new preshared key
    #[command(after_help = WG_STATUS, override_usage = "taupe genpsk")]
    Genpsk(Rest),
    /// Read a private key from standard input and print its public key; with --pq that of a
    /// post-quantum private key, for hybrid-768 or another suite
    #[command(
        after_help = WG_STATUS,
        override_usage = "taupe pubkey [--pq [--suite hybrid-768|hybrid-512]]"
    )]
    Pubkey(Rest),
}

/// What belongs to a sub-command of `wg`.
#[derive(Args)]
pub(super) struct Rest {
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

/// A list in one word: what comes after a comma and a blank would be taken for
/// networks of the other list.
fn whole_list(word: &str) -> Result<Networks, String> {
    if word.trim_end().ends_with(',') {
        return Err("the list ends in a comma; put it in quotes, or leave the blanks out".into());
    }
    networks(word).map_err(|error| error.to_string())
}

pub(super) fn joined(lists: Vec<Networks>) -> Vec<Prefix> {
    lists.into_iter().flat_map(|list| list.0).collect()
}
