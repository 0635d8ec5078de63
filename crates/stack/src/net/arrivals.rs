//! Packets from the tunnel, and their recipients.

use super::{Net, Owner};
use crate::address::is_routable;
use crate::half_open::HandshakeStep;
use crate::limits::BATCH;
use crate::packet::{FourTuple, IcmpError, Incoming, is_syn, parse};
use crate::tunnel::Received;
use std::hash::Hash;
use std::net::SocketAddr;

/// Recipient of a packet from the tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<'a, C> {
    /// A segment of a user's connection, for [`Net::deliver`].
    Segment(C),
    /// A TCP segment to this side that belongs to no connection.
    Stray {
        /// Its addresses and ports.
        four_tuple: FourTuple,
        /// True if it begins a connection, for [`Net::answer_syn`].
        is_syn: bool,
    },
    /// The last segment of a handshake that [`Net::answer_syn`] began, for [`Net::accept`]. If there
    /// is no room for the connection now, ignore it: another segment follows.
    Opened(FourTuple),
    /// A datagram to a reserved port.
    Datagram {
        /// The user that has reserved the port.
        owner: C,
        /// The sender.
        from: SocketAddr,
        /// The content.
        payload: &'a [u8],
    },
    /// An ICMP error about a user's connection.
    IcmpError(C, IcmpError),
}

/// Receives datagrams of the tunnel of `user`, which `net` returns: at most 256 from each socket. Calls
/// `handle` with each arrival and its packet.
pub fn receive<U, C: Copy + Eq + Hash, W>(
    user: &mut U,
    net: impl Fn(&mut U) -> &mut Net<C, W>,
    mut handle: impl FnMut(&mut U, Arrival<'_, C>, &[u8]),
) {
    let mut buffer = std::mem::take(&mut net(user).buffer);
    for socket in 0..net(user).tunnel.sockets() {
        for _ in 0..BATCH {
            let packet = match net(user).tunnel.receive(socket, &mut buffer) {
                Received::Packet(range) => buffer.get(range),
                Received::Other => None,
                Received::Nothing => break,
            };
            let Some(packet) = packet else { continue };
            let net = net(user);
            // The whole packet, if it is no fragment or the last that was missing.
            let Some(packet) = net.reassembly.reassemble(net.now, packet) else {
                continue;
            };
            if let Some(arrival) = net.sort(&packet) {
                handle(user, arrival, &packet);
            }
        }
    }
    let net = net(user);
    net.buffer = buffer;
    net.tunnel.handle_handshakes();
}

impl<C: Copy + Eq + Hash, W> Net<C, W> {
    /// Finds the recipient of a packet from the tunnel. Handles responses to look-ups.
    fn sort<'a>(&mut self, packet: &'a [u8]) -> Option<Arrival<'a, C>> {
        match parse(packet)? {
            Incoming::Tcp(four_tuple) => match self.flows.get(&four_tuple).copied() {
                Some(Owner::User(user)) => Some(Arrival::Segment(user)),
                Some(Owner::DnsQuery(port)) => {
                    if let Some(query) = self.tcp_queries.get_mut(&port) {
                        query.handle_packet(self.now, packet, &mut self.outgoing);
                        self.advance_query(port);
                    }
                    None
                }
                None if self.is_answerable(four_tuple) => self.sort_unopened(four_tuple, packet),
                None => None,
            },
            Incoming::Udp(four_tuple, payload) => {
                let (port, from) = (four_tuple.local.port(), four_tuple.remote);
                if !self.is_ours(four_tuple) {
                    return None;
                }
                if self.resolver.expects(port, from) {
                    self.resolver
                        .handle_udp_response(self.now, port, from, payload);
                    return None;
                }
                let owner = *self.ports.get(&port)?;
                Some(Arrival::Datagram {
                    owner,
                    from,
                    payload,
                })
            }
            Incoming::IcmpError(four_tuple, problem) => match self.flows.get(&four_tuple)? {
                Owner::User(user) => Some(Arrival::IcmpError(*user, problem)),
                Owner::DnsQuery(_) => None,
            },
        }
    }

    /// Finds the recipient of a segment of no open connection.
    fn sort_unopened<'a>(
        &mut self,
        four_tuple: FourTuple,
        packet: &'a [u8],
    ) -> Option<Arrival<'a, C>> {
        let (buffers, outgoing) = (&mut self.buffers, &mut self.outgoing);
        let step = self
            .half_open
            .handle_segment(self.now, four_tuple, packet, buffers, outgoing);
        match step {
            HandshakeStep::Other => Some(Arrival::Stray {
                four_tuple,
                is_syn: is_syn(packet),
            }),
            HandshakeStep::Complete => Some(Arrival::Opened(four_tuple)),
            HandshakeStep::Refuse => {
                self.resets.answer(self.now, packet, &mut self.outgoing);
                None
            }
            HandshakeStep::Handled => None,
        }
    }

    /// Returns true if a packet's destination is this side's address.
    fn is_ours(&self, FourTuple { local, remote }: FourTuple) -> bool {
        Some(local.ip()) == self.sources.addresses.matching(remote.ip())
    }

    /// Returns true if a segment to this side's address may be answered: another host can have its
    /// source. An answer to this side's own address would come back as another segment to answer.
    fn is_answerable(&self, four_tuple: FourTuple) -> bool {
        let FourTuple { local, remote } = four_tuple;
        let is_host = is_routable(remote.ip()) && remote.ip() != local.ip();
        is_host && remote.port() != 0 && self.is_ours(four_tuple)
    }
}
