//! Handshake messages: the control loop reads their sockets and handles the queue.

use std::ops::ControlFlow;
use std::time::Duration;

use super::Control;
use crate::schedule::PacketPath;
use taupe_runtime::clock;
use taupe_runtime::driver::Handled;

/// The longest time for which one round reads the handshake sockets.
const HANDSHAKES_PER_ROUND: Duration = Duration::from_millis(5);

impl Control {
    /// Reads the handshake sockets in turn, until they are empty, the queue is full or the time of
    /// this round is over.
    pub(super) fn receive_handshakes(&mut self) {
        let until = clock::boot() + HANDSHAKES_PER_ROUND;
        let mut brought = true;
        while brought && self.shared.handshakes.expects_more() && clock::boot() < until {
            let before = self.received;
            self.handshakes.retain_mut(|path| {
                let ControlFlow::Continue((_, datagrams)) = path.carry(false) else {
                    return false;
                };
                self.received += datagrams;
                true
            });
            brought = self.received > before;
        }
    }

    /// Handles queued handshake messages, as many as one round allows.
    pub(super) fn handle_handshakes(&mut self) {
        let handshakes = &self.shared.handshakes;
        let Handled { handled, now, .. } = self
            .driver
            .handle_handshakes(|count, taken| handshakes.take(count, taken));
        // Datagrams that are no handshake messages count too.
        let received = std::mem::take(&mut self.received);
        let dropped = usize::try_from(self.flood_filter.newly_dropped()).unwrap_or(usize::MAX);
        let arrived = handled.max(received).saturating_add(dropped);
        self.flood.record(now.boot, arrived);
        let is_active = self.flood.filter_until().is_some();
        if is_active != self.flood_filter.is_active() {
            let sockets: Vec<_> = self.handshakes.iter().map(PacketPath::source).collect();
            self.flood_filter
                .set_active(is_active, &sockets, &mut *self.system);
        }
    }
}
