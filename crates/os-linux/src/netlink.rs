//! Network configuration by netlink: links, addresses, routes, rules, route lookup, sockets, and the
//! firewall table for a default route through a tunnel.
//!
//! Replaces the `ip`, `ss` and `nft` commands. [`Netlink`] makes blocking calls, and
//! [`NetworkReader`] those that change nothing. The other types are plain data, which can be compared
//! and written to a journal.

mod address;
mod client;
mod error;
mod filter;
mod firewall;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod generic;
mod link;
mod neighbour;
mod network_reader;
mod notifications;
mod route;
mod rule;
mod sock_diag;
mod socket;
#[cfg(test)]
mod tests;
mod tun_link;

pub use self::{
    address::Address,
    client::Netlink,
    error::NetlinkError,
    filter::{Filter, Hook},
    firewall::{Firewall, FirewallState, InterfaceMatch},
    generic::GenericFamily,
    link::{Link, Medium},
    network_reader::NetworkReader,
    route::{Route, RouteKind, RouteLookup, RouteQuery},
    rule::{Mark, Rule},
    sock_diag::{SockDiag, SocketId, SocketInfo},
};

pub(crate) use self::{
    notifications::{Notifications, RoutingGroup},
    route::lookup as lookup_route,
    socket::NetlinkSocket,
    tun_link::{TunLink, TunLookup},
};
