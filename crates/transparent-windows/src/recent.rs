//! What is remembered of things that were seen of late, in bounded room.

use std::{collections::HashMap, hash::Hash};

/// A map that forgets what has not been used for longest, roughly: it has two halves, and when
/// the newer is full, the older is emptied and they change places.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
    /// Entries of each half.
    half: usize,
}

impl<K: Hash + Eq, V: Clone> Recent<K, V> {
    /// Of at most so many entries.
    pub(super) fn new(most: usize) -> Self {
        Self {
            newer: HashMap::new(),
            older: HashMap::new(),
            half: (most / 2).max(1),
        }
    }

    /// What was kept last, which counts as a use.
    pub(super) fn get(&mut self, key: &K) -> Option<V>
    where
        K: Clone,
    {
        if let Some(value) = self.newer.get(key) {
            return Some(value.clone());
        }
        let value = self.older.remove(key)?;
        self.keep(key.clone(), value.clone());
        Some(value)
    }

    pub(super) fn keep(&mut self, key: K, value: V) {
        self.older.remove(&key);
        if self.newer.len() >= self.half && !self.newer.contains_key(&key) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }

    pub(super) fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.newer.values().chain(self.older.values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_room_is_bounded() {
        let mut recent = Recent::new(8);
        recent.keep(0, 'a');
        for key in 1..100 {
            recent.keep(key, 'b');
            assert_eq!(recent.get(&0), Some('a'), "after {key}");
            assert!(recent.values().count() <= 8);
            assert_eq!(recent.get(&key), Some('b'));
        }
        assert_eq!(recent.get(&50), None);
        recent.keep(0, 'c');
        assert_eq!(recent.get(&0), Some('c'));
        recent.clear();
        assert_eq!((recent.get(&0), recent.values().count()), (None, 0));
    }
}
