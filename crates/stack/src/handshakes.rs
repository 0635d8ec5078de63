//! Queue of handshake messages. They wait until the sockets are empty, because a newer handshake of
//! the same peer may follow ([`taupe_protocol::HandshakeQueue`]).

use taupe_protocol::{Endpoint, HandshakeQueue, TakenHandshakes};

/// Datagrams after which a queued handshake message is handled although the sockets are not empty:
/// about as many as the kernel's buffers hold.
const DATAGRAMS_BEHIND: usize = 4096;

/// Capacity that an empty queue retains.
const KEPT: usize = 64;

/// Queue of handshake messages.
#[derive(Default)]
pub(crate) struct Handshakes {
    queue: HandshakeQueue,
    /// Datagrams read since the oldest message was queued.
    datagrams_behind: usize,
}

impl Handshakes {
    /// Counts a datagram, and queues it if it is a handshake message. Returns the number of
    /// messages dropped from the queue.
    pub(crate) fn note(&mut self, from: Endpoint, message: Option<&[u8]>) -> u64 {
        if self.queue.is_empty() {
            self.datagrams_behind = 0;
        }
        self.datagrams_behind += 1;
        message.map_or(0, |message| self.queue.push(from, message))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes at most `count` of the newest messages, if the sockets `are_empty` or many datagrams
    /// have been read since. Returns the number of messages that remain.
    pub(crate) fn take(
        &mut self,
        are_empty: bool,
        count: usize,
        taken: &mut TakenHandshakes,
    ) -> usize {
        if !are_empty && self.datagrams_behind < DATAGRAMS_BEHIND {
            return self.queue.len();
        }
        let left = self.queue.take(count, taken);
        if left == 0 {
            self.queue.shrink_to(KEPT);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    const AT_ONCE: usize = 64;

    fn from() -> Endpoint {
        SocketAddr::from(([192, 0, 2, 1], 51_820)).into()
    }

    #[test]
    fn handshakes_wait_for_empty_sockets_up_to_a_limit() {
        let mut handshakes = Handshakes::default();
        let mut taken = TakenHandshakes::default();
        handshakes.note(from(), Some(&[1; 148]));
        assert_eq!(handshakes.take(false, AT_ONCE, &mut taken), 1);
        assert_eq!(handshakes.take(true, AT_ONCE, &mut taken), 0);
        assert_eq!(taken.len(), 1);

        for _ in 0..DATAGRAMS_BEHIND {
            handshakes.note(from(), None);
        }
        handshakes.note(from(), Some(&[1; 148]));
        assert_eq!(
            handshakes.take(false, AT_ONCE, &mut taken),
            1,
            "counted anew"
        );
        for _ in 0..DATAGRAMS_BEHIND {
            handshakes.note(from(), None);
        }
        assert_eq!(handshakes.take(false, AT_ONCE, &mut taken), 0);
    }

    #[test]
    fn a_handshake_flood_is_handled_in_portions() {
        let mut handshakes = Handshakes::default();
        for _ in 0..=AT_ONCE {
            handshakes.note(from(), Some(&[1; 148]));
        }
        let mut taken = TakenHandshakes::default();
        assert_eq!(handshakes.take(true, AT_ONCE, &mut taken), 1);
        assert_eq!(handshakes.take(true, AT_ONCE, &mut taken), 0);
        assert_eq!(taken.len(), AT_ONCE + 1);
    }
}
