//! State of a device that outlasts it: handshake timestamps, and pinned post-quantum peers.

use std::collections::BTreeSet;
use std::path::Path;

use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;

use crate::pinned_pq::{PinnedPeers, PinnedPeersError};
use crate::timestamps::Timestamps;

/// Place where a device saves its state. All operations may take as long as writing a file.
pub trait SavedState: Send {
    /// Returns the greatest timestamp that a private key may have sent, or zero if none is saved.
    /// `key` is its public key.
    fn timestamp(&mut self, key: &PublicKey) -> Tai64N;

    /// Saves a timestamp durably. If that fails, logs a warning once.
    fn save_timestamp(&mut self, key: &PublicKey, timestamp: Tai64N);

    /// Returns the pinned peers of a private key. `key` is its public key.
    ///
    /// # Errors
    ///
    /// [`PinnedPeersError`]
    fn pinned_peers(&mut self, key: &PublicKey) -> Result<BTreeSet<PublicKey>, PinnedPeersError>;

    /// Pins or unpins a peer durably. If that fails, logs a warning once.
    fn save_pin(&mut self, key: &PublicKey, peer: PublicKey, pinned: bool);
}

/// State that is saved in files.
pub struct StateFiles {
    timestamps: Timestamps,
    pinned: PinnedPeers,
}

impl StateFiles {
    /// Returns the state in a folder. `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn new(folder: Option<&Path>) -> Self {
        Self {
            timestamps: Timestamps::new(folder),
            pinned: PinnedPeers::new(folder),
        }
    }

    /// Returns the state in a folder as [`Self::new`], with a limit of the number of keys and pins that
    /// all devices of this machine may leave there.
    #[must_use]
    pub fn limited(folder: Option<&Path>) -> Self {
        let mut state = Self::new(folder);
        state.timestamps.limit();
        state.pinned.limit();
        state
    }
}

impl SavedState for StateFiles {
    fn timestamp(&mut self, key: &PublicKey) -> Tai64N {
        self.timestamps.load(key)
    }

    fn save_timestamp(&mut self, key: &PublicKey, timestamp: Tai64N) {
        self.timestamps.store(key, timestamp);
    }

    fn pinned_peers(&mut self, key: &PublicKey) -> Result<BTreeSet<PublicKey>, PinnedPeersError> {
        self.pinned.load(key)
    }

    fn save_pin(&mut self, key: &PublicKey, peer: PublicKey, pinned: bool) {
        self.pinned.store(key, peer, pinned);
    }
}
