//! A model of a peer's timers from outside: from the messages that a device has sent and received
//! it derives which messages must be sent by when (whitepaper §6).
//!
//! The model is independent of the implementation. If it cannot tell whether something is due, it
//! requires nothing.

use crate::plan::{MILLISECOND, Nanos, SECOND, Time};
use crate::violation::{Invariant, Violation};

// Values of the whitepaper's §6.1 and of the Linux kernel, not the implementation's constants,
// which may be wrong.
const REKEY: Nanos = 5 * SECOND;
const JITTER: Nanos = 334 * MILLISECOND;
const KEEPALIVE: Nanos = 10 * SECOND;
const DEAD_PEER: Nanos = 15 * SECOND;
/// The first initiation and its retries.
const INITIATIONS: u32 = 20;
/// Longest time from the last use of a peer to the last initiation: a dead-peer handshake, which
/// may have to wait for Rekey-Timeout, and all of its retries.
const PATIENCE: Nanos = DEAD_PEER + JITTER + (INITIATIONS as Nanos + 1) * (REKEY + JITTER);

/// Times after which the parts of a hybrid initiation are sent again (docs/post-quantum.md).
const RESEND: [Nanos; 4] = [250 * MILLISECOND, 500 * MILLISECOND, SECOND, 2 * SECOND];

/// Expected messages of one device to one peer. Times are of the device's boot clock.
#[derive(Clone, Default, Debug)]
pub struct TimerModel {
    /// Time of the last initiation.
    initiation: Option<Nanos>,
    /// The same, as if suspends had taken no time.
    cycle: Option<Nanos>,
    /// Time of the last initiation or response.
    handshake: Option<Nanos>,
    /// Number of initiations since the need for a handshake, including the initiation before it.
    tries: u32,
    /// Time of the last event that may lead to a handshake.
    used: Nanos,
    /// Time of the last sent transport data.
    data: Option<Nanos>,
    /// Time at which the peer was last created.
    fresh: Nanos,
    /// Time by which waiting packets must have led to an initiation or a session.
    staged_due: Option<Nanos>,
    keepalive_due: Option<Nanos>,
    dead_peer_due: Option<Nanos>,
    retransmit_due: Option<Nanos>,
    persistent_due: Option<Nanos>,
    persistent: Nanos,
    /// The hybrid initiation under way.
    parts: Option<Parts>,
    /// Time by which its parts must be sent again without an answer.
    resend_due: Option<Nanos>,
}

/// A hybrid initiation whose parts are sent again until they are answered.
#[derive(Clone, Copy, Debug)]
struct Parts {
    index: u32,
    /// Times at which they were sent first and last.
    since: Nanos,
    last: Nanos,
    /// Number of repetitions so far.
    again: usize,
}

impl TimerModel {
    /// Records an initiation.
    ///
    /// # Errors
    /// If it is sent too soon after another one, or after the retries have ended.
    pub fn initiation(&mut self, now: Nanos) -> Result<(), Violation> {
        self.check(now)?;
        if let Some(last) = self.initiation
            && now - last < REKEY
        {
            return late(format!(
                "two initiations within Rekey-Timeout, at {} and {}",
                Time(last),
                Time(now)
            ));
        }
        if self.persistent == 0 && now.saturating_sub(self.used) > PATIENCE {
            return late(format!(
                "an initiation at {}, although the peer has not been used since {}",
                Time(now),
                Time(self.used)
            ));
        }
        // After a pause it starts a new series.
        if self.cycle.is_none_or(|last| now - last > REKEY + JITTER) {
            self.tries = 0;
        }
        self.initiation = Some(now);
        self.parts = None;
        self.resend_due = None;
        self.staged_due = None;
        self.cycle = Some(now);
        self.tries += 1;
        self.retransmit_due = (self.tries < INITIATIONS).then_some(now + REKEY + JITTER);
        self.dead_peer_due = self.dead_peer_due.filter(|due| now + REKEY + JITTER < *due);
        self.handshake = Some(now);
        self.sent(now);
        Ok(())
    }

