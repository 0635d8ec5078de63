//! Checks all sessions of a device: counters are used once, no session is used past its limits, and
//! keys are erased in time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use taupe_protocol::{Lanes, Role, Session};

use crate::plan::{Nanos, SECOND, Time};
use crate::violation::{Invariant, Violation};

// From the whitepaper §6.1 and §6.3, independent of the implementation's constants.
const REJECT: Nanos = 180 * SECOND;
const REKEY: Nanos = 120 * SECOND;
const ERASE: Nanos = 540 * SECOND;
/// Previous, current and next.
const MAX_PER_PEER: usize = 3;
/// Hybrid sessions that the peer, or an attacker with its X25519 key, has begun and not used
/// (docs/post-quantum.md).
const MAX_PROVISIONAL: usize = 4;

/// An observed session, without keeping it alive.
struct Tracked {
    session: Weak<Session>,
    peer: usize,
    initiator: bool,
    hybrid: bool,
    /// Set after a message has been received in the session.
    confirmed: bool,
    born: Nanos,
    used: Counters,
}

impl Tracked {
    fn is_provisional(&self) -> bool {
        self.hybrid && !self.initiator && !self.confirmed
    }
}

/// The counters that a session has used.
#[derive(Default)]
struct Counters {
    /// One more than the greatest.
    next: u64,
    /// A bit for each counter, by the upper 58 bits of the counter.
    words: BTreeMap<u64, u64>,
}

impl Counters {
    /// Records a counter. Returns false if it has been used before, or is lower than another
    /// although the session has one lane.
    fn enter(&mut self, counter: u64, lanes: Lanes) -> bool {
        let word = self.words.entry(counter / 64).or_default();
        let bit = 1 << (counter % 64);
        let is_new = *word & bit == 0 && (lanes > Lanes::One || counter >= self.next);
        *word |= bit;
        self.next = self.next.max(counter + 1);
        is_new
    }
}

/// All sessions of one device since its start.
#[derive(Default)]
pub struct Sessions {
    lanes: Lanes,
    all: Vec<Tracked>,
    by_local: HashMap<u32, usize>,
    /// Several sessions if a repeated initiation has been answered twice.
    by_remote: HashMap<u32, Vec<usize>>,
    /// All sessions before this one are erased.
    oldest: usize,
}

impl Sessions {
    /// Returns no sessions of a device with `lanes` lanes.
    #[must_use]
    pub fn new(lanes: Lanes) -> Self {
        Self {
            lanes,
            ..Self::default()
        }
    }

    /// Records the device's current sessions; new ones belong to `peer`. Returns the number of new
    /// sessions.
    ///
    /// # Errors
    /// If a peer has too many sessions, or keys are used for a second session.
    pub fn observe(&mut self, peer: usize, sessions: &[Arc<Session>]) -> Result<u64, Violation> {
        let mut new = 0;
        for session in sessions {
            if self.find_local(session).is_none() {
                self.enter(peer, session)?;
                new += 1;
            }
        }
        let with_peer = sessions.iter().filter_map(|s| self.find_local(s));
        let (provisional, counted): (Vec<_>, Vec<_>) = with_peer
            .filter(|tracked| tracked.peer == peer)
            .partition(|tracked| tracked.is_provisional());
        if counted.len() > MAX_PER_PEER || provisional.len() > MAX_PROVISIONAL {
            return Err(Violation::new(
                Invariant::Memory,
                format!(
                    "{} sessions with host {peer}, and {} that it has not used",
                    counted.len(),
                    provisional.len()
                ),
            ));
        }
        Ok(new)
    }

    fn enter(&mut self, peer: usize, session: &Arc<Session>) -> Result<(), Violation> {
        let (local, remote) = (session.local_index(), session.remote_index());
        let places = self.by_remote.entry(remote).or_default();
        // Both sides choose their index at random for each handshake.
        if let Some(before) = self.by_local.get(&local)
            && places.contains(before)
        {
            return Err(Violation::new(
                Invariant::CounterOnce,
                format!("the keys of session {local:08x}/{remote:08x} are put in place again"),
            ));
        }
        let place = self.all.len();
        places.push(place);
        self.by_local.insert(local, place);
        self.all.push(Tracked {
            session: Arc::downgrade(session),
            peer,
            initiator: session.role() == Role::Initiator,
            hybrid: session.suite().is_some(),
            confirmed: false,
            born: session.born().0,
            used: Counters::default(),
        });
        Ok(())
    }

