//! The driver of a protocol device.
//!
//! ```text
//! handshake messages ─► handle_handshakes ┐
//! wake-ups, deadlines ─► run_due          ├─► Device ─► poll_event ─► datagrams to send, notices
//! updates ─► prepare, apply               ┘      └─► Services: saved state, endpoints' names
//! ```
//!
//! The driver has no socket, thread or event loop: its user receives, waits and sends. After each
//! call the user takes all events ([`Driver::poll_event`]), then waits for
//! [`Driver::next_deadline`], a wake-up or a datagram. Transport data does not pass through the
//! driver: any thread carries it with [`taupe_protocol::DataPath`].
//!
//! Handshakes leave secrets on the stack of the thread that calls the driver. Each method that may
//! have done so erases them before it returns.

use std::sync::Arc;
use std::time::Duration;

use taupe_protocol::crypto::{HANDSHAKE_STACK, Provider, erase_dead_stack};
use taupe_protocol::message::{Kind, classify};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::DeviceUpdate;
use taupe_protocol::{
    DataPath, Device, DropReason, HandshakeMessage, Lanes, TakenHandshakes, UpdateError, Wake,
};
use tracing::debug;

use crate::clock::now;
use crate::random::SystemRandom;
use crate::services::{Event, PrepareError, PreparedUpdate, Services};

/// Handshake messages that are taken from the queue in one step.
const HANDSHAKES_AT_ONCE: usize = 64;

/// The longest time for which one call handles handshake messages.
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
    /// The number of messages still in the queue. If there are any, call again soon.
    pub left: usize,
    /// The time at the end of the call.
    pub now: Now,
}

impl Driver {
    /// Returns a driver whose device has `lanes` lanes, is down and has neither key nor peers. Any
    /// thread may call `wake` when [`Self::run_due`] has something to do.
    #[must_use]
    pub fn new(crypto: &'static Provider, services: Services, wake: Wake, lanes: Lanes) -> Self {
        Self {
            device: Device::with_lanes(crypto, Box::new(SystemRandom), wake, lanes),
            services,
            messages: TakenHandshakes::default(),
        }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device, for changes that the driver has no method for.
    pub fn device_mut(&mut self) -> &mut Device {
        &mut self.device
    }

    /// Returns the half of the device that carries transport data.
    #[must_use]
    pub fn data_path(&self) -> &Arc<DataPath> {
        self.device.data_path()
    }

    /// Returns the device and its services.
    pub fn parts(&mut self) -> (&mut Device, &mut Services) {
        (&mut self.device, &mut self.services)
    }

    /// Returns the services.
    pub fn services(&mut self) -> &mut Services {
        &mut self.services
    }

    /// Handles handshake messages, the newest first, until none is left or 5 ms are over. `take`
    /// moves messages out of the user's queue, at most the given number, and returns how many
    /// stay.
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
            (self.device).handle_messages(time, &mut self.messages, left, log_handled);
            handled += count;
            time = now();
            if count == 0 || left == 0 || time.boot >= until {
                if handled > 0 {
                    erase_dead_stack::<HANDSHAKE_STACK>();
                }
                return Handled {
                    handled,
                    left,
                    now: time,
                };
            }
        }
    }

    /// Does all work that is due: answers of look-ups, requests of the packet path, deadlines.
    pub fn run_due(&mut self) {
        self.services.handle_answers(&mut self.device);
        run_due(&mut self.device, now());
    }

    /// Returns the time of the next deadline, for [`Self::run_due`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.device.next_deadline().map(|(at, _)| at)
    }

    /// Returns the next datagram or notice. The services handle all other output, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(output) = self.device.poll_output() {
            let event = self.services.handle_output(&mut self.device, output);
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Adds the saved state of its keys to an update; see [`Services::prepare`].
    ///
    /// # Errors
    ///
    /// [`PrepareError`]. The device is unchanged.
    pub fn prepare(&mut self, update: DeviceUpdate) -> Result<PreparedUpdate, PrepareError> {
        self.services.prepare(&self.device, update)
    }

    /// Applies an update.
    ///
    /// # Errors
    ///
    /// [`UpdateError`], if another update has been applied since [`Self::prepare`].
    pub fn apply(&mut self, update: PreparedUpdate) -> Result<(), UpdateError> {
        update.apply(&mut self.device)
    }

    /// Call this after the machine has slept.
    pub fn handle_resume(&mut self) {
        self.device.handle_resume(now());
        self.services.retry_now();
    }

    /// Call this after addresses, routes or links have changed.
    pub fn handle_network_change(&mut self) {
        self.device.handle_network_change(now());
        self.services.retry_now();
    }

    /// Ends the device and erases its keys. Afterwards take all events once more.
    pub fn close(&mut self) {
        self.device.close();
        erase_dead_stack::<HANDSHAKE_STACK>();
    }
}

/// Does the work of a device that is due: requests of the packet path, and deadlines. Erases the
/// stack of the handshakes that it has begun and the sessions that it has ended.
pub fn run_due(device: &mut Device, now: Now) {
    let mut has_worked = false;
    if device.has_pending_work() {
        device.handle_pending_work(now);
        has_worked = true;
    }
    if let Some((at, reason)) = device.next_deadline()
        && at <= now.boot
    {
        debug!(?reason, "deadline");
        device.handle_deadline(now);
        has_worked = true;
    }
    if has_worked {
        erase_dead_stack::<HANDSHAKE_STACK>();
    }
}

/// Logs the result of a handshake message.
fn log_handled(message: &HandshakeMessage, refused: Option<DropReason>) {
    let (from, message) = (message.from, message.bytes());
    let kind = || handshake_kind(message).unwrap_or("message");
    match refused {
        None => debug!(from = %from.remote, "accepted a handshake {}", kind()),
        Some(reason) => debug!(from = %from.remote, "handshake {} refused: {reason}", kind()),
    }
}

/// Returns the usual name of a handshake message, or `None` for other datagrams.
#[must_use]
pub fn handshake_kind(message: &[u8]) -> Option<&'static str> {
    match classify(message).ok()? {
        Kind::Initiation => Some("initiation"),
        Kind::Response => Some("response"),
        Kind::CookieReply => Some("cookie reply"),
        Kind::HybridInitiation => Some("initiation (part of a hybrid one)"),
        Kind::HybridResponse => Some("response (part of a hybrid one)"),
        Kind::Data => None,
    }
}

#[cfg(test)]
mod tests;
