#![forbid(unsafe_code)]
//! A WireGuard tunnel inside a program. Its TCP and UDP sockets work like tokio's. A TCP/IP stack in
//! this process carries their traffic through the tunnel. No privileges are needed, and no interface,
//! route or name server of the system changes.
//!
//! ```no_run
//! use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//!
//! # async fn get() -> Result<(), Box<dyn std::error::Error>> {
//! let tunnel = taupe_tunnel::Tunnel::connect(
//!     "[Interface]
//!      PrivateKey = 8OHQkKGHAWVSNtP5+c2njO6w62+hDDNO8xEjYosYlk4=
//!      Address = 10.0.0.2/32
//!      DNS = 10.0.0.1
//!      [Peer]
//!      PublicKey = huQeMuAJwh6WtmhP3X23ReLesVHO2MRrWByccUSN3QQ=
//!      Endpoint = vpn.example.org:51820
//!      AllowedIPs = 0.0.0.0/0",
//! )
//! .await?;
//! let mut stream = tunnel.connect_host("intranet.example.org", 80).await?;
//! stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! tunnel.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Structure
//!
//! ```text
//! TcpStream, UdpSocket, … ─► shared buffers ◄─► thread "taupe-tunnel" ─► taupe_stack ─► UDP
//!          └──── commands, wake-up ─────────────┘        └─ wakers ─► tasks
//! ```
//!
//! A tunnel has one thread, which waits for its UDP sockets and drives `taupe_stack::net::Net`. A
//! task reads and writes a connection's buffers under that connection's lock, and wakes the thread. The
//! thread holds this lock while it sends the connection's segments, at most one send window. The handles work on every runtime that polls
//! futures; no reactor of tokio is needed.
//!
//! # Configuration
//!
//! The text is a file of `wg-quick` with Taupe's keys for hybrid post-quantum handshakes
//! (`PqPrivateKey`, `PqPublicKey`, `PostQuantum`). Keys may not be in files (`file:`), unless the
//! program parses the file itself ([`taupe_config::file::parse_with`]). These have no effect:
//! `Table`, `FwMark`, `PreUp` and other commands, `SaveConfig`, `Lanes`, search domains in `DNS`, and
//! the keys about applications. The first `Address` of each family is used.
//!
//! Names of endpoints are looked up by the system's resolver, in a thread, until there is an
//! address. [`Config::state_dir`] sets the folder for state that outlasts a tunnel.
//!
//! # Memory and limits
//!
//! | resource | limit | when it is reached |
//! |---|---|---|
//! | TCP connections, including closing ones | 4096 | [`ErrorKind::ResourceBusy`] |
//! | TCP connections, for listeners | 3072 | new SYNs are dropped |
//! | buffers of a connection | 64 KiB to 2112 KiB, a quarter of what exceeds 64 KiB for sending | writes wait; the window closes for the sender |
//! | buffers of all connections | 256 MiB, and 64 KiB for each connection | further connections get 64 KiB |
//! | connections of a listener that wait for [`TcpListener::accept`] | 128 | SYNs are dropped, so the sender tries again |
//! | half-open connections of all listeners, for 7 s each | 8192, without buffers | the oldest is dropped |
//! | listeners, UDP sockets | 1024 each | [`ErrorKind::ResourceBusy`] |
//! | received datagrams of a UDP socket | 256 KiB | newer ones are dropped ([`UdpSocket::dropped`]) |
//! | sent datagrams of a UDP socket | 64 KiB | [`UdpSocket::send_to`] waits |
//! | incomplete fragmented packets | 1 MiB | the oldest is dropped |
//! | look-ups | 1024 | [`ErrorKind::ResourceBusy`] |
//!
//! The system commits pages of buffers when they are used.
//!
//! # Errors
//!
//! Operations on sockets return [`std::io::Error`] with these kinds:
//!
//! | kind | reason |
//! |---|---|
//! | [`ErrorKind::NetworkUnreachable`] | no `AllowedIPs` or no `Address` for the destination, or a router reports it |
//! | [`ErrorKind::HostUnreachable`] | a router reports it |
//! | [`ErrorKind::ConnectionRefused`] | the host refuses the connection |
//! | [`ErrorKind::TimedOut`] | the tunnel's peer, the host or the name servers do not answer |
//! | [`ErrorKind::ConnectionReset`] | the other side has reset the connection |
//! | [`ErrorKind::BrokenPipe`] | a write after `AsyncWriteExt::shutdown` or after a reset |
//! | [`ErrorKind::ConnectionAborted`] | the tunnel is closed |
//! | [`ErrorKind::NotFound`], [`ErrorKind::AddrNotAvailable`] | the name does not exist, or has no address that the tunnel routes |
//! | [`ErrorKind::Unsupported`] | a name, and no name server in `DNS` to which the tunnel routes |
//! | [`ErrorKind::AddrInUse`], [`ErrorKind::ResourceBusy`] | the port is taken, or a limit is reached |
//! | [`ErrorKind::InvalidInput`] | no host name, port 0, or a datagram longer than the MTU allows |
//!
//! [`ErrorKind::NetworkUnreachable`]: std::io::ErrorKind::NetworkUnreachable
//! [`ErrorKind::HostUnreachable`]: std::io::ErrorKind::HostUnreachable
//! [`ErrorKind::ConnectionRefused`]: std::io::ErrorKind::ConnectionRefused
//! [`ErrorKind::TimedOut`]: std::io::ErrorKind::TimedOut
//! [`ErrorKind::ConnectionReset`]: std::io::ErrorKind::ConnectionReset
//! [`ErrorKind::BrokenPipe`]: std::io::ErrorKind::BrokenPipe
//! [`ErrorKind::ConnectionAborted`]: std::io::ErrorKind::ConnectionAborted
//! [`ErrorKind::NotFound`]: std::io::ErrorKind::NotFound
//! [`ErrorKind::AddrNotAvailable`]: std::io::ErrorKind::AddrNotAvailable
//! [`ErrorKind::Unsupported`]: std::io::ErrorKind::Unsupported
//! [`ErrorKind::AddrInUse`]: std::io::ErrorKind::AddrInUse
//! [`ErrorKind::ResourceBusy`]: std::io::ErrorKind::ResourceBusy
//! [`ErrorKind::InvalidInput`]: std::io::ErrorKind::InvalidInput
//!
//! # Publication
//!
//! The stack needs smoltcp with a patch of its TCP that no release has (`vendor/README.md`). A
//! published crate cannot depend on a patched one, so this crate is not on crates.io. A program
//! that depends on it by git or path must select the patched smoltcp in its own `Cargo.toml`
//! (`[patch.crates-io]`): patches apply only from the root of a workspace. Without it everything
//! works, but a connection whose receiver closes its window can stop for ever.

mod config;
mod connection;
mod error;
mod event_loop;
mod listener;
mod remote_control;
mod signals;
mod status;
mod tunnel;
mod udp;

pub use config::{Config, ConfigError};
pub use connection::TcpStream;
pub use error::TunnelError;
pub use listener::TcpListener;
pub use status::{PeerState, TunnelState};
pub use taupe_protocol::key::PublicKey;
pub use taupe_stack::OpenError;
pub use taupe_stack::keepalive::Keepalive;
pub use taupe_stack::limits::CONNECT_TIMEOUT;
pub use tunnel::Tunnel;
pub use udp::UdpSocket;
