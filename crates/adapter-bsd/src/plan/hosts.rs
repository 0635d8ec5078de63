//! Host routes that keep endpoints and routers reachable.

use std::collections::BTreeMap;
use std::net::IpAddr;

use taupe_os_bsd::routing::NextHop;
use taupe_uapi::network_set::{NetworkSet, host};

use super::is_zoned;
use crate::route::Hop;
use crate::snapshot::{ForeignRoutes, Snapshot, hop_of};

/// Returns the host routes that a tunnel with the routes to `claimed` needs: to endpoints, and to
/// routers, that the tunnel's routes would win over the routes of others. Each has the next hop that
/// the kernel would use without the tunnel. If there is none, the route refuses packets, as the
/// kernel does without a route: otherwise the tunnel's own datagrams would enter the tunnel.
pub(crate) fn host_routes(
    snapshot: &Snapshot,
    foreign: &ForeignRoutes<'_>,
    claimed: &NetworkSet,
) -> BTreeMap<IpAddr, Hop> {
    let is_captured = |address: IpAddr| {
        let ours = claimed.holding(&host(address));
        let theirs = foreign
            .best(address)
            .map(|it| it.route.destination.prefix_len());
        ours.is_some_and(|ours| {
            let is_host = ours == host(address);
            !is_host && theirs.is_none_or(|theirs| theirs < ours.prefix_len())
        })
    };
    let mut routes = BTreeMap::new();
    for entry in foreign.all() {
        // A router is on the link of the route through it.
        if let NextHop::Gateway(gateway) = entry.route.next_hop
            && entry.interface != 0
            && !is_zoned(gateway.ip)
            && is_captured(gateway.ip)
        {
            let link = Hop::Link {
                index: entry.interface,
                name: snapshot.name(entry.interface),
            };
            routes.entry(gateway.ip).or_insert(link);
        }
    }
    for &endpoint in &snapshot.endpoints {
        if !is_zoned(endpoint) && is_captured(endpoint) {
            let present = foreign.best(endpoint);
            let hop = present.map_or(Hop::Reject, |entry| hop_of(snapshot, entry));
            // An endpoint that is a router is on its link.
            routes.entry(endpoint).or_insert(hop);
        }
    }
    routes
}
