//! Every session a device has had: that its counters are used once, that it is
//! not used past its limits, and that its keys are gone when they must be.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use taupe_protocol::{Role, Session};

use crate::plan::{Nanos, SECOND, Time};
use crate::violation::{Invariant, Violation};

// Whitepaper §6.1 and §6.3, not the implementation's constants.
const REJECT: Nanos = 180 * SECOND;
const REKEY: Nanos = 120 * SECOND;
const ERASE: Nanos = 540 * SECOND;
/// Previous, current and next.
const MAX_PER_PEER: usize = 3;

/// One session, without keeping it alive.
struct Tracked {
    session: Weak<Session>,
    peer: usize,
    initiator: bool,
    born: Nanos,
    /// The lowest counter that has not been used.
    next_counter: u64,
}

/// All sessions of one incarnation of a device.
#[derive(Default)]
pub struct Sessions {
    all: Vec<Tracked>,
    by_local: HashMap<u32, usize>,
    by_remote: HashMap<u32, usize>,
    /// All before this one are gone.
    oldest: usize,
}

impl Sessions {
    /// Takes note of the sessions that a device has now; those not seen before
    /// are with `peer`. Returns how many were new.
    ///
    /// # Errors
    /// If there are more than three for a peer.
    pub fn observe(&mut self, peer: usize, sessions: &[Arc<Session>]) -> Result<u64, Violation> {
        let mut new = 0;
        for session in sessions {
            if self.find_local(session).is_none() {
                let place = self.all.len();
                self.by_local.insert(session.local_index(), place);
                self.by_remote.insert(session.remote_index(), place);
                self.all.push(Tracked {
                    session: Arc::downgrade(session),
                    peer,
                    initiator: session.role() == Role::Initiator,
                    born: session.born().0,
                    next_counter: 0,
                });
                new += 1;
            }
        }
        let with_peer = sessions
            .iter()
            .filter(|s| self.find_local(s).is_some_and(|t| t.peer == peer))
            .count();
        if with_peer > MAX_PER_PEER {
            return Err(Violation::new(
                Invariant::Memory,
                format!("{with_peer} sessions with host {peer}"),
            ));
        }
        Ok(new)
    }

    /// A message of a session goes out. Returns its peer.
    ///
    /// # Errors
    /// If its counter has been used before, or the session is too old.
    pub fn sent(
        &mut self,
        remote_index: u32,
        counter: u64,
        now: Nanos,
    ) -> Result<usize, Violation> {
        let tracked = self
            .by_remote
            .get(&remote_index)
            .and_then(|i| self.all.get_mut(*i));
        let Some(tracked) = tracked else {
            return Err(Violation::new(
                Invariant::CounterOnce,
                format!("data sent for index {remote_index:08x}, which no session has"),
            ));
        };
        if counter < tracked.next_counter {
            return Err(Violation::new(
                Invariant::CounterOnce,
                format!(
                    "counter {counter} of session {remote_index:08x} sent again (the next was to be {})",
                    tracked.next_counter
                ),
            ));
        }
        tracked.next_counter = counter + 1;
        young(now, tracked.born, "sends")?;
        Ok(tracked.peer)
    }

    /// A message of a session has been accepted. Returns the session's age.
    ///
    /// # Errors
    /// If the session is too old.
    pub fn accepted(&self, local_index: u32, now: Nanos) -> Result<Nanos, Violation> {
        let tracked = self
            .by_local
            .get(&local_index)
            .and_then(|i| self.all.get(*i));
        match tracked {
            Some(tracked) => young(now, tracked.born, "receives").map(|()| now - tracked.born),
            None => Err(Violation::new(
                Invariant::Delivery,
                format!("data accepted for index {local_index:08x}, which no session has"),
            )),
        }
    }

    /// Whether a session that sends is so old that it must be renewed.
    #[must_use]
    pub fn wants_renewal(&self, remote_index: u32, now: Nanos) -> bool {
        let tracked = self
            .by_remote
            .get(&remote_index)
            .and_then(|i| self.all.get(*i));
        tracked.is_some_and(|t| t.initiator && now - t.born >= REKEY)
    }

    /// How many are in memory.
    #[must_use]
    pub fn alive(&self) -> usize {
        let rest = &self.all[self.oldest.min(self.all.len())..];
        rest.iter().filter(|t| t.session.strong_count() > 0).count()
    }

    /// Checks that no session is in memory that is too old.
    ///
    /// # Errors
    /// If one is.
    pub fn expired(&mut self, now: Nanos) -> Result<(), Violation> {
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

    /// Checks that no session with `peer` (with anybody, if `None`) is left.
    ///
    /// # Errors
    /// If one is.
    pub fn gone(&self, peer: Option<usize>, why: &str) -> Result<(), Violation> {
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

fn young(now: Nanos, born: Nanos, does: &str) -> Result<(), Violation> {
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
        sessions.expired(born + ERASE).unwrap();
        let late = sessions.expired(born + ERASE + 1).unwrap_err();
        assert_eq!(late.invariant, Invariant::KeyMemory);
        assert!(sessions.gone(None, "").is_err());
        assert!(sessions.gone(Some(1), "").is_err());
        sessions.gone(Some(2), "").unwrap();
        drop(alive);
        sessions.gone(None, "").unwrap();
        sessions.expired(born + ERASE + 1).unwrap();
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
