//! Routes to the name servers of the file.
//!
//! Queries to a name server that a peer's AllowedIPs contain use the tunnel. A route to a network
//! that contains the server is not sufficient: this machine may be in a network with the same
//! addresses, and the kernel prefers the more specific route. Then the server has its own route.

use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::plan_note::PlanNote;
use taupe_uapi::network_set::{LINK_LOCAL, NetworkSet, host};

use super::routing::Routing;
use crate::snapshot::describe;

impl Routing<'_> {
    /// Returns a route for each name server inside the tunnel to which the kernel would prefer
    /// another one. Reports servers outside the tunnel although it carries all of their family.
    pub(super) fn name_server_routes(
        &self,
        claimed: &NetworkSet,
        is_full: &dyn Fn(&IpNet) -> bool,
        notes: &mut Vec<PlanNote>,
    ) -> Vec<IpNet> {
        let tunnelled: NetworkSet = self.wanted().into_iter().collect();
        let outside = self.outside();
        let mut routes = Vec::new();
        for server in self.servers() {
            let alone = host(server);
            if tunnelled.holding(&alone).is_none() {
                notes.extend(is_full(&alone).then(|| {
                    let sentence = format!(
                        "the name server {server} is not in AllowedIPs: names are asked outside of \
                         the tunnel"
                    );
                    PlanNote::from(sentence)
                }));
                continue;
            }
            let Some(present) = self.foreign.best(server) else {
                continue;
            };
            let ours = claimed.holding(&alone).map_or(0, |net| net.prefix_len());
            let theirs = present.route.destination;
            if theirs.prefix_len() < ours {
                continue;
            }
            let reason = outside.get(&server).map(|reason| format!("it is {reason}"));
            let exists = || "there is a route to it already".to_owned();
            if let Some(reason) = reason.or_else(|| (theirs == alone).then(exists)) {
                let sentence = format!(
                    "queries to the name server {server} bypass the tunnel: {reason}; write another \
                     server in DNS, or DisallowedIPs = {server} under [Peer]"
                );
                notes.push(sentence.into());
                continue;
            }
            let sentence = format!(
                "the name server {server} is asked through the tunnel, though there is a route to \
                 it, `{}`; to have queries to it bypass the tunnel, write DisallowedIPs = {server} \
                 under [Peer]",
                describe(self.snapshot, present)
            );
            notes.push(sentence.into());
            routes.push(alone);
        }
        routes
    }

    /// Returns the file's name servers on other hosts, without duplicates.
    fn servers(&self) -> Vec<IpAddr> {
        let is_own = |server: IpAddr| {
            let tunnels = self.addresses.iter().map(IpNet::addr);
            let others = self.snapshot.addresses.iter();
            let mut all = tunnels.chain(others.map(|address| address.network.addr()));
            server.is_loopback() || all.any(|own| own == server)
        };
        let mut servers = Vec::new();
        for &server in &self.file.interface.dns {
            let is_usable = server.is_ipv4() || !self.without_ipv6;
            let is_usable = is_usable && !LINK_LOCAL.contains(&server);
            if is_usable && !is_own(server) && !servers.contains(&server) {
                servers.push(server);
            }
        }
        servers
    }
}
