//! Routes of a tunnel.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_os_bsd::routing::{NextHop, Route};
use taupe_os_bsd::socket_address::ZonedAddress;

/// The next hop of a route that a tunnel adds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Hop {
    /// The tunnel's interface.
    Tunnel,
    /// A router.
    Gateway {
        /// Its address.
        address: IpAddr,
        /// The index of the interface of a link-local address, otherwise 0.
        zone: u16,
    },
    /// The destination is on the link of another interface.
    Link {
        /// The interface's index.
        index: u16,
        /// Its name.
        name: String,
    },
    /// Packets are refused with an error.
    Reject,
}

/// A route that a tunnel adds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TunnelRoute {
    /// The destination, without host bits.
    pub destination: IpNet,
    /// The next hop.
    pub hop: Hop,
    /// FreeBSD's FIB, if it is not that of the process.
    pub fib: Option<u32>,
}

impl TunnelRoute {
    /// Returns a route in the table of the process.
    #[must_use]
    pub const fn new(destination: IpNet, hop: Hop) -> Self {
        Self {
            destination,
            hop,
            fib: None,
        }
    }

    /// Returns true if the kernel deletes the route together with the tunnel's interface.
    #[must_use]
    pub fn ends_with_device(&self) -> bool {
        self.hop == Hop::Tunnel
    }

    /// Returns the route as the kernel takes it. `tunnel` is the index of the tunnel's interface.
    #[must_use]
    pub fn for_kernel(&self, tunnel: u16) -> Route {
        Route {
            destination: self.destination,
            zone: 0,
            next_hop: match &self.hop {
                Hop::Tunnel => NextHop::Interface(tunnel),
                Hop::Gateway { address, zone } => NextHop::Gateway(ZonedAddress {
                    ip: *address,
                    zone: *zone,
                }),
                Hop::Link { index, .. } => NextHop::Interface(*index),
                Hop::Reject => NextHop::Reject,
            },
            scope: None,
        }
    }

    /// Returns the command that adds or deletes the route; `verb` is `add` or `delete`.
    #[must_use]
    pub fn command<'a>(&'a self, verb: &'a str, device: &'a str) -> impl fmt::Display + 'a {
        RouteCommand {
            route: self,
            verb,
            device,
        }
    }
}

/// A command of route(8).
struct RouteCommand<'a> {
    route: &'a TunnelRoute,
    verb: &'a str,
    device: &'a str,
}

impl fmt::Display for RouteCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TunnelRoute {
            destination,
            hop,
            fib,
        } = self.route;
        let (family, loopback) = match destination {
            IpNet::V4(_) => ("-inet", "127.0.0.1"),
            IpNet::V6(_) => ("-inet6", "::1"),
        };
        write!(f, "route -q -n {} {family}", self.verb)?;
        if let Some(fib) = fib {
            write!(f, " -fib {fib}")?;
        }
        if destination.prefix_len() == destination.max_prefix_len() {
            write!(f, " {}", destination.addr())?;
        } else {
            write!(f, " {destination}")?;
        }
        match hop {
            Hop::Tunnel => write!(f, " -interface {}", self.device),
            Hop::Gateway { address, .. } => write!(f, " -gateway {address}"),
            Hop::Link { name, .. } => write!(f, " -interface {name}"),
            Hop::Reject => write!(f, " {loopback} -reject"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_that_of_route_8() {
        let route = |destination: &str, hop| TunnelRoute::new(destination.parse().unwrap(), hop);
        let gateway = Hop::Gateway {
            address: "192.0.2.1".parse().unwrap(),
            zone: 0,
        };
        let link = Hop::Link {
            index: 1,
            name: "em0".to_owned(),
        };
        let fib = TunnelRoute {
            fib: Some(2),
            ..route("10.0.0.0/8", Hop::Tunnel)
        };
        for (route, expected) in [
            (
                route("0.0.0.0/1", Hop::Tunnel),
                "-inet 0.0.0.0/1 -interface wg0",
            ),
            (route("::/1", Hop::Reject), "-inet6 ::/1 ::1 -reject"),
            (
                route("203.0.113.9/32", gateway),
                "-inet 203.0.113.9 -gateway 192.0.2.1",
            ),
            (
                route("192.0.2.1/32", link),
                "-inet 192.0.2.1 -interface em0",
            ),
            (fib, "-inet -fib 2 10.0.0.0/8 -interface wg0"),
        ] {
            let command = route.command("add", "wg0").to_string();
            assert_eq!(command, format!("route -q -n add {expected}"));
        }
    }
}
