//! A DNS query over TCP (RFC 7766): a length and a message in each direction.

use crate::net::{Net, Owner};
use crate::stream::Stream;
use smoltcp::socket::tcp::State;
use std::net::SocketAddr;
use taupe_protocol::time::Instant;

/// A query on its own connection.
pub(crate) struct TcpQuery {
    stream: Stream,
    port: u16,
    message: Vec<u8>,
    answer: Vec<u8>,
    /// Next deadline of the connection.
    pub(crate) due: Option<Instant>,
}

impl TcpQuery {
    /// Begins to connect. `port` identifies the query.
    pub(crate) fn begin(
        server: SocketAddr,
        port: u16,
        message: &[u8],
        net: &mut Net,
    ) -> Option<Self> {
        let length = u16::try_from(message.len()).ok()?;
        let stream = net.connect(server, Owner::DnsQuery(port)).ok()?;
        Some(Self {
            stream,
            port,
            message: [&length.to_be_bytes(), message].concat(),
            answer: Vec::new(),
            due: None,
        })
    }

    pub(crate) fn handle_packet(&mut self, packet: &[u8], net: &mut Net) {
        self.stream
            .handle_packet(net.now, packet, &mut net.outgoing);
    }

    /// Does all work that is possible now. When the query has ended, returns the response, or
    /// `Some(None)` if there was none.
    pub(crate) fn advance(&mut self, net: &mut Net) -> Option<Option<Vec<u8>>> {
        let socket = self.stream.socket();
        if socket.can_send() && !self.message.is_empty() {
            let sent = socket.send_slice(&self.message).unwrap_or(0);
            self.message.drain(..sent);
        }
        while socket.can_recv() {
            let answer = &mut self.answer;
            let take = |bytes: &mut [u8]| {
                answer.extend_from_slice(bytes);
                (bytes.len(), ())
            };
            if socket.recv(take).is_err() {
                break;
            }
            if let Some((length, rest)) = self.answer.split_first_chunk::<2>()
                && let Some(answer) = rest.get(..usize::from(u16::from_be_bytes(*length)))
            {
                return Some(Some(answer.to_vec()));
            }
        }
        let is_over = match self.stream.state() {
            State::Closed => true,
            State::SynSent | State::SynReceived => false,
            _ => !self.stream.socket().may_recv(),
        };
        if is_over {
            return Some(None);
        }
        net.pump(&mut self.stream, Owner::DnsQuery(self.port));
        self.due = self.stream.deadline(net.now);
        None
    }

    pub(crate) fn close(self, net: &mut Net) {
        net.abort(self.stream);
    }
}