    /// Records a part of a hybrid initiation, identified by the initiator's index. Returns true if
    /// it begins a handshake.
    ///
    /// # Errors
    /// As [`initiation`](Self::initiation); or if it is repeated at another time than specified.
    pub fn part(&mut self, now: Nanos, index: u32) -> Result<bool, Violation> {
        let Some(parts) = self.parts.as_mut().filter(|parts| parts.index == index) else {
            self.initiation(now)?;
            self.parts = Some(Parts {
                index,
                since: now,
                last: now,
                again: 0,
            });
            self.resend_due = Some(now + RESEND[0]);
            return Ok(true);
        };
        // The second part is sent together with the first.
        if now != parts.last {
            let due = RESEND.get(parts.again).map(|after| parts.since + after);
            if due.is_none_or(|due| now < due) {
                return late(format!(
                    "a part again at {}, first sent at {}",
                    Time(now),
                    Time(parts.since)
                ))
                .map(|()| false);
            }
            parts.last = now;
            let at = |again: usize| RESEND.get(again).map(|after| parts.since + after);
            // All repetitions that became due during a suspend are sent as one.
            let passed = |again: &usize| at(*again).is_some_and(|at| at <= now);
            parts.again += (parts.again..).take_while(passed).count();
            let next = at(parts.again);
            self.check(now)?;
            self.resend_due = next;
        }
        self.sent(now);
        Ok(false)
    }

    /// Records a response.
    ///
    /// # Errors
    /// If something else was due before.
    pub fn response(&mut self, now: Nanos) -> Result<(), Violation> {
        self.check(now)?;
        self.handshake = Some(now);
        self.used = now;
        // The response delays a retry, and the number of retries so far is unknown.
        self.retransmit_due = None;
        self.cycle = Some(now);
        self.tries = INITIATIONS;
        self.staged_due = self.staged_due.map(|_| now + REKEY + JITTER);
        self.sent(now);
        Ok(())
    }

    /// Records sent transport data: packets, or a keepalive.
    ///
    /// # Errors
    /// If something else was due before.
    pub fn data(&mut self, now: Nanos, packets: bool) -> Result<(), Violation> {
        self.check(now)?;
        self.data = Some(now);
        self.staged_due = None;
        if packets {
            self.used = now;
            self.dead_peer_due.get_or_insert(now + DEAD_PEER + JITTER);
        }
        self.sent(now);
        Ok(())
    }

    /// Records an authentic message. `packets` is true if it is known to contain packets.
    ///
    /// # Errors
    /// If something was due before.
    pub fn received(&mut self, now: Nanos, packets: bool) -> Result<(), Violation> {
        self.check(now)?;
        self.used = now;
        self.dead_peer_due = None;
        self.retransmit_due = None;
        self.resend_due = None;
        if packets {
            self.keepalive_due.get_or_insert(now + KEEPALIVE);
        }
        self.traversed(now);
        Ok(())
    }

    /// Records staged packets: they need a handshake, at once or as soon as Rekey-Timeout allows
    /// it.
    pub fn packets_staged(&mut self, now: Nanos) {
        self.staged_due.get_or_insert(now + REKEY + JITTER);
        self.used = now;
        self.tries = 1;
    }

    /// Resets the model for a new peer or device. `persistent` is the persistent keepalive, and
    /// `endpoint` is true if the peer's endpoint is known.
    pub fn reset(&mut self, now: Nanos, persistent: Nanos, endpoint: bool) {
        *self = Self {
            used: now,
            fresh: now,
            ..Self::default()
        };
        self.configured(now, persistent, endpoint);
    }

    /// Records a change of the peer's configuration.
    pub fn configured(&mut self, now: Nanos, persistent: Nanos, endpoint: bool) {
        self.used = now;
        // A change of the interval does not restart a running timer.
        let due = persistent_due(now, self.persistent.max(persistent));
        let due = self.persistent_due.map_or(due, |before| before.max(due));
        self.persistent_due = (endpoint && persistent > 0).then_some(due);
        self.persistent = persistent;
    }