    /// Records that a message of a session is sent. Returns the peer.
    ///
    /// # Errors
    /// If the counter has been used before, the session is too old, or its initiator has not used
    /// it yet.
    pub fn sent(
        &mut self,
        remote_index: u32,
        counter: u64,
        now: Nanos,
    ) -> Result<usize, Violation> {
        let Some(places) = self.by_remote.get(&remote_index) else {
            return Err(Violation::new(
                Invariant::CounterOnce,
                format!("data sent for index {remote_index:08x}, which no session has"),
            ));
        };
        // Whitepaper §6.3: the responder may not send before it has received.
        let may_send = |place: &&usize| {
            let tracked = self.all.get(**place);
            tracked.is_some_and(|tracked| tracked.initiator || tracked.confirmed)
        };
        let place = places.iter().rev().find(may_send).copied();
        let Some(tracked) = place.and_then(|place| self.all.get_mut(place)) else {
            return Err(Violation::new(
                Invariant::KeyUse,
                format!("session {remote_index:08x} sends before its initiator has used it"),
            ));
        };
        let next = tracked.used.next;
        if !tracked.used.enter(counter, self.lanes) {
            return Err(Violation::new(
                Invariant::CounterOnce,
                format!(
                    "counter {counter} of session {remote_index:08x} sent again (the greatest is {})",
                    next.saturating_sub(1)
                ),
            ));
        }
        check_age(now, tracked.born, "sends")?;
        Ok(tracked.peer)
    }

    /// Records that a message of a session has been accepted. Returns the session's age.
    ///
    /// # Errors
    /// If the session is too old.
    pub fn accepted(&mut self, local_index: u32, now: Nanos) -> Result<Nanos, Violation> {
        let tracked = self
            .by_local
            .get(&local_index)
            .and_then(|i| self.all.get_mut(*i));
        match tracked {
            Some(tracked) => {
                tracked.confirmed = true;
                check_age(now, tracked.born, "receives").map(|()| now - tracked.born)
            }
            None => Err(Violation::new(
                Invariant::Delivery,
                format!("data accepted for index {local_index:08x}, which no session has"),
            )),
        }
    }

    /// Returns true if a session is old enough that sending must renew it.
    #[must_use]
    pub fn wants_renewal(&self, remote_index: u32, now: Nanos) -> bool {
        let places = self.by_remote.get(&remote_index);
        let mut tracked = places
            .into_iter()
            .flatten()
            .filter_map(|i| self.all.get(*i));
        tracked.any(|t| t.initiator && now - t.born >= REKEY)
    }

    /// Returns the peer of a session.
    #[must_use]
    pub fn peer_of(&self, session: &Arc<Session>) -> Option<usize> {
        self.find_local(session).map(|tracked| tracked.peer)
    }

    /// Returns the number of sessions in memory.
    #[must_use]
    pub fn alive(&self) -> usize {
        let rest = &self.all[self.oldest.min(self.all.len())..];
        rest.iter().filter(|t| t.session.strong_count() > 0).count()
    }

    /// Checks that no expired session is in memory.
    ///
    /// # Errors
    /// If one is.
    pub fn check_expired(&mut self, now: Nanos) -> Result<(), Violation> {
        while let Some(tracked) = self.all.get(self.oldest) {
            if tracked.session.strong_count() > 0 {
                if now - tracked.born > ERASE {
                    return Err(Violation::new(
                        Invariant::KeyMemory,
                        format!(
                            "the keys of a session with host {} are in memory at {}, born at {}",
                            tracked.peer,
                            Time(now),
                            Time(tracked.born)
                        ),
                    ));
                }
                break;
            }
            self.oldest += 1;
        }
        Ok(())
    }

    /// Checks that no session with `peer` (or with any peer, if `None`) is left.
    ///
    /// # Errors
    /// If one is.
    pub fn check_erased(&self, peer: Option<usize>, why: &str) -> Result<(), Violation> {
        let left = self.all[self.oldest.min(self.all.len())..]
            .iter()
            .filter(|t| peer.is_none_or(|peer| t.peer == peer))
            .find(|t| t.session.strong_count() > 0);
        match left {
            Some(left) => Err(Violation::new(
                Invariant::KeyMemory,
                format!(
                    "the keys of a session with host {} are in memory {why}",
                    left.peer
                ),
            )),
            None => Ok(()),
        }
    }

    fn find_local(&self, session: &Arc<Session>) -> Option<&Tracked> {
        let tracked = self.all.get(*self.by_local.get(&session.local_index())?)?;
        core::ptr::eq(tracked.session.as_ptr(), Arc::as_ptr(session)).then_some(tracked)
    }
}

