//! Ends of connections that their user has closed.

use crate::limits::{CLOSE_LIMIT, CLOSE_TIMEOUT, SKIP_TIME_WAIT};
use crate::stream::Stream;
use smoltcp::socket::tcp::State;
use taupe_protocol::time::Instant;

/// Close of a connection whose user neither reads nor writes any more.
///
/// The other side has a limited time to acknowledge the data and to close its direction:
/// the connection is reset after [`CLOSE_TIMEOUT`] without progress, and after [`CLOSE_LIMIT`]. Without the
/// second limit, a host that acknowledges one byte each minute would hold the buffers for days.
pub struct Closing {
    began: Instant,
    last_progress: Instant,
    /// Bytes that the other side has not acknowledged.
    unacknowledged: usize,
}

impl Closing {
    /// Closes this side's direction of a connection.
    pub fn begin(now: Instant, stream: &mut Stream) -> Self {
        let socket = stream.socket();
        socket.close();
        Self {
            began: now,
            last_progress: now,
            unacknowledged: socket.send_queue(),
        }
    }

    /// Returns the time at which [`Closing::is_over`] may become true without a segment.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        (self.last_progress + CLOSE_TIMEOUT).min(self.began + CLOSE_LIMIT)
    }

    /// Returns true if the connection must end now, by [`Net::end`](crate::net::Net::end). Data that
    /// arrives after the close ends it with a reset (RFC 1122 §4.2.2.13). `connections` is the
    /// number of connections: if there are many, closed ones end sooner.
    pub fn is_over(&mut self, now: Instant, stream: &mut Stream, connections: usize) -> bool {
        let unacknowledged = stream.socket().send_queue();
        if unacknowledged < self.unacknowledged {
            self.unacknowledged = unacknowledged;
            self.last_progress = now;
        }
        let are_many = connections > SKIP_TIME_WAIT;
        let limit = if are_many { CLOSE_TIMEOUT } else { CLOSE_LIMIT };
        let is_late =
            now.since(self.last_progress) >= CLOSE_TIMEOUT || now.since(self.began) >= limit;
        let has_ended = match stream.state() {
            State::Closed => true,
            State::TimeWait => are_many,
            _ => stream.socket().can_recv(),
        };
        is_late || has_ended
    }
}
