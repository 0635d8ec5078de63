//! The client for network configuration. Each sibling module implements the requests for one kind
//! of object.

use rustix::{io::Errno, net::netlink::NETFILTER};
use taupe_packet::ip::Family;

use super::{
    error::Result,
    socket::{Refusal, Socket},
};

/// Configures the network namespace that the calling thread was in when this
/// was opened. Changes need `CAP_NET_ADMIN`.
///
/// Adding an object that exists fails with `EEXIST`. Removing one that does not exist fails with
/// `ESRCH` for a route, `ENOENT` for a rule or a firewall table, `EADDRNOTAVAIL` for an address,
/// and `ENODEV` for a link.
#[derive(Debug)]
pub struct System {
    pub(super) route: Socket,
    /// An error if the kernel has no netfilter.
    pub(super) netfilter: std::result::Result<Socket, Errno>,
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

pub(super) fn number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

pub(super) fn family(number: u8) -> Option<Family> {
    Family::ALL
        .into_iter()
        .find(|&family| self::number(family) == number)
}

/// Returns true if the kernel accepts the name for an interface.
pub(super) fn is_interface_name(name: &str) -> bool {
    let forbidden =
        |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace() || c == '\x0b';
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && name != "."
        && name != ".."
        && !name.contains(forbidden)
}
