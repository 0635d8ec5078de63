//! UDP sockets with the device's mark.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::system;

/// Returns a UDP socket with a mark that is connected to `remote`. Sends nothing.
///
/// # Errors
/// The system's error, for example if there is no route.
pub fn connect(remote: SocketAddr, mark: u32) -> io::Result<UdpSocket> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    system::set_mark(&socket, mark)?;
    socket.connect(remote)?;
    Ok(socket)
}