    /// Records that the initiation under way may have been given up.
    pub fn abandoned(&mut self) {
        self.resend_due = None;
    }

    /// Records that the device has not run since `from`: everything due in that time is due now.
    pub fn suspended(&mut self, from: Nanos, now: Nanos) {
        for due in [
            &mut self.staged_due,
            &mut self.keepalive_due,
            &mut self.dead_peer_due,
            &mut self.retransmit_due,
            &mut self.resend_due,
            &mut self.persistent_due,
        ] {
            *due = due.map(|at| if at >= from { at.max(now) } else { at });
        }
        self.cycle = self.cycle.map(|last| {
            if last + REKEY + JITTER >= from {
                now
            } else {
                last
            }
        });
        self.used = self.used.max(now);
    }

    /// Checks that nothing is overdue.
    ///
    /// # Errors
    /// If something is.
    pub fn check(&mut self, now: Nanos) -> Result<(), Violation> {
        // Within Rekey-Timeout of a handshake message no other one is sent.
        let recent = |at: Nanos| {
            self.handshake
                .is_some_and(|sent| sent + REKEY + JITTER >= at)
        };
        if let Some(due) = self.staged_due.take_if(|due| *due < now) {
            return late(format!("no handshake by {} for staged packets", Time(due)));
        }
        if let Some(due) = self.keepalive_due.take_if(|due| *due < now)
            && !recent(due)
            && self.tries < INITIATIONS
        {
            return late(format!("no keepalive by {} after received data", Time(due)));
        }
        if let Some(due) = self.dead_peer_due.take_if(|due| *due < now)
            && !recent(due)
        {
            return late(format!(
                "no handshake by {} after unanswered data",
                Time(due)
            ));
        }
        if let Some(due) = self.retransmit_due.take_if(|due| *due < now) {
            return late(format!(
                "no initiation again by {}, after {} of them",
                Time(due),
                self.tries
            ));
        }
        if let Some(due) = self.resend_due.take_if(|due| *due < now) {
            return late(format!("no part again by {}", Time(due)));
        }
        if let Some(due) = self.persistent_due.take_if(|due| *due < now) {
            return late(format!("no persistent keepalive by {}", Time(due)));
        }
        Ok(())
    }

    /// Returns true if transport data has been sent just now: the responder may not send before it
    /// has received in the new session (whitepaper §6.3).
    #[must_use]
    pub fn confirmed(&self, now: Nanos) -> bool {
        self.data == Some(now)
    }

    /// Returns true if a handshake message has been sent since `since`, or if the peer was replaced
    /// since: the earlier expectations are then unknown.
    #[must_use]
    pub fn renewed_since(&self, since: Nanos) -> bool {
        self.handshake.is_some_and(|sent| sent >= since) || self.fresh >= since
    }

    fn sent(&mut self, now: Nanos) {
        self.keepalive_due = None;
        self.traversed(now);
    }

    fn traversed(&mut self, now: Nanos) {
        if self.persistent > 0 {
            self.persistent_due = Some(persistent_due(now, self.persistent));
        }
    }
}

/// Returns the time by which a keepalive is due. Without a session it needs a handshake, which may
/// have to wait for Rekey-Timeout and its jitter.
fn persistent_due(now: Nanos, interval: Nanos) -> Nanos {
    now + interval + REKEY + JITTER
}

