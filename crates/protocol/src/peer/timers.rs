//! The timers of a peer (whitepaper §6), each a point in time or nothing.

use crate::time::Instant;

/// Why the protocol wants to be called at some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// An initiation has not been answered: send another (§6.4).
    Retransmit,
    /// Parts of a hybrid initiation have not been answered: send them again.
    ResendParts,
    /// Data has been received and nothing sent since: send a keepalive (§6.5).
    Keepalive,
    /// Data has been sent and nothing received since: start a handshake (§6.5).
    DeadPeer,
    /// Keys have reached the end of their life (§6.3).
    EraseKeys,
    /// Keep a NAT's mapping alive (§6.5).
    PersistentKeepalive,
}

impl Reason {
    /// Every reason, in the order of the table.
    pub const ALL: [Self; 6] = [
        Self::Retransmit,
        Self::ResendParts,
        Self::Keepalive,
        Self::DeadPeer,
        Self::EraseKeys,
        Self::PersistentKeepalive,
    ];
}

/// When each timer expires: in the far future if it does not run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Timers([Instant; Reason::ALL.len()]);

impl Default for Timers {
    fn default() -> Self {
        Self([Instant::FAR_FUTURE; Reason::ALL.len()])
    }
}

impl Timers {
    /// Sets a timer, wherever it stood.
    pub(crate) fn set(&mut self, timer: Reason, at: Instant) {
        self.0[timer as usize] = at;
    }

    /// Sets a timer unless it runs already. Whether it did.
    pub(crate) fn start(&mut self, timer: Reason, at: Instant) -> bool {
        let idle = !self.is_running(timer);
        if idle {
            self.set(timer, at);
        }
        idle
    }

    pub(crate) fn stop(&mut self, timer: Reason) {
        self.0[timer as usize] = Instant::FAR_FUTURE;
    }

    pub(crate) fn stop_all(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_running(&self, timer: Reason) -> bool {
        self.0[timer as usize] != Instant::FAR_FUTURE
    }

    /// When the first timer expires; in the far future if none runs.
    pub(crate) fn soonest(&self) -> Instant {
        self.0.into_iter().fold(Instant::FAR_FUTURE, Instant::min)
    }

    /// The timer that expires first.
    pub(crate) fn next(&self) -> Option<(Instant, Reason)> {
        Reason::ALL
            .into_iter()
            .filter(|timer| self.is_running(*timer))
            .map(|timer| (self.0[timer as usize], timer))
            .min()
    }

    /// Stops and returns the first timer that has expired at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Reason> {
        let (at, timer) = self.next()?;
        (at <= now).then(|| {
            self.stop(timer);
            timer
        })
    }
}
