//! The path from this machine to an endpoint.

use super::findings::{EndpointPath, NextHop};
use rustix::io::Errno;
use std::net::IpAddr;
use taupe_os_linux::netlink::{Medium, Netlink, NetlinkError};

/// Looks up the path of datagrams with a mark, without sending any. If handshakes are `unanswered`,
/// checks the next hop too.
pub(super) fn look_up(endpoint: IpAddr, mark: u32, unanswered: bool) -> EndpointPath {
    let look_up = || look_up_with(&mut Netlink::open()?, endpoint, mark, unanswered);
    look_up().unwrap_or(EndpointPath::Unknown)
}

fn look_up_with(
    system: &mut Netlink,
    endpoint: IpAddr,
    mark: u32,
    unanswered: bool,
) -> Result<EndpointPath, NetlinkError> {
    let route = match system.route_to(endpoint, mark) {
        Ok(route) => route,
        Err(error) => {
            let errno = error.errno().map(Errno::from_raw_os_error);
            return match errno {
                // The kernel returns the last two for `prohibit` and `blackhole` routes.
                Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => {
                    let mut down = system.links_without_carrier()?;
                    down.retain(|link| link.medium != Medium::Loopback);
                    let down = down.into_iter().map(|link| link.name).collect();
                    Ok(EndpointPath::NoRoute { down })
                }
                _ => Err(error),
            };
        }
    };
    let mut down = system.links_without_carrier()?.into_iter();
    if let Some(link) = down.find(|link| link.index == route.interface) {
        return Ok(EndpointPath::NoCarrier { link: link.name });
    }
    if !unanswered {
        return Ok(EndpointPath::Unknown);
    }
    let hop = NextHop {
        address: route.gateway.unwrap_or(endpoint),
        link: taupe_os_linux::interface::name(route.interface).unwrap_or_default(),
    };
    Ok(
        match system.is_neighbour_reachable(route.interface, hop.address)? {
            Some(true) => EndpointPath::NextHopAnswers(hop),
            Some(false) => EndpointPath::NextHopSilent(hop),
            None => EndpointPath::Unknown,
        },
    )
}
