//! Configuration of hybrid handshakes.

use crate::device::{Core, Device};
use crate::hybrid::{HybridState, RemoteKeys};
use crate::key::{PqPrivateKey, PqPublicKey, PublicKey};
use crate::lock;
use crate::output::Output;
use crate::peer::PeerEntry;
use crate::peer::PeerId;
use crate::update::PostQuantum;

/// Changes of a peer's hybrid settings in an update.
pub(crate) struct HybridUpdate {
    pub(crate) key: Option<Option<PqPublicKey>>,
    pub(crate) setting: Option<Option<PostQuantum>>,
    pub(crate) pinned: bool,
}

impl Device {
    /// Replaces the seed of this side's ML-KEM keys. Sessions made with the old keys still
    /// receive, but no longer send. Returns the affected peers.
    pub(crate) fn set_pq_private_key(&mut self, key: Option<PqPrivateKey>) -> Vec<PeerId> {
        let mut concerned = Vec::new();
        if self.core.pq_private_key == key {
            return concerned;
        }
        self.core.pq_private_key = key;
        if let Some(identity) = &mut self.core.identity {
            identity.expand(self.core.crypto, self.core.pq_private_key.as_ref());
        }
        for id in self.peers.ids() {
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            if entry.hybrid.is_none() {
                continue;
            }
            self.core.abandon_initiation(entry);
            self.core.forget_provisional(entry, |_| true);
            let mut state = lock(&entry.peer.state);
            if let Some(current) = &mut state.sessions.current
                && current.session.suite().is_some()
            {
                current.may_send = false;
            }
            concerned.push(id);
        }
        concerned
    }

    /// Applies changes of a peer's hybrid settings. Removes initiations and sessions that the new
    /// settings do not allow.
    pub(crate) fn update_hybrid(&mut self, id: PeerId, update: HybridUpdate) {
        let crypto = self.core.crypto;
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let HybridUpdate {
            key,
            setting,
            pinned,
        } = update;
        let sets_nothing =
            matches!(key, None | Some(None)) && matches!(setting, None | Some(None)) && !pinned;
        if entry.hybrid.is_none() && sets_nothing {
            return;
        }
        let peer = *entry.peer.public_key();
        let before = (entry.policy(), entry.suite());
        let hybrid = entry
            .hybrid
            .get_or_insert_with(|| Box::new(HybridState::new(crypto, peer)));
        let mut other_key = false;
        if let Some(key) = key
            && key != hybrid.remote.pq_public_key
        {
            hybrid.remote = RemoteKeys::new(crypto, peer, key);
            // Timestamps of another identity say nothing about this one: its messages do not
            // verify here.
            hybrid.timestamp_received = None;
            other_key = true;
        }
        let previous = hybrid.setting;
        hybrid.setting = setting.unwrap_or(previous);
        if other_key || hybrid.setting != previous {
            hybrid.fell_back = false;
            hybrid.restart();
        }
        hybrid.pinned |= pinned && hybrid.setting == Some(PostQuantum::Prefer);
        // `off` also clears a fact that this device does not know: it may have been stored before
        // a restart.
        let is_set_to_off = setting == Some(Some(PostQuantum::Off));
        if is_set_to_off || (hybrid.pinned && hybrid.policy() == PostQuantum::Off) {
            hybrid.pinned = false;
            self.core.store_pin(peer, false);
        }
        let after = (entry.policy(), entry.suite());
        if before == after && !other_key {
            return;
        }
        self.peers.index_identity(id);
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        self.core.abandon_initiation(entry);
        self.core.forget_provisional(entry, |_| true);
        let suite = entry.suite();
        let refuses_ordinary = entry.refuses_ordinary();
        lock(&entry.peer.state)
            .sessions
            .retire_if(|session| match session.suite() {
                None => refuses_ordinary,
                Some(made) => other_key || suite != Some(made),
            });
    }
}

impl Core {
    /// Records that a hybrid handshake with the peer has succeeded, and pins the peer if its policy
    /// is [`PostQuantum::Prefer`].
    pub(crate) fn pin_post_quantum(&mut self, entry: &mut PeerEntry) {
        let Some(hybrid) = entry.hybrid.as_mut() else {
            return;
        };
        hybrid.fell_back = false;
        if hybrid.pinned || hybrid.setting != Some(PostQuantum::Prefer) {
            return;
        }
        hybrid.pinned = true;
        let peer = *entry.peer.public_key();
        let mut state = lock(&entry.peer.state);
        state
            .sessions
            .retire_if(|session| session.suite().is_none());
        drop(state);
        self.store_pin(peer, true);
    }

    fn store_pin(&mut self, peer: PublicKey, pinned: bool) {
        if let Some(identity) = &self.identity {
            self.outputs.push_back(Output::PinPostQuantum {
                public_key: identity.keys.public,
                peer,
                pinned,
            });
        }
    }
}
