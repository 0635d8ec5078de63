//! A cache of bounded size.

use std::{collections::HashMap, hash::Hash};

/// A map that removes approximately the least recently used entries. It has two halves: when the
/// newer is full, it replaces the older, whose entries are dropped.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
    /// Maximum number of entries of each half.
    half: usize,
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            newer: HashMap::new(),
            older: HashMap::new(),
            half: (most / 2).max(1),
        }
    }

    /// Returns the value of a key. This counts as a use.
    pub(super) fn get(&mut self, key: &K) -> Option<V>
    where
        K: Clone,
    {
        if let Some(value) = self.newer.get(key) {
            return Some(value.clone());
        }
        let value = self.older.remove(key)?;
        self.insert(key.clone(), value.clone());
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
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
        let mut cache = Cache::new(8);
        cache.insert(0, 'a');
        for key in 1..100 {
            cache.insert(key, 'b');
            assert_eq!(cache.get(&0), Some('a'), "after {key}");
            assert!(cache.values().count() <= 8);
            assert_eq!(cache.get(&key), Some('b'));
        }
        assert_eq!(cache.get(&50), None);
        cache.insert(0, 'c');
        assert_eq!(cache.get(&0), Some('c'));
        cache.clear();
        assert_eq!((cache.get(&0), cache.values().count()), (None, 0));
    }
}
