//! Allowed IPs (whitepaper §2): which peer an inner address belongs to.
//!
//! One longest-prefix trie for all peers, so that a packet's source is checked
//! against the most specific prefix that *anybody* has, as in the kernel. Nodes
//! live in one vector, so that a table can be cloned, changed and swapped in
//! while readers go on with the old one.

use core::net::IpAddr;

use crate::update::Prefix;

/// A longest-prefix table from prefixes to `T`.
#[derive(Clone)]
pub struct AllowedIps<T> {
    v4: Trie<T>,
    v6: Trie<T>,
}

impl<T> Default for AllowedIps<T> {
    fn default() -> Self {
        Self {
            v4: Trie::default(),
            v6: Trie::default(),
        }
    }
}

impl<T: Copy + PartialEq> AllowedIps<T> {
    /// Gives `prefix` to `owner`, taking it from whoever had it.
    pub fn insert(&mut self, prefix: Prefix, owner: T) {
        let (trie, key) = self.trie_mut(prefix);
        trie.insert(key, owner);
    }

    /// Takes `prefix` away from `owner`. Does nothing if it is somebody else's.
    pub fn remove(&mut self, prefix: Prefix, owner: T) {
        let (trie, key) = self.trie_mut(prefix);
        trie.remove(key, owner);
    }

    /// Takes every prefix away from those owners for whom `keep` does not hold.
    pub fn retain(&mut self, keep: impl Fn(T) -> bool) {
        for trie in [&mut self.v4, &mut self.v6] {
            let gone: Vec<(Key, T)> = trie.entries().filter(|(_, o)| !keep(*o)).collect();
            for (key, owner) in gone {
                trie.remove(key, owner);
            }
        }
    }

    /// Whose address this is: the owner of the longest prefix that holds it.
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<T> {
        match address {
            IpAddr::V4(a) => self.v4.lookup(u128::from(u32::from(a)) << 96),
            IpAddr::V6(a) => self.v6.lookup(a.into()),
        }
    }

    /// Every prefix with its owner, IPv4 first, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, T)> {
        let v4 = self.v4.entries().filter_map(|(key, owner)| {
            let address = IpAddr::V4(((key.bits >> 96) as u32).into());
            Some((Prefix::new(address, key.length)?, owner))
        });
        let v6 = self.v6.entries().filter_map(|(key, owner)| {
            let address = IpAddr::V6(key.bits.into());
            Some((Prefix::new(address, key.length)?, owner))
        });
        v4.chain(v6)
    }

    fn trie_mut(&mut self, prefix: Prefix) -> (&mut Trie<T>, Key) {
        let length = prefix.length();
        match prefix.address() {
            IpAddr::V4(a) => {
                let bits = u128::from(u32::from(a)) << 96;
                (&mut self.v4, Key { bits, length })
            }
            IpAddr::V6(a) => {
                let bits = a.into();
                (&mut self.v6, Key { bits, length })
            }
        }
    }
}

/// The leading `length` bits of `bits`; the others are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    bits: u128,
    length: u8,
}

impl Key {
    fn holds(self, address: u128) -> bool {
        shared_bits(self.bits, address) >= self.length
    }

    /// Which child of this key `bits` is below.
    fn side(self, bits: u128) -> usize {
        (bits >> (127 - u32::from(self.length).min(127)) & 1) as usize
    }

    fn truncated(self, length: u8) -> Self {
        let host = u128::MAX.checked_shr(u32::from(length)).unwrap_or(0);
        Self {
            bits: self.bits & !host,
            length,
        }
    }
}

fn shared_bits(a: u128, b: u128) -> u8 {
    (a ^ b).leading_zeros() as u8
}

/// A path-compressed binary trie: every node either has an owner or two
/// children.
#[derive(Clone)]
struct Trie<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    root: u32,
}

#[derive(Clone)]
struct Node<T> {
    key: Key,
    owner: Option<T>,
    children: [u32; 2],
}

const NONE: u32 = u32::MAX;

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            root: NONE,
        }
    }
}

