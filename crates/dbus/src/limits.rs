//! Calls in progress: of everybody, and of each user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls of everybody at one time, at most. Each has a thread.
pub(crate) const MAX_CALLS: usize = 32;

/// Calls of one user at one time, at most. More are refused, not queued.
pub(crate) const MAX_CALLS_OF_USER: usize = 4;

/// Counters of calls.
#[derive(Clone, Default)]
pub(crate) struct Limits(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    all: usize,
    users: HashMap<u32, usize>,
}

/// A place among the calls of everybody, until it is dropped.
pub(crate) struct Place {
    limits: Limits,
    user: Option<u32>,
}

impl Limits {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for a call, if there is one.
    pub(crate) fn take(&self) -> Option<Place> {
        let mut counts = self.counts();
        if counts.all >= MAX_CALLS {
            return None;
        }
        counts.all += 1;
        Some(Place {
            limits: self.clone(),
            user: None,
        })
    }
}

impl Place {
    /// Counts the call as one of this user. Returns false if the user has too many.
    pub(crate) fn take_for(&mut self, user: u32) -> bool {
        let mut counts = self.limits.counts();
        let count = counts.users.entry(user).or_default();
        if *count >= MAX_CALLS_OF_USER {
            return false;
        }
        *count += 1;
        self.user = Some(user);
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.limits.counts();
        counts.all -= 1;
        if let Some(user) = self.user {
            let left = counts.users.get(&user).map_or(0, |count| count - 1);
            match left {
                0 => counts.users.remove(&user),
                left => counts.users.insert(user, left),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, MAX_CALLS, MAX_CALLS_OF_USER};

    #[test]
    fn one_user_cannot_take_all_places() {
        let limits = Limits::default();
        let mut places: Vec<_> = (0..MAX_CALLS)
            .map(|_| limits.take().expect("a place"))
            .collect();
        assert!(limits.take().is_none());
        let taken = places
            .iter_mut()
            .filter_map(|place| place.take_for(1000).then_some(()));
        assert_eq!(taken.count(), MAX_CALLS_OF_USER);
        places.pop();
        let mut place = limits.take().expect("a place");
        assert!(place.take_for(1001));
        drop(places);
        drop(place);
        assert!(limits.counts().users.is_empty());
        assert_eq!(limits.counts().all, 0);
    }
}
