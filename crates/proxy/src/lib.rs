#![forbid(unsafe_code)]
//! A WireGuard tunnel that applications reach through SOCKS 5, HTTP and forwarded ports, with a
//! TCP/IP stack in user space. It needs no privileges and changes no interface, route or name
//! server of the system.
//!
//! ```text
//! client ─ socks, http ─► client ─► relay ─► taupe_stack ─► UDP
//! ```
//!
//! One thread does everything. The protocol and the TCP/IP stacks are state machines without I/O,
//! so the thread carries a packet from one to the other without waiting. All traffic to the network
//! leaves through [`Proxy`]'s tunnel, a [`taupe_stack::net::Net`]; this crate has no other path out.
//!
//! | file | content |
//! |---|---|
//! | `socks.rs`, `http.rs` | parsers and writers of the clients' protocols |
//! | `auth.rs` | credentials |
//! | `client.rs`, `client_socket.rs` | one client's connection, from accept to close |
//! | `relay.rs`, `association.rs` | bytes and datagrams between a client and the tunnel |
//! | `net.rs` | the tunnel that all clients share, and their identities |
//! | `proxy.rs` | the event loop |

mod association;
mod auth;
mod burst;
mod client;
mod client_socket;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod http;
mod limits;
mod listeners;
mod net;
mod proxy;
mod relay;
mod socks;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use taupe_protocol::update::DeviceUpdate;
use taupe_stack::address::Target;
use taupe_stack::settings::{Addresses, Settings};

pub use auth::{AuthError, Credentials};
pub use proxy::{Proxy, Stopper};
pub use taupe_protocol::Notice;
pub use taupe_stack::{DEFAULT_MTU, MIN_MTU, NoticeHandler, OpenError, address};

/// Configuration of a proxy.
pub struct Options {
    /// The private key and the peers.
    pub device: DeviceUpdate,
    /// The UDP port of the tunnel; 0 lets the system choose.
    pub listen_port: u16,
    /// This side's IPv4 address in the tunnel.
    pub v4: Option<Ipv4Addr>,
    /// This side's IPv6 address in the tunnel.
    pub v6: Option<Ipv6Addr>,
    /// The MTU inside the tunnel, in bytes.
    pub mtu: usize,
    /// Name servers behind the tunnel. If there are none, look-ups of names fail.
    pub dns: Vec<IpAddr>,
    /// Addresses at which to listen for SOCKS.
    pub socks5: Vec<SocketAddr>,
    /// Addresses at which to listen for HTTP.
    pub http: Vec<SocketAddr>,
    /// Forwarded ports.
    pub forwards: Vec<Forward>,
    /// Credentials that SOCKS and HTTP clients need. `None` admits every client.
    pub credentials: Option<Credentials>,
    /// Folder for state that must survive a restart: handshake timestamps and pinned post-quantum
    /// peers. `None` is `/var/lib/taupe`.
    pub state_dir: Option<PathBuf>,
    /// Receives a notice when a peer stops answering or answers again. It must not block.
    pub notices: Option<NoticeHandler>,
}

/// A port whose connections all go to one host behind the tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// Local address to listen at.
    pub listen: SocketAddr,
    /// Destination host and port.
    pub target: Target,
}

/// Parses `[BIND:]PORT:HOST:PORT`. BIND is an address and defaults to 127.0.0.1.
impl FromStr for Forward {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (rest, port) = text.rsplit_once(':')?;
            // The host is in brackets, or has no colon.
            let at = match rest.strip_suffix(']') {
                Some(rest) => rest.rfind('[')?,
                None => rest.rfind(':')? + 1,
            };
            let (listen, host) = rest.split_at_checked(at)?;
            let listen = listen.strip_suffix(':')?;
            let listen = match listen.rsplit_once(':') {
                Some(_) => listen.parse().ok()?,
                None => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address::number(listen)?),
            };
            let target = Target::new(&format!("{host}:{port}"), None)?;
            Some(Self { listen, target })
        };
        parse().ok_or("write, for example, 8080:example.org:80 or [::1]:8080:[2001:db8::1]:80")
    }
}

/// Reason why a proxy could not start. All sockets are closed again.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener that other machines can reach requires no credentials.
    #[error(
        "other machines can reach {0}, so anyone could use the tunnel; listen at 127.0.0.1 or [::1], \
         or require passwords"
    )]
    Unprotected(SocketAddr),
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen at {at}: {source}; use another address or port")]
    Listen {
        /// The listen address.
        at: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The tunnel cannot be opened with these options, or not now.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The proxy stopped because waiting for the system's events failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot wait for events: {0}")]
pub struct RunError(#[source] io::Error);

impl Options {
    /// Checks the options for mistakes before anything is opened.
    fn check(&self) -> Result<(), StartError> {
        let open = self.socks5.iter().chain(&self.http);
        let open = open
            .copied()
            .find(|at| !at.ip().to_canonical().is_loopback());
        if let (Some(at), None) = (open, &self.credentials) {
            return Err(StartError::Unprotected(at));
        }
        let addresses = Addresses {
            v4: self.v4,
            v6: self.v6,
        };
        Settings::check(addresses, self.mtu)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Forward;

    #[test]
    fn forwards() {
        for (text, expected) in [
            (
                "80:example.org:81",
                Some(("127.0.0.1:80", "example.org:81")),
            ),
            (
                "0.0.0.0:80:192.0.2.1:81",
                Some(("0.0.0.0:80", "192.0.2.1:81")),
            ),
            (
                "80:[2001:db8::1]:81",
                Some(("127.0.0.1:80", "[2001:db8::1]:81")),
            ),
            ("[::1]:80:a.b:81", Some(("[::1]:80", "a.b:81"))),
            (
                "[::1]:80:[2001:db8::1]:81",
                Some(("[::1]:80", "[2001:db8::1]:81")),
            ),
            ("80:example.org", None),
            ("example.org:80", None),
            ("x:80:example.org:81", None),
            ("::1:80:example.org:81", None),
            ("0:example.org:81", None),
            ("80:example.org:0", None),
            ("80::81", None),
            ("80:2001:db8::1:81", None),
            (":80:a:81", None),
            ("", None),
        ] {
            let forward = text.parse::<Forward>().ok();
            let found = forward.map(|one| (one.listen.to_string(), one.target.to_string()));
            let expected = expected.map(|(listen, target)| (listen.to_owned(), target.to_owned()));
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
