//! Settings and keys of a host for hybrid handshakes.

use taupe_crypto::Secret;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PublicKey};
use taupe_protocol::update::{PeerUpdate, PostQuantum};

use super::Host;
use crate::plan::Agreed;
use crate::random::Random;

/// Settings of a host for hybrid handshakes with another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HybridConf {
    pub(crate) suite: Suite,
    pub(crate) setting: PostQuantum,
    /// Number of the other's seed for its ML-KEM key, as configured here.
    pub(crate) seed: u64,
}

impl HybridConf {
    pub(crate) fn new(agreed: Agreed, side: usize) -> Self {
        Self {
            suite: agreed.suite,
            setting: agreed.settings[side],
            seed: 0,
        }
    }
}

impl Host {
    /// Returns the seed of its ML-KEM keys, if it has one.
    pub(crate) fn pq_private(&self) -> Option<PqPrivateKey> {
        self.has_seed
            .then(|| seed(self.seed, self.index, self.seed_number))?
    }

    /// Returns the other's static ML-KEM key as configured here, if the suite has one.
    pub(crate) fn pq_public_of(&self, other: usize) -> Option<PqPublicKey> {
        let conf = self.peers[other]?.hybrid?;
        let seed = seed(self.seed, other, conf.seed).filter(|_| conf.suite.has_static_keys())?;
        Some(seed.public(self.crypto, conf.suite))
    }

    /// Adds the settings for hybrid handshakes to an update.
    pub(crate) fn hybrid_update(&self, other: usize, update: &mut PeerUpdate) {
        let conf = self.peers[other].and_then(|conf| conf.hybrid);
        let setting = conf.map(|conf| conf.setting);
        // A configured key implies `require`.
        let implied = conf.is_some_and(|conf| {
            conf.suite == Suite::Hybrid512 && conf.setting == PostQuantum::Require
        });
        update.pq_public_key = Some(self.pq_public_of(other));
        update.post_quantum = Some(setting.filter(|_| !implied));
        let key = self.peers[other].map(|conf| conf.key);
        update.pq_pinned = key.is_some_and(|key| self.pins.contains(&key));
    }

    /// Returns the setting for handshakes with another host.
    pub(crate) fn policy(&self, other: usize) -> PostQuantum {
        let Some(conf) = self.peers[other] else {
            return PostQuantum::Off;
        };
        match conf.hybrid.map(|hybrid| hybrid.setting) {
            Some(PostQuantum::Prefer) if self.pins.contains(&conf.key) => PostQuantum::Require,
            Some(setting) => setting,
            None => PostQuantum::Off,
        }
    }

    /// Stores that `prefer` has become `require`, or that it no longer has.
    pub(crate) fn remember(&mut self, peer: PublicKey, pinned: bool) {
        if pinned {
            self.pins.insert(peer);
        } else {
            self.pins.remove(&peer);
        }
    }

    /// Changes the settings for another host; the device gets them later. `off` clears the stored
    /// `require` of `prefer`.
    pub(crate) fn set_hybrid(&mut self, other: usize, hybrid: Option<HybridConf>) {
        let Some(conf) = &mut self.peers[other] else {
            return;
        };
        if hybrid.is_none_or(|it| it.setting == PostQuantum::Off) {
            self.pins.remove(&conf.key);
        }
        conf.hybrid = hybrid;
        self.has_seed |= hybrid.is_some_and(|it| it.suite.has_static_keys());
    }
}

/// Returns a seed of a host's ML-KEM keys.
fn seed(episode: u64, host: usize, number: u64) -> Option<PqPrivateKey> {
    let stream = 0x40_0000 + (host as u64) * 0x1000 + number;
    PqPrivateKey::new(Secret::new(Random::new(episode, stream).bytes()))
}
