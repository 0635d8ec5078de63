//! Foreign routes that bypass a full tunnel.
//!
//! A full tunnel has routes that are more specific than default routes only: all other routes stay
//! in force, so that local networks remain reachable. A DHCP server (option 121, RFC 3442) or a
//! router (RFC 4191) can have routes added, and thereby divert destinations from the tunnel
//! (TunnelVision, CVE-2024-3661). `up` reports such routes. A route to private, link-local or
//! multicast addresses is not reported: it is how a local network reaches its other parts.

use taupe_os_bsd::routing::{NextHop, RouteEntry};
use taupe_uapi::network_set::{NetworkSet, host};
use taupe_uapi::networks::is_special;

use crate::snapshot::{ForeignRoutes, Snapshot};

/// Returns the routes that divert public destinations from networks in `claimed`.
pub(super) fn find<'a>(
    snapshot: &Snapshot,
    foreign: &ForeignRoutes<'a>,
    claimed: &NetworkSet,
) -> Vec<&'a RouteEntry> {
    let all = foreign.all();
    let diverts = |entry: &&RouteEntry| {
        let destination = entry.route.destination;
        claimed
            .holding(&destination)
            .is_some_and(|ours| ours != destination)
            && !is_special(destination)
            && !is_endpoint(snapshot, entry)
            && !is_local(snapshot, entry, &all)
    };
    all.iter().copied().filter(diverts).collect()
}

fn is_endpoint(snapshot: &Snapshot, entry: &RouteEntry) -> bool {
    let mut endpoints = snapshot.endpoints.iter();
    endpoints.any(|endpoint| host(*endpoint) == entry.route.destination)
}

/// Returns true if a route leads to a local network, to a router of one, to this machine or into
/// another tunnel.
fn is_local(snapshot: &Snapshot, entry: &RouteEntry, all: &[&RouteEntry]) -> bool {
    let destination = entry.route.destination;
    match entry.route.next_hop {
        NextHop::Gateway(_) => return false,
        NextHop::Blackhole | NextHop::Reject => return true,
        NextHop::Interface(_) | NextHop::Unspecified => {}
    }
    let interface = snapshot.interface(entry.interface);
    let is_on_broadcast_link = interface
        .is_some_and(|interface| !interface.is_loopback() && !interface.is_point_to_point());
    let mut addresses = snapshot.addresses.iter();
    let is_own_network = addresses.any(|address| {
        address.interface == entry.interface && address.network.trunc().contains(&destination)
    });
    let is_router = all.iter().any(|other| match other.route.next_hop {
        NextHop::Gateway(gateway) => host(gateway.ip) == destination,
        _ => false,
    });
    !is_on_broadcast_link || is_own_network || is_router
}
