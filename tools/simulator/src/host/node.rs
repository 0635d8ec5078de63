//! The running device of a host, and what is checked of it from outside.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use taupe_protocol::time::Instant;
use taupe_protocol::{DataPath, Device, DropReason, ReceivedBatch, Timer};

use crate::sessions::Sessions;
use crate::timer_model::TimerModel;
use crate::violation::{Invariant, Violation};

/// A running device with its checkers.
pub(crate) struct Node {
    /// The device.
    pub(crate) device: Device,
    /// The data path, which moves packets.
    pub(crate) path: Arc<DataPath>,
    /// Its sessions.
    pub(crate) sessions: Sessions,
    /// Expected messages to each host.
    pub(crate) timers: Vec<TimerModel>,
    /// Staged packets.
    pub(crate) staged: Staged,
    /// The next deadline on the boot clock, updated after every call.
    pub(crate) deadline: Option<(Instant, Timer)>,
    /// Address from which each host was last received.
    pub(crate) sources: Vec<Option<SocketAddr>>,
    /// Its wake-ups without effect.
    pub(crate) idle: Idle,
    /// A reused buffer.
    pub(crate) received: ReceivedBatch,
    pub(super) woken: Arc<AtomicBool>,
}

impl Node {
    /// Returns true if the device has called its waker since the last call.
    pub(crate) fn take_wake(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// Returns the number of dropped data and handshake messages so far.
    #[must_use]
    pub(crate) fn refused(&self) -> u64 {
        const IN: [DropReason; 19] = [
            DropReason::Length,
            DropReason::Type,
            DropReason::UnknownSession,
            DropReason::ExpiredSession,
            DropReason::NotAuthentic,
            DropReason::Exhausted,
            DropReason::Replayed,
            DropReason::NotReady,
            DropReason::Mac1,
            DropReason::CookieDemanded,
            DropReason::CookieWithheld,
            DropReason::RateLimited,
            DropReason::InitiationNotAuthentic,
            DropReason::UnknownPeer,
            DropReason::InitiationReplayed,
            DropReason::InitiationFlood,
            DropReason::UnknownHandshake,
            DropReason::PostQuantumRequired,
            DropReason::PartRepeated,
        ];
        let counters = self.path.counters();
        let more = counters.count(DropReason::ResponseNotAuthentic)
            + counters.count(DropReason::CookieRefused);
        IN.into_iter()
            .map(|cause| counters.count(cause))
            .sum::<u64>()
            + more
    }
}

/// Expected state of staged packets.
#[derive(Default)]
pub(crate) struct Staged {
    /// Packets that must still be waiting.
    waiting: i64,
    /// Drops accounted for so far.
    dropped: u64,
}

impl Staged {
    /// Records staged packets.
    pub(crate) fn entered(&mut self, count: u64) {
        self.waiting += count as i64;
    }

    /// Records that a staged packet has been sent.
    pub(crate) fn flushed(&mut self) {
        self.waiting -= 1;
    }

    /// Compares with the actual numbers of waiting and dropped packets. The actual number may be
    /// larger, because keepalives wait too.
    ///
    /// # Errors
    /// If packets are missing.
    pub(crate) fn check(&mut self, there: usize, dropped: u64) -> Result<(), Violation> {
        self.waiting -= (dropped - self.dropped) as i64;
        self.dropped = dropped;
        if self.waiting > there as i64 {
            return Err(Violation::new(
                Invariant::Staged,
                format!(
                    "{there} packets are staged, {} have to be: the rest were neither sent nor counted",
                    self.waiting
                ),
            ));
        }
        if there == 0 {
            self.waiting = 0;
        }
        Ok(())
    }
}

/// Number of wake-ups without effect since the last event.
#[derive(Default)]
pub(crate) struct Idle(usize);

impl Idle {
    /// Resets the number after an event.
    pub(crate) fn used(&mut self) {
        self.0 = 0;
    }

    /// Records a handled deadline. Each of `timers` may have been stopped after it was armed, and
    /// may then cause one wake-up without effect.
    ///
    /// # Errors
    /// If there are more in a row.
    pub(crate) fn woken(&mut self, effect: bool, timers: usize) -> Result<(), Violation> {
        self.0 = if effect { 0 } else { self.0 + 1 };
        if self.0 > timers {
            return Err(Violation::new(
                Invariant::Idle,
                format!("has woken {} times in a row for nothing", self.0),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_when_a_staged_packet_is_neither_sent_nor_counted() {
        let mut staged = Staged::default();
        staged.entered(3);
        staged.check(3, 0).unwrap();
        staged.flushed();
        staged.check(2, 0).unwrap();
        staged.check(1, 1).unwrap();
        assert!(staged.check(0, 1).is_err());
    }

    #[test]
    fn fires_when_an_idle_device_wakes_too_often() {
        let mut idle = Idle::default();
        for _ in 0..3 {
            idle.woken(false, 3).unwrap();
        }
        assert!(idle.woken(false, 3).is_err());
        idle.woken(true, 3).unwrap();
        idle.woken(false, 3).unwrap();
        idle.used();
    }

    #[test]
    fn staged_keepalives_do_not_hide_later_losses() {
        let mut staged = Staged::default();
        staged.entered(1);
        // A keepalive was staged first, and both were dropped.
        staged.check(0, 2).unwrap();
        staged.entered(1);
        assert!(staged.check(0, 2).is_err());
    }
}
