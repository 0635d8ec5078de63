//! The tunnel: the handle by which a program opens sockets.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use taupe_stack::address::Host;
use taupe_stack::failure::ConnectFailure;
use taupe_stack::limits::{ADDRESS_TIMEOUT, CONNECT_TIMEOUT};
use taupe_stack::settings::Addresses;

use crate::config::{Config, ConfigError};
use crate::connection::TcpStream;
use crate::error::{TunnelError, failed};
use crate::event_loop::{self, Started};
use crate::listener::TcpListener;
use crate::remote_control::{Command, RemoteControl};
use crate::status::TunnelState;
use crate::udp::UdpSocket;

/// A WireGuard tunnel.
///
/// Dropping it closes the tunnel with all its sockets: operations on them then fail with
/// [`ErrorKind::ConnectionAborted`], after `recv_from` has returned the datagrams that had arrived.
pub struct Tunnel {
    control: RemoteControl,
    addresses: Addresses,
    listen_port: Option<u16>,
    name_servers: Vec<IpAddr>,
}

impl Tunnel {
    /// Opens a tunnel: the text of a `wg-quick` file, a parsed [`File`](taupe_config::file::File), or
    /// a [`Config`].
    ///
    /// The tunnel is ready when this returns. The handshake starts with the first packet, or
    /// at once if a peer has `PersistentKeepalive`. [`Tunnel::state`] shows the latest handshake.
    ///
    /// # Errors
    ///
    /// [`TunnelError`]
    pub async fn connect<C: TryInto<Config>>(config: C) -> Result<Self, TunnelError>
    where
        ConfigError: From<C::Error>,
    {
        let config = config.try_into().map_err(ConfigError::from)?;
        let Started {
            control,
            addresses,
            listen_port,
            name_servers,
        } = event_loop::start(config).await?;
        Ok(Self {
            control,
            addresses,
            listen_port,
            name_servers,
        })
    }

    /// Connects to a host. A packet's source is the `Address` of the same family.
    ///
    /// This waits for the handshake of the tunnel, if there is no session, and for the host, at
    /// most [`CONNECT_TIMEOUT`] (15 s) together. Dropping the future ends the attempt.
    ///
    /// # Errors
    ///
    /// An error with a kind of the [table](crate#errors).
    pub async fn connect_tcp(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        self.attempt(remote, CONNECT_TIMEOUT).await
    }

    /// Connects to a host by name or address. The tunnel's name servers look the name up, and its
    /// addresses are tried in turn, IPv6 and IPv4 alternately, for 4 s each. After the look-up, all
    /// together take at most [`CONNECT_TIMEOUT`] (15 s).
    ///
    /// # Errors
    ///
    /// As [`Tunnel::connect_tcp`]: the error of the last address that was tried. Also those of
    /// [`Tunnel::look_up`].
    pub async fn connect_host(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let addresses = self.look_up(host).await?;
        let until = Instant::now() + CONNECT_TIMEOUT;
        let mut error = failed(ConnectFailure::NoAddress);
        let mut remaining = addresses.into_iter().peekable();
        while let Some(address) = remaining.next() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let within = match remaining.peek() {
                Some(_) => left.min(ADDRESS_TIMEOUT),
                None => left,
            };
            match self.attempt(SocketAddr::new(address, port), within).await {
                Ok(stream) => return Ok(stream),
                Err(failure) => error = failure,
            }
        }
        Err(error)
    }

    async fn attempt(&self, remote: SocketAddr, within: Duration) -> io::Result<TcpStream> {
        if remote.port() == 0 {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "no host has port 0",
            ));
        }
        let connect = |reply| Command::Connect {
            remote,
            within,
            reply,
        };
        self.control.ask(connect).await?.map_err(failed)
    }

    /// Looks a name up by the tunnel's name servers. An address is its own result. IPv6 and IPv4
    /// addresses alternate, and families without an `Address` are left out. Results are cached for
    /// their TTL. A look-up takes at most 24 s: four queries, each 2 s by UDP and, if the response is
    /// truncated, 4 s by TCP.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for text that is no name, and those of the [table](crate#errors)
    /// that are about names.
    pub async fn look_up(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        match Host::new(host) {
            Some(Host::Address(address)) => Ok(vec![address]),
            Some(Host::Name(name)) => {
                let look_up = |reply| Command::LookUp { name, reply };
                self.control.ask(look_up).await?.map_err(failed)
            }
            None => Err(io::Error::new(
                ErrorKind::InvalidInput,
                "no host has this name",
            )),
        }
    }

    /// Listens for connections from the tunnel, at this port of all the tunnel's addresses.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for port 0, [`ErrorKind::AddrInUse`] if the tunnel has a listener at
    /// this port, [`ErrorKind::ResourceBusy`] if it has 1024.
    pub async fn listen_tcp(&self, port: u16) -> io::Result<TcpListener> {
        let listen = |reply| Command::Listen { port, reply };
        self.control.ask(listen).await?
    }

    /// Opens a UDP socket at this port of all the tunnel's addresses; 0 selects a free port from
    /// 32768. It receives datagrams from every sender.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AddrInUse`] if the tunnel has a socket at this port, [`ErrorKind::ResourceBusy`] if
    /// it has 1024 or no free port is found.
    pub async fn bind_udp(&self, port: u16) -> io::Result<UdpSocket> {
        let bind = |reply| Command::BindUdp { port, reply };
        self.control.ask(bind).await?
    }

    /// Returns the state of the peers.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ConnectionAborted`] if the tunnel's thread has ended, because waiting for the
    /// system's events has failed.
    pub async fn state(&self) -> io::Result<TunnelState> {
        self.control.ask(|reply| Command::State { reply }).await
    }

    /// Returns this side's addresses in the tunnel, at most one of each family.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let Addresses { v4, v6 } = self.addresses;
        v4.map(IpAddr::V4).into_iter().chain(v6.map(IpAddr::V6))
    }

    /// Returns the UDP port from which the tunnel sends, or `None` if the system does not report
    /// it.
    #[must_use]
    pub fn listen_port(&self) -> Option<u16> {
        self.listen_port
    }

    /// Returns the name servers in use: those in `DNS` to which the tunnel routes.
    #[must_use]
    pub fn name_servers(&self) -> &[IpAddr] {
        &self.name_servers
    }

    /// Closes the tunnel: resets all connections, closes all sockets, and erases the keys. Data that
    /// connections have not sent yet is lost; to send it, shut them down and read them to their end
    /// before. When this returns, the UDP sockets are closed.
    pub async fn close(self) {
        // An error means that the thread has ended already.
        let close = |reply| Command::Close { reply: Some(reply) };
        let _ = self.control.ask(close).await;
    }
}
