//! What there is between this machine and an endpoint.

use super::judge::{Hop, Way};
use rustix::io::Errno;
use std::net::IpAddr;
use taupe_net::system::System;

/// Looks at the way of datagrams with a mark, without sending any.
pub(super) fn look(endpoint: IpAddr, mark: u32) -> Way {
    let Ok(mut system) = System::open() else {
        return Way::Unknown;
    };
    let route = match system.route_to(endpoint, mark) {
        Ok(route) => route,
        Err(error) => {
            let errno = error.errno().map(Errno::from_raw_os_error);
            let is_missing = matches!(errno, Some(Errno::NETUNREACH | Errno::HOSTUNREACH));
            return if is_missing { Way::None } else { Way::Unknown };
        }
    };
    let hop = Hop {
        address: route.gateway.unwrap_or(endpoint),
        link: taupe_sys::interface::name(route.interface).unwrap_or_default(),
    };
    match system.neighbour_answers(route.interface, hop.address) {
        Ok(Some(true)) => Way::Answers(hop),
        Ok(Some(false)) => Way::Silent(hop),
        Ok(None) | Err(_) => Way::Unknown,
    }
}
