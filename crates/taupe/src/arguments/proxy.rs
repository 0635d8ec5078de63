//! The command line of `taupe proxy`.

use super::Environment;
use super::common::FileArgument;
use crate::logging::Logging;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use taupe_proxy::Forward;

/// To run a proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProxyOrder {
    /// A path, or a name in /etc/wireguard.
    pub(crate) file: OsString,
    pub(crate) socks5: Vec<SocketAddr>,
    pub(crate) http: Vec<SocketAddr>,
    pub(crate) forwards: Vec<Forward>,
    pub(crate) auth_file: Option<PathBuf>,
    pub(crate) logging: Logging,
}

/// Where it listens when nothing is said.
const SOCKS5: &str = "127.0.0.1:1080";

pub(super) const ABOUT: &str = "\
It takes no privileges but the right to read the file: the tunnel is in this process, and no
interface, address, route or name server of the system changes. Names that clients give are
looked up by the file's DNS servers, through the tunnel; without DNS in the file clients have to
give addresses. Nothing goes past the tunnel: what is not in AllowedIPs is refused, and without a
handshake connections are refused after 15 s.

Address, DNS, ListenPort, MTU, PrivateKey, PqPrivateKey and all keys of [Peer] act; keys about
interfaces, routes, hooks and applications mean nothing here, and a line says so. Of Address, the
first of each family is used. Two tunnels with one key disturb each other: do not run `taupe up` with the
file meanwhile.

SOCKS is version 5 (RFC 1928): CONNECT and UDP ASSOCIATE, by address or name. HTTP is CONNECT, and
http:// URLs, one request a connection, whose content has a Content-Length. LOG_LEVEL is as for
`taupe device`.

Examples:
  taupe proxy ./home.conf
  curl --proxy socks5h://127.0.0.1:1080 https://example.org/
  taupe proxy ./home.conf --http 127.0.0.1:8080 --forward 5432:db.example:5432";

pub(super) const STATUS: &str = "\
Exit status:
  0  SIGTERM, SIGINT or SIGHUP has ended it.
  1  Failed; standard error says what, why and what to do.
  2  Wrong usage; nothing was done.";

#[derive(Args)]
pub(super) struct Proxy {
    #[command(flatten)]
    file: FileArgument,
    /// Listen for SOCKS 5; 127.0.0.1:1080 if nothing else is asked for
    #[arg(long, value_name = "ADDRESS:PORT", value_hint = ValueHint::Hostname)]
    #[arg(value_parser = socket_address)]
    socks5: Vec<SocketAddr>,
    /// Listen for requests to an HTTP proxy
    #[arg(long, value_name = "ADDRESS:PORT", value_hint = ValueHint::Hostname)]
    #[arg(value_parser = socket_address)]
    http: Vec<SocketAddr>,
    /// Listen at a port whose connections all go to HOST:PORT behind the tunnel
    ///
    /// BIND is 127.0.0.1 if it is left out. An IPv6 address is in brackets.
    #[arg(long, value_name = "[BIND:]PORT:HOST:PORT")]
    forward: Vec<Forward>,
    /// A file of lines USER:PASSWORD: who may use SOCKS and HTTP
    ///
    /// Needed to listen for them at other addresses than this machine's own. Both send the
    /// password as it is.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    auth_file: Option<PathBuf>,
}

impl Proxy {
    pub(super) fn order(self, environment: Environment<'_>) -> ProxyOrder {
        let Self {
            file,
            mut socks5,
            http,
            forward: forwards,
            auth_file,
        } = self;
        if socks5.is_empty() && http.is_empty() && forwards.is_empty() {
            socks5.extend(SOCKS5.parse::<SocketAddr>());
        }
        let level = environment("LOG_LEVEL");
        let level = level.as_deref().map(|word| word.to_string_lossy());
        ProxyOrder {
            file: file.file,
            socks5,
            http,
            forwards,
            auth_file,
            logging: Logging::from_log_level(level.as_deref()),
        }
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "write an address and a port, such as 127.0.0.1:1080 or [::1]:1080")
}
