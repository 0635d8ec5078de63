//! Calls in progress: of everybody, of each connection, and of each user.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls of everybody at one time, at most. Each has a thread.
pub(crate) const MAX_CALLS: usize = 32;

/// Calls of one user at one time, at most. More are refused, not queued.
pub(crate) const MAX_CALLS_OF_USER: usize = 4;

/// Calls of one connection to the bus at one time, at most.
pub(crate) const MAX_CALLS_OF_CONNECTION: usize = 4;

/// Counters of calls.
#[derive(Clone, Default)]
pub(crate) struct Limits(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    all: usize,
    /// By the unique name, which the bus never uses again.
    connections: HashMap<String, usize>,
    users: HashMap<u32, usize>,
}

/// A place among the calls of everybody, until it is dropped.
pub(crate) struct Place {
    limits: Limits,
    connection: String,
    user: Option<u32>,
}

impl Limits {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place for a call of a connection, if there is one. The user is not known yet: the bus has
    /// to be asked.
    pub(crate) fn take(&self, connection: &str) -> Option<Place> {
        let mut counts = self.counts();
        let own = counts.connections.get(connection).copied();
        let own = own.unwrap_or_default();
        if counts.all >= MAX_CALLS || own >= MAX_CALLS_OF_CONNECTION {
            return None;
        }
        counts.all += 1;
        counts.connections.insert(connection.to_owned(), own + 1);
        Some(Place {
            limits: self.clone(),
            connection: connection.to_owned(),
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
        free(&mut counts.connections, &self.connection);
        if let Some(user) = self.user {
            free(&mut counts.users, &user);
        }
    }
}

/// Gives back one place. Counters of zero are removed, so that the map does not grow.
fn free<K: Clone + Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    match counts.get(key).map_or(0, |count| count - 1) {
        0 => counts.remove(key),
        left => counts.insert(key.clone(), left),
    };
}

#[cfg(test)]
mod tests {
    use super::{Limits, MAX_CALLS, MAX_CALLS_OF_CONNECTION, MAX_CALLS_OF_USER, Place};

    /// Takes as many places as a user gets who makes many calls on each of many connections.
    fn take_all(limits: &Limits) -> Vec<Place> {
        let names = (0..100).map(|number| format!(":1.{number}"));
        let calls = names.flat_map(|name| vec![name; 10]);
        calls.filter_map(|name| limits.take(&name)).collect()
    }

    #[test]
    fn one_connection_cannot_take_all_places() {
        let limits = Limits::default();
        let places: Vec<_> = (0..MAX_CALLS).filter_map(|_| limits.take(":1.1")).collect();
        assert_eq!(places.len(), MAX_CALLS_OF_CONNECTION);
        assert!(limits.take(":1.2").is_some());
        drop(places);
        assert!(limits.counts().connections.is_empty());
    }

    #[test]
    fn one_user_cannot_take_all_places() {
        let limits = Limits::default();
        let mut places = take_all(&limits);
        assert_eq!(places.len(), MAX_CALLS);
        // The bus answers at once whose connections these are. Other calls of the user end by that.
        places.retain_mut(|place| place.take_for(1000));
        assert_eq!(places.len(), MAX_CALLS_OF_USER);
        let mut more = take_all(&limits);
        more.retain_mut(|place| place.take_for(1000));
        assert_eq!(more.len(), 0, "the user has more places");
        assert_eq!(limits.counts().all, MAX_CALLS_OF_USER);
        drop(places);
        let counts = limits.counts();
        assert!(counts.users.is_empty() && counts.connections.is_empty());
        assert_eq!(counts.all, 0);
    }
}
