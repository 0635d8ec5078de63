//! The step about DNS queries: the server that answers them.

use super::steps::{Explanation, Packets, Sender, StepOutcome};
use crate::destination::Destination;
use crate::dns;
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taupe_config::application::Decision;
use taupe_config::destinations::{Class, class_of};
use taupe_config::file::edit::{Entry, entries};
use taupe_config::file::{Key, Peer};

impl Explanation<'_> {
    pub(super) fn dns(
        &self,
        packets: &Packets<'_>,
        decision: Decision,
        table: &[(IpNet, Class)],
    ) -> StepOutcome {
        if self.is_by_mark {
            return StepOutcome::Continues(
                "like any other packet: the tunnel is up in adapter mode".into(),
            );
        }
        if decision == Decision::Bypass {
            return StepOutcome::Continues("unchanged: the application bypasses the tunnel".into());
        }
        let Some(Destination { address, port }) = packets.to else {
            return StepOutcome::Continues(format!("to port 53: {}", self.server(None)));
        };
        match port {
            Some(53) => {}
            Some(_) => return StepOutcome::Continues("the packet is not to port 53".into()),
            None => {
                let text = format!("to port 53: {}", self.server(Some(address)));
                return StepOutcome::Continues(text);
            }
        }
        // A destination for which the query leaves this host: a reserved address in place of a
        // local one.
        let outside = match (packets.is_this_host(address), address) {
            (true, IpAddr::V4(_)) => IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1)),
            (true, IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)),
            (false, address) => address,
        };
        match class_of(table, outside) {
            _ if packets.is_this_host(address) && !self.is_redirected(packets, decision) => {
                StepOutcome::Continues("a resolver on this host answers the query".into())
            }
            Class::Tunnel | Class::Direct => StepOutcome::Decides(self.server(Some(address))),
            _ => StepOutcome::Continues("the tunnel does not carry this address".into()),
        }
    }

    /// Checks whether a name server of the tunnel answers in the place of a resolver on this host.
    pub(super) fn is_redirected(&self, packets: &Packets<'_>, decision: Decision) -> bool {
        let port = packets.to.and_then(|to| to.port);
        let mut servers = self.servers().into_iter();
        let is_of_process = matches!(packets.from, Sender::Process { .. });
        let is_selected = decision != Decision::Bypass && !self.is_by_mark;
        is_of_process && is_selected && port == Some(53) && servers.next().is_some()
    }

    fn servers(&self) -> Vec<(IpAddr, Entry<'_>)> {
        let entries = entries(self.text, Key::Dns).into_iter();
        let servers = entries.filter_map(|entry| Some((entry.text.parse().ok()?, entry)));
        servers.collect()
    }

    /// Returns words for the server that a query to `address` reaches.
    fn server(&self, address: Option<IpAddr>) -> String {
        let all = self.servers();
        let is_of_family =
            |server: &IpAddr| address.is_none_or(|address| address.is_ipv4() == server.is_ipv4());
        let servers: Vec<_> = all.iter().filter(|(at, _)| is_of_family(at)).collect();
        let routed: Vec<IpNet> = self.file.peers.iter().flat_map(Peer::routed).collect();
        let is_unrouted = |at: &IpAddr| !dns::is_routed(&routed, *at);
        match (servers.as_slice(), address) {
            (servers, _)
                if !servers.is_empty() && servers.iter().all(|(at, _)| is_unrouted(at)) =>
            {
                "nowhere: no server in DNS is in the AllowedIPs of a peer".into()
            }
            (servers, Some(to)) if servers.iter().any(|(at, _)| *at == to) => {
                "through the tunnel".into()
            }
            ([], _) if all.is_empty() => "through the tunnel".into(),
            ([], _) => "refused at once: no server in DNS has an address of this family".into(),
            ([(_, first), rest @ ..], _) => {
                let or_the_next = match rest {
                    [] => "",
                    _ => " or the next that answers",
                };
                let first = self.at(Key::Dns, first);
                format!("through the tunnel, to its first server ({first}){or_the_next} instead")
            }
        }
    }
}
