//! Handshake messages that wait until the sockets have been read to their end: a newer handshake
//! of the same peer may be behind them ([`taupe_protocol::HandshakeQueue`]).

use taupe_protocol::{Endpoint, HandshakeQueue, TakenHandshakes};

/// Datagrams that are read behind a handshake message before it is handled at the latest. The
/// system's buffers hold about as many.
const DATAGRAMS_BEHIND: usize = 4096;

/// Places that an empty queue keeps.
const KEPT: usize = 64;

/// Handshake messages that wait.
#[derive(Default)]
pub(crate) struct Handshakes {
    queue: HandshakeQueue,
    /// Datagrams that have been read since the oldest message began to wait.
    datagrams_behind: usize,
}

impl Handshakes {
    /// Takes note of a datagram, and the handshake message if it is one. Returns the number of
    /// messages that were dropped.
    pub(crate) fn note(&mut self, from: Endpoint, message: Option<&[u8]>) -> u64 {
        if self.queue.is_empty() {
            self.datagrams_behind = 0;
        }
        self.datagrams_behind += 1;
        message.map_or(0, |message| self.queue.push(from, message))
    }

    /// Checks whether no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the newest messages, at most `count`, if it is time for them: the sockets
    /// `are_empty`, or many datagrams have been read behind the messages. Returns the number of
    /// messages that stay.
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
    fn messages_wait_for_empty_sockets_but_not_for_ever() {
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
    fn a_flood_is_handled_in_shares() {
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
