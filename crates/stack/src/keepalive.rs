//! TCP keepalive (RFC 9293 §3.8.4).

use core::time::Duration;
use taupe_protocol::time::Instant;

/// TCP keepalive of connections: probes that find out if the other side of an idle connection is
/// still there.
///
/// A probe repeats an acknowledged byte. The other side acknowledges it, or resets a connection that
/// it does not know. If none of the probes is answered, the connection ends. Time in which the
/// machine sleeps does not end it, because probes are counted.
///
/// TCP sends no probes by default (RFC 9293 §3.8.4), and neither does this crate. Probes keep
/// state in routers on the path, but also wake radios, and end connections that a temporary failure
/// of the network would have spared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    idle: Duration,
    interval: Duration,
    probes: u32,
}

impl Keepalive {
    /// The time between probes unless set otherwise, as on Linux: 75 s.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(75);

    /// The number of probes unless set otherwise, as on Linux: 9.
    pub const DEFAULT_PROBES: u32 = 9;

    /// The shortest time that a connection is idle before a probe, and the shortest between two.
    pub const MIN: Duration = Duration::from_secs(1);

    /// Sends the first probe when nothing was received for `idle`, at least [`Keepalive::MIN`]. RFC
    /// 9293 requires at least two hours as a default; a program may choose any.
    #[must_use]
    pub fn new(idle: Duration) -> Self {
        Self {
            idle: idle.max(Self::MIN),
            interval: Self::DEFAULT_INTERVAL,
            probes: Self::DEFAULT_PROBES,
        }
    }

    /// Sets the time from an unanswered probe to the next, at least [`Keepalive::MIN`].
    #[must_use]
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.max(Self::MIN);
        self
    }

    /// Sets the number of unanswered probes after which the connection ends, at least 1.
    #[must_use]
    pub fn probes(mut self, probes: u32) -> Self {
        self.probes = probes.max(1);
        self
    }
}

/// Schedule of a connection's probes.
#[derive(Default)]
pub(crate) struct ProbeTimer {
    keepalive: Option<Keepalive>,
    /// Time of the next probe, or of the end after the last.
    next: Instant,
    unanswered: u32,
}

impl ProbeTimer {
    /// Sets the keepalive of a connection that is idle since `since`.
    pub(crate) fn set(&mut self, since: Instant, keepalive: Option<Keepalive>) {
        self.keepalive = keepalive;
        self.unanswered = 0;
        self.note_segment(since);
    }

    /// Records that a segment has come.
    pub(crate) fn note_segment(&mut self, now: Instant) {
        if let Some(Keepalive { idle, .. }) = self.keepalive {
            self.next = now + idle;
            self.unanswered = 0;
        }
    }

    /// Returns true if a probe has been sent and no segment has come since.
    pub(crate) fn is_probing(&self) -> bool {
        self.unanswered > 0
    }

    /// Returns the time of the next probe.
    pub(crate) fn next_probe(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        (self.unanswered < keepalive.probes).then_some(self.next)
    }

    /// Returns the time at which the last probe counts as unanswered.
    pub(crate) fn dead_at(&self) -> Option<Instant> {
        let keepalive = self.keepalive?;
        (self.unanswered >= keepalive.probes).then_some(self.next)
    }

    /// If a probe is due, counts it and returns the time to the next.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Duration> {
        self.next_probe().filter(|at| *at <= now)?;
        let interval = self.keepalive?.interval;
        self.unanswered += 1;
        self.next = now + interval;
        Some(interval)
    }
}