fn check_age(now: Nanos, born: Nanos, does: &str) -> Result<(), Violation> {
    if now - born < REJECT {
        return Ok(());
    }
    Err(Violation::new(
        Invariant::KeyUse,
        format!("a session {does} at {}, born at {}", Time(now), Time(born)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn fires_when_a_counter_is_used_again() {
        let (mut sessions, alive, born) = testing::sessions(1);
        let index = alive[0].remote_index();
        sessions.sent(index, 5, born).unwrap();
        sessions.sent(index, 7, born).unwrap();
        for again in [5, 6, 7] {
            let violation = sessions.sent(index, again, born).unwrap_err();
            assert_eq!(violation.invariant, Invariant::CounterOnce);
        }
        sessions.sent(index, 8, born).unwrap();
        assert!(
            sessions.sent(index ^ 1, 0, born).is_err(),
            "no such session"
        );
    }

    #[test]
    fn lanes_may_use_lower_counters_once() {
        let mut used = Counters::default();
        for counter in [130, 5, 64, 131, 6] {
            assert!(used.enter(counter, Lanes::Two), "{counter}");
        }
        for again in [5, 6, 64, 130, 131] {
            assert!(!used.enter(again, Lanes::Two), "{again}");
        }
        assert!(used.enter(200, Lanes::One));
        assert!(!used.enter(199, Lanes::One), "lower, and the only lane");
    }

    #[test]
    fn fires_when_the_same_keys_are_put_in_place_again() {
        // Two worlds of one seed make equal but distinct sessions.
        let episode = testing::episode(0);
        let [first, again] = [0, 1].map(|_| testing::session_of(&episode));
        let mut sessions = Sessions::default();
        sessions.observe(1, &first).unwrap();
        assert_eq!(sessions.observe(1, &first).unwrap(), 0);
        let violation = sessions.observe(1, &again).unwrap_err();
        assert_eq!(violation.invariant, Invariant::CounterOnce);
    }

    #[test]
    fn fires_when_a_responder_sends_before_it_has_received() {
        let (mut sessions, alive, born) = testing::responded(1);
        let (local, remote) = (alive[0].local_index(), alive[0].remote_index());
        let early = sessions.sent(remote, 0, born).unwrap_err();
        assert_eq!(early.invariant, Invariant::KeyUse);
        sessions.accepted(local, born).unwrap();
        sessions.sent(remote, 0, born).unwrap();
    }

    #[test]
    fn fires_when_a_session_is_used_at_180_seconds() {
        let (mut sessions, alive, born) = testing::sessions(1);
        let (local, remote) = (alive[0].local_index(), alive[0].remote_index());
        sessions.accepted(local, born + REJECT - 1).unwrap();
        sessions.sent(remote, 0, born + REJECT - 1).unwrap();
        let late = sessions.accepted(local, born + REJECT).unwrap_err();
        assert_eq!(late.invariant, Invariant::KeyUse);
        let late = sessions.sent(remote, 1, born + REJECT).unwrap_err();
        assert_eq!(late.invariant, Invariant::KeyUse);
    }

    #[test]
    fn fires_when_keys_stay_in_memory() {
        let (mut sessions, alive, born) = testing::sessions(1);
        sessions.check_expired(born + ERASE).unwrap();
        let late = sessions.check_expired(born + ERASE + 1).unwrap_err();
        assert_eq!(late.invariant, Invariant::KeyMemory);
        assert!(sessions.check_erased(None, "").is_err());
        assert!(sessions.check_erased(Some(1), "").is_err());
        sessions.check_erased(Some(2), "").unwrap();
        drop(alive);
        sessions.check_erased(None, "").unwrap();
        sessions.check_expired(born + ERASE + 1).unwrap();
    }

    #[test]
    fn fires_on_a_fourth_session_with_a_peer() {
        let mut sessions = Sessions::default();
        let all: Vec<_> = (0..4).map(|_| testing::sessions(1).1.remove(0)).collect();
        sessions.observe(1, &all[..3]).unwrap();
        let fourth = sessions.observe(1, &all).unwrap_err();
        assert_eq!(fourth.invariant, Invariant::Memory);
    }

    #[test]
    fn renewal_is_wanted_of_initiators_at_120_seconds() {
        let (sessions, alive, born) = testing::sessions(1);
        let index = alive[0].remote_index();
        assert!(!sessions.wants_renewal(index, born + REKEY - 1));
        assert!(sessions.wants_renewal(index, born + REKEY));
    }
}
