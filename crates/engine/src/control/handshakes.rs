//! Handshake messages: received from their sockets, queued, and handled.

use std::ops::ControlFlow;
use std::time::Duration;

use taupe_protocol::HandshakeMessage;
use taupe_protocol::message::{Kind, classify};
use taupe_protocol::time::Now;
use tracing::debug;

use super::Control;
use crate::waiting::Carrier;
use taupe_runtime::clock;

/// Handshake messages taken out of the queue at once.
const HANDSHAKES_AT_ONCE: usize = 64;

/// The longest time that handshake messages are handled before the loop looks at anything else.
const HANDSHAKES_PER_ROUND: Duration = Duration::from_millis(5);

impl Control {
    /// Reads the sockets for handshakes in turn, until they are empty, the queue has no room or
    /// it is time for something else.
    pub(super) fn receive_handshakes(&mut self) {
        let until = clock::boot() + HANDSHAKES_PER_ROUND;
        let mut brought = true;
        while brought && self.shared.handshakes.expects_more() && clock::boot() < until {
            let before = self.received;
            self.handshakes.retain_mut(|way| {
                let ControlFlow::Continue((_, datagrams)) = way.carry(false) else {
                    return false;
                };
                self.received += datagrams;
                true
            });
            brought = self.received > before;
        }
    }

    /// Handles the handshake messages that have come, as many as one round allows.
    pub(super) fn handle_handshakes(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        let mut time = clock::now();
        let until = time.boot + HANDSHAKES_PER_ROUND;
        let mut taken = 0;
        loop {
            let handshakes = &self.shared.handshakes;
            let left = handshakes.take(HANDSHAKES_AT_ONCE, &mut messages);
            taken += messages.len();
            let mut backlog = left + messages.len();
            for message in messages.drain() {
                backlog -= 1;
                self.handle_handshake(time, &message, backlog);
            }
            time = clock::now();
            if left == 0 || time.boot >= until {
                break;
            }
        }
        self.messages = messages;
        // Datagrams that are no handshake messages make a flood too.
        let received = std::mem::take(&mut self.received);
        let dropped = usize::try_from(self.flood_filter.news()).unwrap_or(usize::MAX);
        let came = taken.max(received).saturating_add(dropped);
        self.flood.came(time.boot, came);
        self.flood_filter.follow(
            self.flood.shed_until().is_some(),
            self.handshakes.iter().map(Carrier::source),
        );
    }

    fn handle_handshake(&mut self, now: Now, message: &HandshakeMessage, backlog: usize) {
        let (from, message) = (message.from, message.bytes());
        let refused = self.device.handle_message(now, from, message, backlog);
        let kind = || handshake_kind(message).unwrap_or("message");
        match refused {
            None => debug!(from = %from.remote, "took a handshake {}", kind()),
            Some(cause) => {
                debug!(from = %from.remote, "handshake {} refused: {cause}", kind());
            }
        }
    }
}

/// Returns the usual name of a handshake message. `None` for other datagrams.
pub(super) fn handshake_kind(message: &[u8]) -> Option<&'static str> {
    match classify(message).ok()? {
        Kind::Initiation => Some("initiation"),
        Kind::Response => Some("response"),
        Kind::CookieReply => Some("cookie reply"),
        Kind::HybridInitiation => Some("initiation (a part of a hybrid one)"),
        Kind::HybridResponse => Some("response (a part of a hybrid one)"),
        Kind::Data => None,
    }
}