/// The place that holds the number of a node: the root, or a child of another.
#[derive(Clone, Copy)]
enum Slot {
    Root,
    Child(u32, usize),
}

impl<T: Copy + PartialEq> Trie<T> {
    fn lookup(&self, address: u128) -> Option<T> {
        let mut found = None;
        let mut at = self.root;
        while let Some(node) = self.nodes.get(at as usize) {
            if !node.key.holds(address) {
                break;
            }
            found = node.owner.or(found);
            if node.key.length == 128 {
                break;
            }
            at = node.children[node.key.side(address)];
        }
        found
    }

    fn insert(&mut self, key: Key, owner: T) {
        let mut slot = Slot::Root;
        loop {
            let at = self.at(slot);
            let Some(node) = self.nodes.get(at as usize) else {
                let leaf = self.add(key, Some(owner), [NONE; 2]);
                self.set(slot, leaf);
                return;
            };
            let here = node.key;
            let common = shared_bits(here.bits, key.bits)
                .min(here.length)
                .min(key.length);
            if here == key {
                self.nodes[at as usize].owner = Some(owner);
                return;
            }
            if common == here.length {
                slot = Slot::Child(at, here.side(key.bits));
                continue;
            }
            // The new key ends above this node, or parts from it.
            let above = key.truncated(common);
            let mut children = [NONE; 2];
            children[above.side(here.bits)] = at;
            let inserted = if common == key.length {
                self.add(key, Some(owner), children)
            } else {
                children[above.side(key.bits)] = self.add(key, Some(owner), [NONE; 2]);
                self.add(above, None, children)
            };
            self.set(slot, inserted);
            return;
        }
    }

    fn remove(&mut self, key: Key, owner: T) {
        let mut slot = Slot::Root;
        let mut parent = None;
        loop {
            let at = self.at(slot);
            let Some(node) = self.nodes.get_mut(at as usize) else {
                return;
            };
            if node.key == key {
                if node.owner == Some(owner) {
                    node.owner = None;
                    self.prune(slot);
                    if let Some(parent) = parent {
                        self.prune(parent);
                    }
                }
                return;
            }
            if node.key.length >= key.length || !node.key.holds(key.bits) {
                return;
            }
            parent = Some(slot);
            slot = Slot::Child(at, node.key.side(key.bits));
        }
    }

    /// Takes out the node in `slot` if it has no owner and fewer than two
    /// children.
    fn prune(&mut self, slot: Slot) {
        let at = self.at(slot);
        let Some(node) = self.nodes.get(at as usize) else {
            return;
        };
        let [left, right] = node.children;
        if node.owner.is_none() && (left == NONE || right == NONE) {
            let child = if left == NONE { right } else { left };
            self.set(slot, child);
            self.free.push(at);
        }
    }

    fn at(&self, slot: Slot) -> u32 {
        match slot {
            Slot::Root => self.root,
            Slot::Child(parent, side) => self.nodes[parent as usize].children[side],
        }
    }

    fn set(&mut self, slot: Slot, to: u32) {
        match slot {
            Slot::Root => self.root = to,
            Slot::Child(parent, side) => self.nodes[parent as usize].children[side] = to,
        }
    }

