//! The UDP sockets of a tunnel's port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use taupe_os_windows::udp;
use tracing::debug;

/// Ports that are tried until both families have the same.
const TRIES: usize = 16;

/// Bytes of the longest datagram.
const LONGEST: usize = 1 << 16;

/// Datagrams that are taken from a socket at once.
const AT_ONCE: usize = 64;

/// They have the tunnel's port, so that nobody else has. Endpoints' first datagrams leave by
/// them, and what the packet filter does not see comes by them: from this machine itself, in
/// fragments, or by an adapter that the driver does not have.
pub(super) struct Sockets {
    pub(super) v4: UdpSocket,
    /// Where there is IPv6.
    pub(super) v6: Option<UdpSocket>,
    pub(super) port: u16,
    buffer: Box<[u8]>,
}

impl Sockets {
    /// Binds a port of both families; any for 0.
    pub(super) fn bind(port: u16) -> io::Result<Self> {
        let any = |address: IpAddr, port| udp::bind(SocketAddr::new(address, port));
        let mut tries = TRIES;
        loop {
            let v4 = any(Ipv4Addr::UNSPECIFIED.into(), port)?;
            let bound = v4.local_addr()?.port();
            let v6 = match any(Ipv6Addr::UNSPECIFIED.into(), bound) {
                Ok(socket) => Some(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    tries -= 1;
                    if port != 0 || tries == 0 {
                        return Err(error);
                    }
                    continue;
                }
                Err(error) => {
                    debug!(%error, "no IPv6");
                    None
                }
            };
            return Ok(Self {
                v4,
                v6,
                port: bound,
                buffer: vec![0; LONGEST].into(),
            });
        }
    }

    pub(super) fn send(&self, to: SocketAddr, message: &[u8]) {
        let socket = match to {
            SocketAddr::V4(_) => Some(&self.v4),
            SocketAddr::V6(_) => self.v6.as_ref(),
        };
        let Some(socket) = socket else {
            debug!(%to, "this system has no socket of that family");
            return;
        };
        // A datagram that is lost is sent again, or its sender is used to it.
        if let Err(error) = socket.send_to(message, to) {
            debug!(%to, %error, "sending failed");
        }
    }

    /// Gives what has come to `take`, a bounded number of datagrams; never waits.
    pub(super) fn receive(&mut self, take: &mut dyn FnMut(SocketAddr, &[u8])) {
        for socket in [Some(&self.v4), self.v6.as_ref()].into_iter().flatten() {
            for _ in 0..AT_ONCE {
                match socket.recv_from(&mut self.buffer) {
                    Ok((length, from)) => take(from, &self.buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // That an earlier datagram has reached nobody, for one. The next may be good.
                    Err(error) => debug!(%error, "receiving failed"),
                }
            }
        }
    }
}
