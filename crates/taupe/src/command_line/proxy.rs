//! The command line of `taupe proxy`.

use super::Environment;
use super::common::FileArgument;
use crate::logging;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use taupe_proxy::Forward;
use tracing_subscriber::filter::LevelFilter;

/// Arguments of `taupe proxy`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProxyOrder {
    /// A path, or a name in /etc/wireguard.
    pub(crate) file: OsString,
    pub(crate) socks5: Vec<SocketAddr>,
    pub(crate) http: Vec<SocketAddr>,
    pub(crate) forwards: Vec<Forward>,
    pub(crate) auth_file: Option<PathBuf>,
    pub(crate) log_level: LevelFilter,
}

/// Address for SOCKS 5 if there are no options.
const DEFAULT_SOCKS5: &str = "127.0.0.1:1080";

pub(crate) const PROXY: &str = "\
The tunnel is inside this process, which needs only the right to read the file. No interface, \
address, route or DNS setting of the system changes. The file's DNS servers look up the names that \
clients give, through the tunnel; without DNS in the file, clients have to give addresses. No \
traffic bypasses the tunnel: a destination outside AllowedIPs is refused, and without a handshake \
connections are refused after 15 s.\n\n\
Address, DNS, ListenPort, MTU, PrivateKey, PqPrivateKey and all keys of [Peer] have an effect. Of \
Address, Taupe uses the first of each family. Keys about interfaces, routes, hooks and applications \
have no effect, and Taupe prints a line about them. Do not run `taupe up` with the same file at the \
same time: two tunnels with one key disturb each other.\n\n\
SOCKS is version 5 (RFC 1928): CONNECT and UDP ASSOCIATE, by address or name. HTTP is CONNECT and \
http:// URLs, with one request per connection, whose body has a Content-Length. LOG_LEVEL is as for \
`taupe device`.";

pub(crate) const PROXY_EXAMPLES: &str = "\
Examples:
  taupe proxy ./home.conf
  curl --proxy socks5h://127.0.0.1:1080 https://example.org/
  taupe proxy ./home.conf --http 127.0.0.1:8080 --forward 5432:db.example:5432";

pub(crate) const PROXY_STATUS: &str = "\
Exit status:
  0  SIGTERM, SIGINT or SIGHUP ended it.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done.";

#[derive(Args)]
pub(crate) struct ProxyArguments {
    #[command(flatten)]
    file: FileArgument,
    /// Listen for SOCKS 5
    ///
    /// Default: 127.0.0.1:1080, unless --http or --forward is given.
    #[arg(long, value_name = "ADDRESS:PORT", value_hint = ValueHint::Hostname)]
    #[arg(value_parser = socket_address)]
    socks5: Vec<SocketAddr>,
    /// Listen for HTTP proxy requests
    #[arg(long, value_name = "ADDRESS:PORT", value_hint = ValueHint::Hostname)]
    #[arg(value_parser = socket_address)]
    http: Vec<SocketAddr>,
    /// Forward a local port to HOST:PORT
    ///
    /// The destination is reached through the tunnel. Without BIND, Taupe listens at 127.0.0.1.
    /// Write an IPv6 address in brackets.
    #[arg(long, value_name = "[BIND:]PORT:HOST:PORT")]
    forward: Vec<Forward>,
    /// Read users from a file
    ///
    /// Each line is USER:PASSWORD. The file is needed to listen for SOCKS or HTTP at an address
    /// other than loopback. Both protocols send the password in clear.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    auth_file: Option<PathBuf>,
}

impl ProxyArguments {
    pub(crate) fn order(self, environment: Environment<'_>) -> ProxyOrder {
        let Self {
            file,
            mut socks5,
            http,
            forward: forwards,
            auth_file,
        } = self;
        if socks5.is_empty() && http.is_empty() && forwards.is_empty() {
            socks5.extend(DEFAULT_SOCKS5.parse::<SocketAddr>());
        }
        let level = environment("LOG_LEVEL");
        let level = level.as_deref().map(|word| word.to_string_lossy());
        ProxyOrder {
            file: file.file,
            socks5,
            http,
            forwards,
            auth_file,
            log_level: logging::level(level.as_deref()),
        }
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "write an address and a port, such as 127.0.0.1:1080 or [::1]:1080")
}
