//! What programs ask for that have a device for each tunnel: handshakes at will, and
//! indices by which they know whose a message is.

use crate::device::{Core, Device};
use crate::key::PublicKey;
use crate::lock;
use crate::time::Now;

impl Device {
    /// Begins a handshake with a peer at once, however long ago the last one was. Nothing
    /// happens when the device is down, or there is no such peer.
    pub fn initiate(&mut self, now: Now, key: &PublicKey) {
        let Some(id) = self.peers.find(key) else {
            return;
        };
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        lock(&entry.peer.state).initiation.last_sent = None;
        self.core.send_initiation(now, entry, false);
        self.core.run_pending(now, entry);
    }

    /// Has every index that is made from now on begin with these 24 bits, so that whoever
    /// has many devices at one socket knows by the receiver index of a message whose it is.
    /// The other 8 bits are random: too few for more than a handful of peers. Bits of
    /// `prefix` above the 24th are ignored.
    pub fn set_index_prefix(&mut self, prefix: u32) {
        self.core.index_prefix = Some(prefix << 8);
    }
}

impl Core {
    /// A random index, within the prefix if there is one.
    pub(crate) fn place(&self, random: u32) -> u32 {
        match self.index_prefix {
            Some(prefix) => prefix | random & 0xff,
            None => random,
        }
    }
}
