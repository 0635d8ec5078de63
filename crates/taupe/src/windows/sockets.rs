//! UDP sockets on a tunnel's port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use taupe_os_windows::udp;
use tracing::debug;

/// Number of ports that are tried until one is free in both address families.
const TRIES: usize = 16;

/// Length of the receive buffer in bytes, enough for any datagram.
const LONGEST: usize = 1 << 16;

/// Maximum number of datagrams that are received from a socket at once.
const AT_ONCE: usize = 64;

/// UDP sockets that reserve the tunnel's port. They send the first datagrams to endpoints, and
/// receive datagrams that the packet filter does not see: from this machine itself, in fragments,
/// or by an adapter that the driver does not have.
pub(super) struct Sockets {
    pub(super) v4: UdpSocket,
    /// `None` if the system has no IPv6.
    pub(super) v6: Option<UdpSocket>,
    pub(super) port: u16,
    buffer: Box<[u8]>,
}

impl Sockets {
    /// Binds a port of both address families. Port 0 means any port.
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
        // Lost handshake messages are sent again, and applications cope with lost data packets.
        if let Err(error) = socket.send_to(message, to) {
            debug!(%to, %error, "sending failed");
        }
    }

    /// Passes received datagrams to `take`, up to a limit. Does not block.
    pub(super) fn receive(&mut self, take: &mut dyn FnMut(SocketAddr, &[u8])) {
        for socket in [Some(&self.v4), self.v6.as_ref()].into_iter().flatten() {
            for _ in 0..AT_ONCE {
                match socket.recv_from(&mut self.buffer) {
                    Ok((length, from)) => take(from, &self.buffer[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // For example, an earlier datagram did not arrive. The next one may be valid.
                    Err(error) => debug!(%error, "receiving failed"),
                }
            }
        }
    }
}
