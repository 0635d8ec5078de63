//! The state of the network before a tunnel is planned.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use taupe_os_linux::netlink::{Link, NetlinkError, Route, Rule};

use super::{Linux, special};
use crate::change::{Change, LAST_METRIC};
use crate::plan::Snapshot;
use crate::tables;

/// This file exists if the kernel has IPv6.
const IPV6: &str = "/proc/thread-self/net/if_inet6";

/// Set if new interfaces have no IPv6.
const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";

/// Returns true if new interfaces have no IPv6: it is switched off, or the kernel has none.
#[must_use]
pub fn is_ipv6_off() -> bool {
    !fs::read_to_string(NO_IPV6).is_ok_and(|off| off.trim() == "0")
}

impl Linux<'_> {
    /// Lists the network without the objects that `own` created.
    pub(super) fn snapshot(&mut self, own: &[Change]) -> Result<Snapshot, NetlinkError> {
        let index = self.link()?.map(|link| link.index);
        let is_own = |interface: u32| Some(interface) == index;
        let own_route = |route: &Route| {
            route.interface.is_some_and(is_own)
                || own.iter().any(|change| match change {
                    Change::Unreachable { destination, table } => {
                        *route == Route::unreachable(*destination, LAST_METRIC, *table)
                    }
                    Change::Special {
                        kind,
                        destination,
                        table,
                    } => *route == special(*kind, *destination, *table),
                    _ => false,
                })
        };
        let own_rule = |rule: &Rule| {
            own.iter()
                .any(|c| matches!(c, Change::Rule(own) if own == rule))
        };
        let mut snapshot = Snapshot {
            links: self.system.links()?,
            addresses: self.system.addresses()?,
            routes: self.system.routes()?,
            rules: self.system.rules()?,
            table_names: tables::names(Path::new("/")),
            ipv6: Path::new(IPV6).exists(),
            ipv6_on_interfaces: !is_ipv6_off(),
            ..Snapshot::default()
        };
        snapshot.links.retain(|link| !is_own(link.index));
        snapshot
            .addresses
            .retain(|address| !is_own(address.interface));
        snapshot.routes.retain(|route| !own_route(route));
        snapshot.rules.retain(|rule| !own_rule(rule));
        Ok(snapshot)
    }

    /// Returns the smallest MTU on the path of a datagram with a mark to an address, or `None` if
    /// it is unknown.
    ///
    /// # Errors
    /// The kernel's, if there is no route.
    pub(super) fn path_mtu(
        &mut self,
        destination: IpAddr,
        mark: u32,
        links: &[Link],
    ) -> Result<Option<u32>, NetlinkError> {
        let route = self.system.route_to(destination, mark)?;
        let link = || links.iter().find(|link| link.index == route.interface);
        Ok(route.mtu.or_else(|| Some(link()?.mtu)))
    }
}
