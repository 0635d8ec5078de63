//! Timers of a peer (whitepaper §6): each is a point in time, or stopped.

use crate::time::Instant;

/// Timer of a peer: the reason for a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timer {
    /// An initiation was not answered: send another (§6.4).
    Retransmit,
    /// Parts of a hybrid initiation were not answered: send them again.
    ResendParts,
    /// Data was received and nothing sent since: send a keepalive (§6.5).
    Keepalive,
    /// Data was sent and nothing received since: start a handshake (§6.5).
    DeadPeer,
    /// Keys have reached the end of their life: erase them (§6.3).
    EraseKeys,
    /// The interval of persistent keepalives has passed: send one, so that NAT mappings stay
    /// (§6.5).
    PersistentKeepalive,
}

impl Timer {
    /// Every timer, in the order of their discriminants.
    pub const ALL: [Self; 6] = [
        Self::Retransmit,
        Self::ResendParts,
        Self::Keepalive,
        Self::DeadPeer,
        Self::EraseKeys,
        Self::PersistentKeepalive,
    ];
}

/// Expiry of each timer; [`Instant::FAR_FUTURE`] if it is stopped.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Timers([Instant; Timer::ALL.len()]);

impl Default for Timers {
    fn default() -> Self {
        Self([Instant::FAR_FUTURE; Timer::ALL.len()])
    }
}

impl Timers {
    /// Sets a timer, whether or not it is running.
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        self.0[timer as usize] = at;
    }

    /// Starts a timer unless it is running. Returns `true` if it was stopped.
    pub(crate) fn start(&mut self, timer: Timer, at: Instant) -> bool {
        let idle = !self.is_running(timer);
        if idle {
            self.set(timer, at);
        }
        idle
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        self.0[timer as usize] = Instant::FAR_FUTURE;
    }

    pub(crate) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_running(&self, timer: Timer) -> bool {
        self.0[timer as usize] != Instant::FAR_FUTURE
    }

    /// Returns the first expiry; [`Instant::FAR_FUTURE`] if all timers are stopped.
    pub(crate) fn soonest(&self) -> Instant {
        self.0.into_iter().fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// Returns the timer that expires first.
    pub(crate) fn next(&self) -> Option<(Instant, Timer)> {
        Timer::ALL
            .into_iter()
            .filter(|timer| self.is_running(*timer))
            .map(|timer| (self.0[timer as usize], timer))
            .min()
    }

    /// Stops and returns the first timer that has expired at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = self.next()?;
        (at <= now).then(|| {
            self.stop(timer);
            timer
        })
    }
}
