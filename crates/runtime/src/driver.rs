//! The driver of a protocol device.
//!
//! ```text
//! handshake messages ─► handle_handshakes ┐
//! wake-ups, deadlines ─► run_due          ├─► Device ─► poll_event ─► datagrams to send, notices
//! updates ─► prepare, apply               ┘      └─► Services: saved state, endpoints' names
//! ```
//!
//! It has no socket, thread or event loop of its own: its user receives, waits and sends. After
//! each call the user takes every [`Driver::poll_event`], then waits until
//! [`Driver::next_deadline`], a wake-up or a datagram. Transport data does not come here: any
//! thread carries it by [`taupe_protocol::DataPath`].

use std::sync::Arc;
use std::time::Duration;

use taupe_protocol::crypto::Provider;
use taupe_protocol::message::{Kind, classify};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::DeviceUpdate;
use taupe_protocol::{DataPath, Device, HandshakeMessage, TakenHandshakes, UpdateError, Wake};
use tracing::debug;

use crate::clock::now;
use crate::random::SystemRandom;
use crate::services::{Event, PrepareError, PreparedUpdate, Services};

/// Handshake messages that are taken from a queue at once.
const HANDSHAKES_AT_ONCE: usize = 64;

/// The longest time for which handshake messages are handled before anything else is.
const HANDSHAKE_TIME: Duration = Duration::from_millis(5);

/// A device with its services.
pub struct Driver {
    device: Device,
    services: Services,
    /// Handshake messages that are being handled; empty between calls.
    messages: TakenHandshakes,
}

/// Result of [`Driver::handle_handshakes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handled {
    /// The number of messages that have been handled.
    pub handled: usize,
    /// The number of messages that are still in the queue: call again soon.
    pub left: usize,
    /// The time afterwards.
    pub now: Now,
}

impl Driver {
    /// A driver of a device without key and peers, which is down. `wake` is called, by any thread,
    /// when [`Self::run_due`] has something to do.
    #[must_use]
    pub fn new(crypto: &'static Provider, services: Services, wake: Wake) -> Self {
        Self {
            device: Device::new(crypto, Box::new(SystemRandom), wake),
            services,
            messages: TakenHandshakes::default(),
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The device, for changes that no method of the driver makes.
    pub fn device_mut(&mut self) -> &mut Device {
        &mut self.device
    }

    /// The half of the device that carries transport data.
    #[must_use]
    pub fn data_path(&self) -> &Arc<DataPath> {
        self.device.data_path()
    }

    /// The device and its services.
    pub fn parts(&mut self) -> (&mut Device, &mut Services) {
        (&mut self.device, &mut self.services)
    }

    /// The services.
    pub fn services(&mut self) -> &mut Services {
        &mut self.services
    }

    /// Handles handshake messages, the newest first, until there are none or 5 ms are over. `take`
    /// moves at most that many messages out of the user's queue and returns how many stay.
    pub fn handle_handshakes(
        &mut self,
        mut take: impl FnMut(usize, &mut TakenHandshakes) -> usize,
    ) -> Handled {
        let mut time = now();
        let until = time.boot + HANDSHAKE_TIME;
        let mut handled = 0;
        loop {
            let left = take(HANDSHAKES_AT_ONCE, &mut self.messages);
            let count = self.messages.len();
            let mut backlog = left + count;
            for message in self.messages.drain() {
                backlog -= 1;
                handle_handshake(&mut self.device, time, &message, backlog);
            }
            handled += count;
            time = now();
            if count == 0 || left == 0 || time.boot >= until {
                return Handled {
                    handled,
                    left,
                    now: time,
                };
            }
        }
    }

    /// Does what is due now: what the packet path has asked for, deadlines, and answers to
    /// look-ups.
    pub fn run_due(&mut self) {
        self.services.handle_answers(&mut self.device);
        run_due(&mut self.device, now());
    }

    /// Returns the time of the next deadline, for [`Self::run_due`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline().map(|(at, _)| at)
    }

    /// Returns the next datagram to send, or notice. The services carry out all other output, in
    /// its order.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(output) = self.device.poll_output() {
            let event = self.services.handle_output(&mut self.device, output);
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Adds to an update what has been saved for its keys; see [`Services::prepare`].
    ///
    /// # Errors
    ///
    /// [`PrepareError`]; nothing has been changed.
    pub fn prepare(&mut self, update: DeviceUpdate) -> Result<PreparedUpdate, PrepareError> {
        self.services.prepare(&self.device, update)
    }

    /// Applies an update.
    ///
    /// # Errors
    ///
    /// [`UpdateError`], if another update came between.
    pub fn apply(&mut self, update: PreparedUpdate) -> Result<(), UpdateError> {
        update.apply(&mut self.device)
    }

    /// Notes that the machine has slept.
    pub fn handle_awakening(&mut self) {
        self.device.handle_awakening(now());
        self.services.hurry();
    }

    /// Notes that addresses, routes or links have changed.
    pub fn handle_network_change(&mut self) {
        self.device.handle_network_change(now());
        self.services.hurry();
    }

    /// Ends the device and erases its keys. Take every [`Self::poll_event`] once more.
    pub fn close(&mut self) {
        self.device.close();
    }
}

/// Does what a device has to do now: what the packet path has asked for, and deadlines.
pub fn run_due(device: &mut Device, now: Now) {
    if device.has_pending_work() {
        device.handle_pending_work(now);
    }
    if let Some((at, reason)) = device.next_deadline()
        && at <= now.boot
    {
        debug!(?reason, "deadline");
        device.handle_deadline(now);
    }
}

/// Has a device handle a handshake message. `backlog` messages wait behind it.
pub fn handle_handshake(device: &mut Device, now: Now, message: &HandshakeMessage, backlog: usize) {
    let (from, message) = (message.from, message.bytes());
    let refused = device.handle_message(now, from, message, backlog);
    let kind = || handshake_kind(message).unwrap_or("message");
    match refused {
        None => debug!(from = %from.remote, "took a handshake {}", kind()),
        Some(reason) => debug!(from = %from.remote, "handshake {} refused: {reason}", kind()),
    }
}

/// Returns the usual name of a handshake message; `None` for other datagrams.
#[must_use]
pub fn handshake_kind(message: &[u8]) -> Option<&'static str> {
    match classify(message).ok()? {
        Kind::Initiation => Some("initiation"),
        Kind::Response => Some("response"),
        Kind::CookieReply => Some("cookie reply"),
        Kind::HybridInitiation => Some("initiation (a part of a hybrid one)"),
        Kind::HybridResponse => Some("response (a part of a hybrid one)"),
        Kind::Data => None,
    }
}

#[cfg(test)]
mod tests;
