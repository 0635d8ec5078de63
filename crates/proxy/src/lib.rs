#![forbid(unsafe_code)]
//! A WireGuard tunnel for whoever asks for it: SOCKS 5, HTTP and forwarded ports on this side,
//! a TCP/IP stack in user space on the other. It takes no privileges, and no interface,
//! route or name server of the system changes.
//!
//! ```text
//! client ─ socks, http ─► client ─► relay ─► stream ─► outgoing ─► tunnel ─► UDP
//!                           │ names          (a stack each)         (protocol)
//!                           ▼
//!                          dns ─► outgoing
//! ```
//!
//! One thread does everything, woken by what it waits for. Both the protocol and the stack
//! are state machines without I/O, so a packet is carried from one to the other without
//! waiting for anybody. All that goes out goes by [`Proxy`]'s tunnel; there is no other way in
//! here.
//!
//! | file | what it is |
//! |---|---|
//! | `socks.rs`, `http.rs` | what clients say, as bytes |
//! | `address.rs`, `auth.rs`, `failure.rs` | where they want to go, who they are, and why it came to nothing |
//! | `client.rs` | a client from its first byte to its last |
//! | `relay.rs`, `association.rs` | its bytes, or its datagrams, to and fro |
//! | `stream.rs`, `holes.rs` | one TCP connection, with a stack of its own, and segments that it has lost |
//! | `dns.rs`, `question.rs` | names, over UDP and TCP |
//! | `packet.rs`, `outgoing.rs` | inner packets |
//! | `tunnel.rs`, `handshakes.rs` | WireGuard and its sockets, and handshake messages that wait |
//! | `net.rs` | what clients share |
//! | `proxy.rs` | the loop |

pub mod address;
mod association;
mod auth;
mod burst;
mod client;
mod dns;
mod failure;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod handshakes;
mod holes;
mod http;
mod limits;
mod listeners;
mod net;
mod outgoing;
mod packet;
mod proxy;
mod question;
mod relay;
mod socks;
mod stream;
mod tunnel;
mod warning;

use address::Target;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use taupe_protocol::UpdateError;
use taupe_protocol::update::DeviceUpdate;
use taupe_runtime::pinned_pq::Unreadable;
use taupe_runtime::services::PrepareError;

pub use auth::{AuthError, Credentials};
pub use proxy::{Proxy, Stopper};
pub use taupe_protocol::Notice;

/// The least MTU of a tunnel, in bytes: what every IPv4 host takes (RFC 791).
pub const MIN_MTU: usize = 576;

/// The MTU of a tunnel that does not say: what an Ethernet carries less what WireGuard adds
/// over IPv6, as for an interface.
pub const DEFAULT_MTU: usize = 1420;

/// Tells somebody of a notice.
pub type Tell = Box<dyn Fn(Notice) + Send>;

/// What a proxy is made from.
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
    /// Name servers behind the tunnel. Without any, names have no addresses.
    pub dns: Vec<IpAddr>,
    /// Where to listen for SOCKS.
    pub socks5: Vec<SocketAddr>,
    /// Where to listen for HTTP.
    pub http: Vec<SocketAddr>,
    /// Ports whose connections all go to one host.
    pub forwards: Vec<Forward>,
    /// Who may use SOCKS and HTTP; everybody without.
    pub credentials: Option<Credentials>,
    /// The folder where handshake timestamps are saved across restarts; `None` is
    /// `/var/lib/taupe`.
    pub state_dir: Option<PathBuf>,
    /// Who wants to know when a peer falls silent; must not wait.
    pub notices: Option<Tell>,
}

/// A port whose connections all go to one host behind the tunnel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The host.
    pub target: Target,
}

/// `[BIND:]PORT:HOST:PORT`; BIND is an address, 127.0.0.1 if it is left out.
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
        parse().ok_or("write such as 8080:example.org:80 or [::1]:8080:[2001:db8::1]:80")
    }
}

/// Why a proxy could not be started. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Anybody in the network could use the tunnel.
    #[error(
        "{0} is not an address of this machine alone: anybody who reaches it could use the tunnel; \
         listen at 127.0.0.1 or [::1], or say with --auth-file who may"
    )]
    Open(SocketAddr),
    /// There is nothing that packets could come from.
    #[error("the file has no Address: the tunnel's other side would not know who asks; add one")]
    NoAddress,
    /// No host can have such an address.
    #[error("{0} is no address that a host can have; give another Address")]
    NotAHost(IpAddr),
    /// The MTU is too small.
    #[error("an MTU of {0} bytes is too small: it takes {MIN_MTU} at least; delete the line")]
    Mtu(usize),
    /// Somebody listens there already, or it is not this machine's.
    #[error(
        "cannot listen at {at}: {source}; another --socks5, --http or --forward address may do"
    )]
    Listen {
        /// Where.
        at: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The tunnel's port is taken.
    #[error(
        "UDP port {0} (ListenPort) is in use, perhaps by the same tunnel: take that down, or delete \
         the line, and the system chooses another one"
    )]
    PortTaken(u16),
    /// There can be no socket for the tunnel.
    #[error("cannot make a UDP socket: {0}")]
    Socket(#[source] io::Error),
    /// The system cannot tell what happens.
    #[error("cannot wait for events: {0}")]
    Events(#[source] io::Error),
    /// The peers are too many.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// Which peers must be post-quantum is not known.
    #[error(transparent)]
    PinnedPeers(#[from] Unreadable),
}

impl From<PrepareError> for StartError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::Update(error) => Self::Update(error),
            PrepareError::Unreadable(error) => Self::PinnedPeers(error),
        }
    }
}

/// A proxy that could not go on: the system does not tell what happens any more.
#[derive(Debug, thiserror::Error)]
#[error("waiting for events: {0}")]
pub struct RunError(#[source] io::Error);

impl Options {
    /// Finds what cannot be meant, before anything is begun.
    fn check(&self) -> Result<(), StartError> {
        let open = self.socks5.iter().chain(&self.http);
        let open = open
            .copied()
            .find(|at| !at.ip().to_canonical().is_loopback());
        if let (Some(at), None) = (open, &self.credentials) {
            return Err(StartError::Open(at));
        }
        let v4 = self.v4.map(IpAddr::V4);
        let v6 = self.v6.map(IpAddr::V6);
        if v4.is_none() && v6.is_none() {
            return Err(StartError::NoAddress);
        }
        let is_nobody = |address: &IpAddr| {
            let is_broadcast = *address == IpAddr::V4(Ipv4Addr::BROADCAST);
            address.is_unspecified() || address.is_multicast() || is_broadcast
        };
        if let Some(address) = [v4, v6].into_iter().flatten().find(is_nobody) {
            return Err(StartError::NotAHost(address));
        }
        if self.mtu < MIN_MTU {
            return Err(StartError::Mtu(self.mtu));
        }
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
