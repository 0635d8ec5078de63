//! The client for network configuration. Each sibling module implements the requests for one kind
//! of object.

use rustix::{io::Errno, net::netlink::NETFILTER};
use taupe_packet::ip::Family;

use super::{error::Result, socket::NetlinkSocket};

/// Client that configures the network namespace that the calling thread was in when the client was
/// opened. Changes need `CAP_NET_ADMIN`.
///
/// Adding an object that exists fails with `EEXIST`. Removing one that does not exist fails with
/// `ESRCH` for a route, `ENOENT` for a rule or a firewall table, `EADDRNOTAVAIL` for an address,
/// and `ENODEV` for a link.
#[derive(Debug)]
pub struct Netlink {
    pub(super) rtnetlink: NetlinkSocket,
    /// An error if the kernel has no netfilter.
    pub(super) netfilter: std::result::Result<NetlinkSocket, Errno>,
}

impl Netlink {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let rtnetlink = NetlinkSocket::open(None);
        let rtnetlink = rtnetlink.map_err(|error| error.context("open a netlink socket"))?;
        let netfilter = NetlinkSocket::open(Some(NETFILTER))
            .map_err(|error| error.errno().unwrap_or(Errno::PROTONOSUPPORT));
        Ok(Self {
            rtnetlink,
            netfilter,
        })
    }
}

/// Returns the number of a family (`AF_INET`, `AF_INET6`).
pub(super) fn address_family(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

/// Returns the family of a number (`AF_*`); `None` for families other than IPv4 and IPv6.
pub(super) fn parse_family(number: u8) -> Option<Family> {
    Family::ALL
        .into_iter()
        .find(|&family| address_family(family) == number)
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
