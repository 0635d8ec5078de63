//! Functions for programs with one device per tunnel: explicit handshakes, and index prefixes
//! that identify the device a message belongs to.

use crate::device::{Core, Device};
use crate::key::PublicKey;
use crate::lock;
use crate::time::Now;

impl Device {
    /// Begins a handshake with a peer at once, regardless of Rekey-Timeout. Does nothing if the
    /// device is down, or if there is no such peer.
    pub fn initiate(&mut self, now: Now, key: &PublicKey) {
        let Some(id) = self.peers.find(key) else {
            return;
        };
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        lock(&entry.peer.state).initiation.last_sent = None;
        self.core.send_initiation(now, entry, false);
        self.core.run_pending_work(now, entry);
    }

    /// Makes all new indices start with these 24 bits, so that a program with many devices on one
    /// socket can tell from a message's receiver index which device it belongs to. The other 8
    /// bits are random, which is enough only for a handful of peers. Bits of `prefix` above the
    /// 24th are ignored. A device with several lanes ignores the prefix.
    pub fn set_index_prefix(&mut self, prefix: u32) {
        self.core.index_prefix = Some(prefix << 8);
    }
}

impl Core {
    /// Returns `random` as an index, with the prefix if there is one.
    pub(crate) fn with_index_prefix(&self, random: u32) -> u32 {
        match self.index_prefix {
            Some(prefix) => prefix | random & 0xff,
            None => random,
        }
    }
}