    fn add(&mut self, key: Key, owner: Option<T>, children: [u32; 2]) -> u32 {
        let node = Node {
            key,
            owner,
            children,
        };
        match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// Every key that has an owner, in the order of addresses.
    fn entries(&self) -> impl Iterator<Item = (Key, T)> {
        let mut pending = vec![self.root];
        core::iter::from_fn(move || {
            loop {
                let node = loop {
                    let at = pending.pop()?;
                    if let Some(node) = self.nodes.get(at as usize) {
                        break node;
                    }
                };
                pending.push(node.children[1]);
                pending.push(node.children[0]);
                if let Some(owner) = node.owner {
                    return Some((node.key, owner));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap()
    }

    fn lookup(table: &AllowedIps<u32>, address: &str) -> Option<u32> {
        table.lookup(address.parse().unwrap())
    }

    #[test]
    fn the_longest_prefix_wins() {
        let mut table = AllowedIps::default();
        for (text, owner) in [
            ("0.0.0.0/0", 1),
            ("10.0.0.0/8", 2),
            ("10.1.0.0/16", 3),
            ("10.1.1.1/32", 4),
            ("::/0", 5),
            ("2001:db8::/32", 6),
            ("2001:db8::1/128", 7),
        ] {
            table.insert(prefix(text), owner);
        }
        for (address, owner) in [
            ("192.0.2.1", 1),
            ("10.2.0.1", 2),
            ("10.1.2.3", 3),
            ("10.1.1.1", 4),
            ("10.1.1.2", 3),
            ("fe80::1", 5),
            ("2001:db8::2", 6),
            ("2001:db8::1", 7),
        ] {
            assert_eq!(lookup(&table, address), Some(owner), "{address}");
        }
        table.remove(prefix("10.1.0.0/16"), 2);
        assert_eq!(lookup(&table, "10.1.2.3"), Some(3), "not the owner");
        table.remove(prefix("10.1.0.0/16"), 3);
        assert_eq!(lookup(&table, "10.1.2.3"), Some(2));
        assert_eq!(lookup(&table, "10.1.1.1"), Some(4));
    }

    /// As the kernel's self-test: random prefixes against a plain list.
    #[test]
    fn agrees_with_a_list() {
        let mut state = 11_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let mut table = AllowedIps::default();
        let mut list: Vec<(Prefix, u32)> = Vec::new();
        for round in 0..4_000 {
            let v6 = random() % 2 == 0;
            // Few distinct leading bits, so that prefixes nest and collide.
            let address: IpAddr = if v6 {
                let bits = u128::from(random() & 0xf00f_00ff) << 96 | u128::from(random() & 0xf);
                IpAddr::V6(bits.into())
            } else {
                IpAddr::V4((random() & 0xf00f_000f).into())
            };
            let length = random() % if v6 { 129 } else { 33 };
            let entry = Prefix::new(address, length as u8).unwrap();
            let owner = random() % 50;
            match random() % 8 {
                0 => {
                    table.remove(entry, owner);
                    list.retain(|(p, o)| (*p, *o) != (entry, owner));
                }
                1 if round % 16 == 1 => {
                    table.retain(|o| o != owner);
                    list.retain(|(_, o)| *o != owner);
                }
                _ => {
                    table.insert(entry, owner);
                    list.retain(|(p, _)| *p != entry);
                    list.push((entry, owner));
                }
            }
            for _ in 0..20 {
                let near = list.get(random() as usize % list.len().max(1));
                let query = match near.map(|(p, _)| p.address()) {
                    Some(IpAddr::V4(a)) => {
                        IpAddr::V4((u32::from(a) ^ (random() & 0x1001_0003)).into())
                    }
                    Some(IpAddr::V6(a)) => {
                        IpAddr::V6((u128::from(a) ^ u128::from(random() & 3)).into())
                    }
                    None => continue,
                };
                let expected = list
                    .iter()
                    .filter(|(p, _)| Prefix::new(query, p.length()) == Some(*p))
                    .filter(|(p, _)| p.address().is_ipv4() == query.is_ipv4())
                    .max_by_key(|(p, _)| p.length())
                    .map(|(_, owner)| *owner);
                assert_eq!(table.lookup(query), expected, "{query} in round {round}");
            }
        }
        let mut all: Vec<_> = table.iter().collect();
        all.sort();
        list.sort();
        assert_eq!(all, list);
        assert!(list.len() > 500);
        for (entry, owner) in list {
            table.remove(entry, owner);
        }
        assert_eq!(table.iter().count(), 0);
        assert_eq!(table.v4.root, NONE);
        assert_eq!(table.v6.root, NONE);
        assert_eq!(table.v4.nodes.len(), table.v4.free.len(), "nothing leaks");
        assert_eq!(table.v6.nodes.len(), table.v6.free.len(), "nothing leaks");
    }
}
