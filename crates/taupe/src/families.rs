//! Families of addresses that chosen applications cannot use from here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taupe_config::destinations::Class;
use taupe_config::prefix::Prefix;
use taupe_net::system::System;

/// Addresses for documentation (RFC 5737, RFC 9637): a route there is a route to
/// wherever there is no other.
const BEYOND: [(&str, IpAddr); 2] = [
    ("IPv4", IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))),
    (
        "IPv6",
        IpAddr::V6(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 1)),
    ),
];

/// A sentence for each family that the tunnel has for chosen applications, and that
/// has no route from here.
pub(crate) fn without_route(destinations: &[(Prefix, Class)]) -> Vec<String> {
    let Ok(mut system) = System::open() else {
        return Vec::new();
    };
    let mut wanted = BEYOND.to_vec();
    wanted.retain(|(_, address)| {
        destinations.iter().any(|(network, class)| {
            *class == Class::Tunnel && network.address().is_ipv4() == address.is_ipv4()
        })
    });
    wanted.retain(|(_, address)| system.route_to(*address, 0).is_err());
    wanted
        .into_iter()
        .map(|(family, _)| {
            format!(
                "there is no route to {family} from here, and without one chosen applications do \
                 not reach it through the tunnel either (adapter mode does)"
            )
        })
        .collect()
}
