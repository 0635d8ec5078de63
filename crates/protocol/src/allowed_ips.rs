//! Allowed IPs (whitepaper §2): a table that maps an inner address to a peer.
//!
//! One longest-prefix table serves all peers, so that a packet's source is checked against the
//! most specific prefix of *any* peer, as in the kernel.
//!
//! A clone shares all nodes with its original, and a change copies only the nodes on its path. So
//! a table of any size can be cloned, changed and swapped in cheaply while readers use the old
//! one.

mod tree;

use core::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use tree::{Key, Tree};

/// Longest-prefix table from prefixes to `T`.
#[derive(Clone)]
pub struct AllowedIps<T> {
    v4: Tree<u32, T>,
    v6: Tree<u128, T>,
}

impl<T> Default for AllowedIps<T> {
    fn default() -> Self {
        Self {
            v4: Tree::default(),
            v6: Tree::default(),
        }
    }
}

impl<T: Clone> AllowedIps<T> {
    /// Assigns `prefix` to `owner`, replacing any other owner. Host bits are ignored.
    pub fn insert(&mut self, prefix: IpNet, owner: T) {
        let length = prefix.prefix_len();
        match prefix.network() {
            IpAddr::V4(a) => self.v4.insert(Key::new(a.into(), length), owner),
            IpAddr::V6(a) => self.v6.insert(Key::new(a.into(), length), owner),
        }
    }

    /// Removes `prefix` if `gone` holds for its owner. Host bits are ignored.
    pub fn remove(&mut self, prefix: IpNet, gone: impl FnOnce(&T) -> bool) {
        let length = prefix.prefix_len();
        match prefix.network() {
            IpAddr::V4(a) => self.v4.remove(Key::new(a.into(), length), gone),
            IpAddr::V6(a) => self.v6.remove(Key::new(a.into(), length), gone),
        }
    }

    /// Removes every prefix of the owners for which `keep` does not hold.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let mut gone = Vec::new();
        self.for_each(|prefix, owner| {
            if !keep(owner) {
                gone.push(prefix);
            }
        });
        for prefix in gone {
            self.remove(prefix, |_| true);
        }
    }

    /// Returns the owner of the longest prefix that contains `address`.
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<&T> {
        match address {
            IpAddr::V4(a) => self.v4.lookup(a.into()),
            IpAddr::V6(a) => self.v6.lookup(a.into()),
        }
    }

    /// Calls `each` with every prefix and its owner, in no particular order.
    pub fn for_each(&self, mut each: impl FnMut(IpNet, &T)) {
        self.v4.for_each(&mut |bits: u32, length, owner| {
            if let Ok(prefix) = Ipv4Net::new(bits.into(), length) {
                each(prefix.into(), owner);
            }
        });
        self.v6.for_each(&mut |bits: u128, length, owner| {
            if let Ok(prefix) = Ipv6Net::new(bits.into(), length) {
                each(prefix.into(), owner);
            }
        });
    }
}

#[cfg(test)]
mod tests;
