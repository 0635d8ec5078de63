//! A DNS query over TCP (RFC 7766): a length and a message in each direction.

use crate::outgoing::Outgoing;
use crate::stream::Stream;
use smoltcp::socket::tcp::State;
use taupe_protocol::time::Instant;

/// A query on its own connection.
pub(crate) struct TcpQuery {
    pub(crate) stream: Stream,
    message: Vec<u8>,
    answer: Vec<u8>,
    /// Next deadline of the connection.
    pub(crate) due: Option<Instant>,
}

impl TcpQuery {
    /// Begins a query on a new connection. Returns `None` if the message is too long.
    pub(crate) fn begin(stream: Stream, message: &[u8]) -> Option<Self> {
        let length = u16::try_from(message.len()).ok()?;
        Some(Self {
            stream,
            message: [&length.to_be_bytes(), message].concat(),
            answer: Vec::new(),
            due: None,
        })
    }

    pub(crate) fn handle_packet(&mut self, now: Instant, packet: &[u8], outgoing: &mut Outgoing) {
        self.stream.handle_packet(now, packet, outgoing);
    }

    /// Moves all bytes that can be moved now. When the query has ended, returns the response, or
    /// `Some(None)` if there was none.
    pub(crate) fn advance(&mut self) -> Option<Option<Vec<u8>>> {
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
        is_over.then_some(None)
    }
}
