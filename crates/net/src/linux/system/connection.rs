//! Sockets that are ended from outside (`linux/sock_diag.h`, `linux/inet_diag.h`).

use rustix::net::netlink::SOCK_DIAG;

use super::{
    Plain, Result, number,
    socket::{Refusal, Socket},
};
use crate::system::Connection;

const SOCK_DESTROY: u16 = 21;

/// Ends connections of the network namespace that the calling thread was in when
/// this was opened. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Connections {
    socket: Socket,
}

impl Connections {
    /// Opens a socket for it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let socket = Socket::open(Some(SOCK_DIAG));
        let socket = socket.map_err(|error| Refusal::from(error).of("open a netlink socket"))?;
        Ok(Self { socket })
    }

    /// Ends one: its program is told `ECONNABORTED`, the other end of a TCP connection
    /// gets a reset.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENOENT` if it has ended already, or when others have the same
    /// addresses and ports; `EOPNOTSUPP` without `CONFIG_INET_DIAG_DESTROY`.
    pub fn end(&mut self, connection: &Connection) -> Result<()> {
        let body = request(connection);
        let request = Plain {
            kind: SOCK_DESTROY,
            flags: 0,
            body: &body,
        };
        let ended = self.socket.ask(&request, |_| ());
        ended.map_err(|refusal| refusal.of("end a connection"))
    }
}

/// `struct inet_diag_req_v2`.
fn request(connection: &Connection) -> Vec<u8> {
    let mut body = vec![number(connection.family), connection.protocol, 0, 0];
    // Whatever its state.
    body.extend(u32::MAX.to_ne_bytes());
    for port in connection.ports {
        body.extend(port.to_be_bytes());
    }
    for address in connection.addresses {
        body.extend(address);
    }
    body.extend(connection.interface.to_ne_bytes());
    // The lower half first, on every machine.
    body.extend((connection.cookie as u32).to_ne_bytes());
    body.extend(((connection.cookie >> 32) as u32).to_ne_bytes());
    body
}
