//! Look-ups of a tunnel: queries of the resolver, over UDP and TCP.

use super::{Net, Owner};
use crate::address::Name;
use crate::dns::{self, Output};
use crate::failure::ConnectFailure;
use crate::tcp_query::TcpQuery;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

impl<C: Copy + Eq + Hash, W> Net<C, W> {
    /// Looks a name up for `waiter`. [`Net::poll_resolved`] returns the result.
    pub fn resolve(&mut self, name: &Name, waiter: W) {
        self.resolver.resolve(self.now, name, waiter);
    }

    /// Advances all look-ups. Returns a result with its waiter, until there is no other.
    pub fn poll_resolved(&mut self) -> Option<(W, Result<Vec<IpAddr>, ConnectFailure>)> {
        let now = self.now;
        if self.resolver.next_deadline().is_some_and(|at| at <= now) {
            self.resolver.handle_deadline(now);
            let resolver = &self.resolver;
            let ports = self.tcp_queries.keys().copied();
            let over = ports.filter(|port| !resolver.is_over_tcp(*port));
            for port in over.collect::<Vec<_>>() {
                self.remove_query(port);
            }
        }
        while let Some(output) = self.resolver.poll_output() {
            match output {
                Output::SendUdp {
                    server,
                    local_port,
                    message,
                } => {
                    let server = SocketAddr::new(server, dns::PORT);
                    self.send_datagram(local_port, server, &message);
                }
                Output::SendTcp {
                    server,
                    local_port,
                    message,
                } => self.begin_query(server, local_port, &message),
                Output::Resolved { waiter, result } => return Some((waiter, result)),
            }
        }
        None
    }

    fn begin_query(&mut self, server: IpAddr, local_port: u16, message: &[u8]) {
        let server = SocketAddr::new(server, dns::PORT);
        let stream = self.connect_for(server, Owner::DnsQuery(local_port));
        let query = stream.ok().and_then(|stream| {
            // A message is never too long for its length field.
            TcpQuery::begin(stream, message)
        });
        match query {
            Some(query) => {
                self.tcp_queries.insert(local_port, query);
                self.advance_query(local_port);
            }
            None => self
                .resolver
                .handle_tcp_response(self.now, local_port, None),
        }
    }

    /// Advances a DNS query over TCP.
    pub(super) fn advance_query(&mut self, port: u16) {
        let Some(mut query) = self.tcp_queries.remove(&port) else {
            return;
        };
        let Some(answer) = query.advance() else {
            self.pump_for(&mut query.stream, Owner::DnsQuery(port));
            query.due = query.stream.deadline(self.now);
            self.tcp_queries.insert(port, query);
            return;
        };
        self.abort(query.stream);
        let now = self.now;
        self.resolver
            .handle_tcp_response(now, port, answer.as_deref());
    }

    fn remove_query(&mut self, port: u16) {
        if let Some(query) = self.tcp_queries.remove(&port) {
            self.abort(query.stream);
        }
    }
}
