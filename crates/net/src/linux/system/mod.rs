//! The network's configuration, over netlink.

mod address;
mod connection;
mod filter;
mod firewall;
mod generic;
mod link;
mod neighbour;
mod route;
mod rule;
mod socket;
#[cfg(test)]
mod tests;

use rustix::{io::Errno, net::netlink::NETFILTER};

pub use self::connection::Connections;
pub use self::generic::Generic;
use self::socket::{Plain, Refusal, Socket};
use crate::system::{Family, SystemError};

type Result<T> = std::result::Result<T, SystemError>;

/// Configures the network namespace that the calling thread was in when this
/// was opened. Changes need `CAP_NET_ADMIN`.
///
/// What exists already is not added again (`EEXIST`), and removing what is not
/// there fails: `ESRCH` for a route, `ENOENT` for a rule or a firewall table,
/// `EADDRNOTAVAIL` for an address, `ENODEV` for a link.
#[derive(Debug)]
pub struct System {
    route: Socket,
    /// Not to be had from a kernel without netfilter.
    netfilter: std::result::Result<Socket, Errno>,
}

impl System {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let route =
            Socket::open(None).map_err(|error| Refusal::from(error).of("open a netlink socket"))?;
        let netfilter = Socket::open(Some(NETFILTER))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PROTONOSUPPORT));
        Ok(Self { route, netfilter })
    }
}

/// The family's number.
fn number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => libc::AF_INET as u8,
        Family::Ipv6 => libc::AF_INET6 as u8,
    }
}

/// The family of this number.
fn family(number: u8) -> Option<Family> {
    Family::ALL
        .into_iter()
        .find(|&family| self::number(family) == number)
}

/// Whether the kernel would take it for an interface's name.
fn is_interface_name(name: &str) -> bool {
    let forbidden =
        |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace() || c == '\x0b';
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && name != "."
        && name != ".."
        && !name.contains(forbidden)
}
