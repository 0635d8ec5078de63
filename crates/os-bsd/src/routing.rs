//! Routing sockets (`PF_ROUTE`): requests, replies, notifications, and the tables that `sysctl`
//! returns in the same format.
//!
//! A message is a header, whose type depends on the message, and socket addresses in the order of
//! the bits of a mask. Sources: `sys/net/route.h`, `sys/net/rtsock.c` and `sbin/route/route.c` of
//! FreeBSD, `bsd/net/route.h` and `bsd/net/rtsock.c` of Apple's xnu.
//!
//! The routing table of FreeBSD that a request changes (its FIB) is a property of the socket
//! ([`SET_FIB`](crate::socket_option::SET_FIB)), and for a listing an element of the `sysctl` name
//! ([`listing`]). No message contains it.

mod decode;
mod encode;
mod notification;
#[cfg(any(target_os = "freebsd", target_os = "macos"))]
mod socket;
mod table;

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub use self::socket::{RoutingSocket, read_listing};
pub use self::{
    decode::{DecodeError, Messages, messages},
    encode::{EncodeError, encode, encode_lookup},
    notification::{
        Change, LookupReply, Notification, lookup_reply, may_have_overflowed, recheck_interval,
    },
    table::{Listing, Table, listing},
};

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{
    layout::{IFF_LOOPBACK, IFF_POINTOPOINT, IFF_RUNNING, IFF_UP, RTF_LLINFO, RTF_STATIC, RTF_UP},
    socket_address::ZonedAddress,
};

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The destination network, without host bits.
    pub destination: IpNet,
    /// The index of the interface of a link-local destination, otherwise 0.
    pub zone: u16,
    /// The next hop.
    pub next_hop: NextHop,
    /// The interface to which a socket must be bound for the route to apply (`RTF_IFSCOPE`, macOS
    /// only). macOS has one unscoped default route, and a scoped one for each further interface.
    pub scope: Option<u16>,
}

/// The next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextHop {
    /// A router. FreeBSD permits an IPv6 router for an IPv4 destination (RFC 8950).
    Gateway(ZonedAddress),
    /// The destination is reachable directly through the interface with this index.
    Interface(u16),
    /// Packets are dropped without an error to their sender (`RTF_BLACKHOLE`).
    Blackhole,
    /// Packets are dropped with an error to their sender (`RTF_REJECT`).
    Reject,
    /// Not specified, which only the request to delete a route permits.
    Unspecified,
}

/// A change of the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteChange {
    /// `RTM_ADD`. The kernel refuses it with `EEXIST` if there is such a route. macOS permits one next
    /// hop for a destination; FreeBSD adds another one if `net.route.multipath` is set.
    Add,
    /// `RTM_DELETE`. The kernel refuses it with `ESRCH` if there is no such route.
    Delete,
    /// `RTM_CHANGE`. The kernel refuses it with `ESRCH` if there is no such route.
    Change,
}

/// A route with its properties in the kernel's table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteEntry {
    /// The route.
    pub route: Route,
    /// The index of the outgoing interface; 0 if the message does not contain it.
    pub interface: u16,
    /// The address that the kernel gives to packets without a source address.
    pub source: Option<ZonedAddress>,
    /// The path's MTU in bytes, if there is one.
    pub mtu: Option<u32>,
    /// `RTF_*`.
    pub flags: u32,
}

impl RouteEntry {
    /// Returns true if the kernel uses the route.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.flags & RTF_UP != 0
    }

    /// Returns true if a program or an administrator added the route.
    #[must_use]
    pub const fn is_static(&self) -> bool {
        self.flags & RTF_STATIC != 0
    }

    /// Returns true if the route is an entry of the ARP or neighbour cache, which macOS keeps in its
    /// routing table.
    #[must_use]
    pub const fn is_neighbour(&self) -> bool {
        self.flags & RTF_LLINFO != 0
    }
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface {
    /// The index, never 0.
    pub index: u16,
    /// The name. Notifications do not contain it.
    pub name: Option<String>,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// The kind of link (`IFT_*`).
    pub medium: u8,
    /// The Ethernet address.
    pub ethernet: Option<[u8; 6]>,
    /// `IFF_*`.
    pub flags: u32,
}

impl Interface {
    /// Returns true if the interface is administratively up.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Returns true if the driver is ready to transfer packets.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.flags & IFF_RUNNING != 0
    }

    /// Returns true if packets return to this host.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK != 0
    }

    /// Returns true if the link has two ends, as that of a utun device.
    #[must_use]
    pub const fn is_point_to_point(&self) -> bool {
        self.flags & IFF_POINTOPOINT != 0
    }
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceAddress {
    /// The interface's index.
    pub interface: u16,
    /// The address with the length of its network; host bits are kept.
    pub network: IpNet,
    /// The broadcast address, or the address of the link's other end.
    pub peer: Option<IpAddr>,
}

/// A reply or notification.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A route changed, or the reply to such a request. If the request failed, the reply repeats the
    /// requested route.
    RouteChanged(RouteChange, RouteEntry, Request),
    /// The reply to a lookup, or a line of a listing (`RTM_GET`).
    Route(RouteEntry, Request),
    /// A message about a route that is neither IPv4 nor IPv6, or whose netmask is not a prefix.
    OtherRoute(Request),
    /// An interface changed, or a line of a listing (`RTM_IFINFO`).
    Interface(Interface),
    /// An interface got an address, or a line of a listing (`RTM_NEWADDR`).
    AddressAdded(InterfaceAddress),
    /// An interface lost an address (`RTM_DELADDR`).
    AddressRemoved(InterfaceAddress),
    /// An interface was created (`RTM_IFANNOUNCE`, FreeBSD only).
    InterfaceArrived(u16, String),
    /// An interface was deleted (`RTM_IFANNOUNCE`, FreeBSD only).
    InterfaceDeparted(u16, String),
    /// Another message, by its number.
    Other(u8),
}

/// The request that a message about a route answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The process that made the request, or 0.
    pub process: i32,
    /// The sequence number of the request.
    pub sequence: i32,
    /// The error number of a failed request, otherwise 0.
    pub error: i32,
}