fn late(what: String) -> Result<(), Violation> {
    Err(Violation::new(Invariant::Deadline, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = 1000 * SECOND;

    fn timers() -> TimerModel {
        let mut timers = TimerModel::default();
        timers.reset(START, 0, true);
        timers
    }

    #[test]
    fn keepalive_is_due_ten_seconds_after_data() {
        let mut on_time = timers();
        on_time.received(START, true).unwrap();
        on_time.check(START + KEEPALIVE).unwrap();
        on_time.data(START + KEEPALIVE, false).unwrap();
        on_time.check(START + 100 * SECOND).unwrap();

        let mut missed = timers();
        missed.received(START, true).unwrap();
        assert!(missed.check(START + KEEPALIVE + 1).is_err());
    }

    #[test]
    fn handshake_is_due_after_unanswered_data() {
        let due = START + DEAD_PEER + JITTER;
        let mut missed = timers();
        missed.data(START, true).unwrap();
        missed.check(due).unwrap();
        assert!(missed.check(due + 1).is_err());

        let mut answered = timers();
        answered.data(START, true).unwrap();
        answered.received(START + SECOND, false).unwrap();
        answered.check(due + 1).unwrap();
    }

    #[test]
    fn staged_packets_want_a_handshake() {
        let due = START + REKEY + JITTER;
        let mut missed = timers();
        missed.packets_staged(START);
        missed.check(due).unwrap();
        assert!(missed.clone().check(due + 1).is_err());
        let mut answered = missed.clone();
        answered.initiation(due).unwrap();
        answered.check(due + 1).unwrap();
        missed.response(START + SECOND).unwrap();
        missed.check(due + SECOND).unwrap();
        assert!(missed.check(due + SECOND + 1).is_err());
    }

    #[test]
    fn initiations_are_repeated_and_end() {
        let mut timers = timers();
        timers.packets_staged(START);
        let mut at = START;
        for _ in 0..INITIATIONS - 1 {
            timers.initiation(at).unwrap();
            assert!(
                timers.clone().initiation(at + REKEY - 1).is_err(),
                "too soon"
            );
            assert!(
                timers.clone().check(at + REKEY + JITTER + 1).is_err(),
                "not repeated"
            );
            at += REKEY + JITTER;
        }
        timers.initiation(at).unwrap();
        timers.check(at + 1000 * SECOND).unwrap();
        assert!(
            timers.initiation(START + PATIENCE + 1).is_err(),
            "after giving up"
        );
    }

    #[test]
    fn parts_are_repeated_at_their_times() {
        let mut first = timers();
        assert!(first.part(START, 7).unwrap());
        assert!(!first.part(START, 7).unwrap(), "its second part");
        assert!(first.clone().part(START + RESEND[0] - 1, 7).is_err());
        assert!(first.clone().check(START + RESEND[0] + 1).is_err());
        for after in RESEND {
            assert!(!first.part(START + after, 7).unwrap());
        }
        assert!(
            first.clone().part(START + 3 * SECOND, 7).is_err(),
            "a fifth time"
        );
        assert!(
            first.clone().part(START + REKEY - 1, 8).is_err(),
            "too soon"
        );
        assert!(first.part(START + REKEY, 8).unwrap());
        first.received(START + REKEY + 1, false).unwrap();
        first.check(START + REKEY + SECOND).unwrap();
    }

    #[test]
    fn persistent_keepalive_is_due() {
        let mut timers = TimerModel::default();
        timers.reset(START, 25 * SECOND, true);
        timers.check(START + 25 * SECOND).unwrap();
        assert!(timers.check(START + 31 * SECOND).is_err());
    }

    #[test]
    fn another_interval_counts_from_the_next_message() {
        let mut timers = TimerModel::default();
        timers.reset(START, 100 * SECOND, true);
        timers.configured(START + SECOND, SECOND, true);
        timers.configured(START + 2 * SECOND, SECOND, true);
        timers.check(START + 100 * SECOND).unwrap();
        timers.data(START + 100 * SECOND, false).unwrap();
        assert!(timers.check(START + 107 * SECOND).is_err());
    }

    #[test]
    fn deadlines_within_a_suspend_are_postponed_to_its_end() {
        let mut timers = timers();
        timers.received(START, true).unwrap();
        let wake = START + 50 * SECOND;
        timers.suspended(START + 5 * SECOND, wake);
        timers.check(wake).unwrap();
        assert!(timers.check(wake + 1).is_err());
    }
}
