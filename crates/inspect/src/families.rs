//! Address families that selected applications cannot use, because the uplinks have no route for
//! them.

use ipnet::IpNet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taupe_config::destinations::Class;
use taupe_os_linux::netlink::Netlink;

/// Documentation addresses (RFC 5737, RFC 9637). No specific route should match them, so a route
/// for them is a default route.
const PROBE_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1)),
];

/// An address family that has no route from here.
pub struct MissingRoute {
    family: &'static str,
    /// True if `net.ipv6.conf.default.disable_ipv6` is set, which also applies to adapter mode.
    pub is_disabled: bool,
}

impl fmt::Display for MissingRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family;
        match self.is_disabled {
            true => write!(
                f,
                "{family} is switched off on this system: selected applications cannot use it, \
                 not even through the tunnel"
            ),
            false => write!(
                f,
                "there is no route to {family} from here, so selected applications cannot use it \
                 through the tunnel either; adapter mode needs no such route (`taupe up --adapter`)"
            ),
        }
    }
}

/// Returns the address families that the tunnel carries for selected applications but that have no
/// route from here.
#[must_use]
pub fn families_without_route(destinations: &[(IpNet, Class)]) -> Vec<MissingRoute> {
    let Ok(mut system) = Netlink::open() else {
        return Vec::new();
    };
    let mut wanted = PROBE_ADDRESSES.to_vec();
    wanted.retain(|address| {
        destinations.iter().any(|(network, class)| {
            *class == Class::Tunnel && network.addr().is_ipv4() == address.is_ipv4()
        })
    });
    wanted.retain(|address| system.route_to(*address, 0).is_err());
    wanted.into_iter().map(describe).collect()
}

/// Returns the missing route that keeps a selected application's packets to an address out of the
/// tunnel.
#[must_use]
pub(crate) fn missing_route(address: IpAddr) -> Option<MissingRoute> {
    let route = Netlink::open().ok()?.route_to(address, 0);
    route.is_err().then(|| describe(address))
}

#[cfg(test)]
impl MissingRoute {
    pub(crate) fn ipv6(is_disabled: bool) -> Self {
        let family = "IPv6";
        Self {
            family,
            is_disabled,
        }
    }
}

fn describe(address: IpAddr) -> MissingRoute {
    let is_ipv4 = address.is_ipv4();
    MissingRoute {
        family: if is_ipv4 { "IPv4" } else { "IPv6" },
        is_disabled: !is_ipv4 && taupe_adapter::is_ipv6_off(),
    }
}
