//! Hybrid handshakes of simulated hosts: their settings, changes of the settings, and the sessions
//! that may result (docs/post-quantum.md).

use taupe_crypto::Secret;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PublicKey};
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PostQuantum};

use crate::act::About;
use crate::host::Host;
use crate::plan::{Agreed, Nanos, SECOND};
use crate::random::Random;
use crate::violation::{Invariant, Violation};
use crate::world::{Event, Later, World};

/// After three unanswered handshakes of one kind, each with Rekey-Timeout and its jitter, the other
/// kind is tried.
const OTHER_WAY: Nanos = 16 * SECOND;

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
    fn set_hybrid(&mut self, other: usize, hybrid: Option<HybridConf>) {
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

impl World<'_> {
    /// Changes the settings of both sides of a pair, one after the other.
    pub(crate) fn change_hybrid(
        &mut self,
        edge: usize,
        side: usize,
        agreed: Option<Agreed>,
        gap: Nanos,
    ) {
        let hosts = self.pairs[edge].hosts;
        for (at, side) in [(self.now, side), (self.now + gap, 1 - side)] {
            let later = Later::Hybrid {
                host: hosts[side],
                other: hosts[1 - side],
                conf: agreed.map(|agreed| HybridConf::new(agreed, side)),
            };
            self.at(at, Event::Later(later));
        }
    }

    /// Changes the settings of one side.
    pub(crate) fn configure_hybrid(
        &mut self,
        host: usize,
        other: usize,
        conf: Option<HybridConf>,
    ) -> Result<(), Violation> {
        self.stats.changes += 1;
        let seed = self.hosts[other].seed_number;
        let conf = conf.map(|conf| HybridConf { seed, ..conf });
        let had_seed = self.hosts[host].has_seed;
        self.hosts[host].set_hybrid(other, conf);
        if !had_seed && self.hosts[host].has_seed {
            self.tell_device_seed(host)?;
        }
        self.tell_device_peer(host, other)
    }

    /// Changes the seed of a host; its peers get the new key within `gap`.
    pub(crate) fn new_seed(&mut self, host: usize, gap: Nanos) -> Result<(), Violation> {
        if !self.hosts[host].has_seed || !self.hosts[host].runs() {
            return Ok(());
        }
        self.stats.changes += 1;
        self.hosts[host].seed_number += 1;
        self.hosts[host].disturbed = self.now;
        self.tell_device_seed(host)?;
        for other in 0..self.hosts.len() {
            let after = self.random.below(gap + 1);
            let tell = Later::TellSeed {
                host: other,
                other: host,
            };
            if self.hosts[other].peers[host].is_some() {
                self.at(self.now + after, Event::Later(tell));
            }
        }
        Ok(())
    }

    /// Configures another host's new ML-KEM key.
    pub(crate) fn tell_seed(&mut self, host: usize, other: usize) -> Result<(), Violation> {
        let seed = self.hosts[other].seed_number;
        let conf = self.hosts[host].peers[other].and_then(|conf| conf.hybrid);
        match conf {
            Some(conf) if conf.seed != seed => {
                let conf = HybridConf { seed, ..conf };
                self.hosts[host].set_hybrid(other, Some(conf));
                self.tell_device_peer(host, other)
            }
            _ => Ok(()),
        }
    }

    fn tell_device_seed(&mut self, host: usize) -> Result<(), Violation> {
        let update = DeviceUpdate {
            pq_private_key: Some(self.hosts[host].pq_private()),
            ..DeviceUpdate::default()
        };
        for pulse in self.hosts[host]
            .node
            .iter_mut()
            .flat_map(|node| &mut node.pulses)
        {
            pulse.abandoned();
        }
        self.update(host, About::Nobody, update)
    }

    fn tell_device_peer(&mut self, host: usize, other: usize) -> Result<(), Violation> {
        let now = self.now;
        if let Some(pair) = self.pair(host, other) {
            pair.disturbed = now;
        }
        let h = &self.hosts[host];
        let Some(conf) = h.peers[other].filter(|conf| conf.present) else {
            return Ok(());
        };
        let mut update = PeerUpdate::new(conf.key);
        update.update_only = true;
        h.hybrid_update(other, &mut update);
        if let Some(node) = &mut self.hosts[host].node {
            node.pulses[other].abandoned();
        }
        self.apply(host, About::Known(other), vec![update])?;
        self.check_suites(host)
    }

    /// Returns the longest time that two hosts need to find a handshake that both allow, or `None`
    /// if there is none.
    pub(crate) fn agree_on_handshake(&self, a: usize, b: usize) -> Option<Nanos> {
        use PostQuantum::{Off, Prefer, Require};
        let hybrid = |host: usize, other: usize| {
            let conf = self.hosts[host].peers[other]?.hybrid?;
            let current = conf.seed == self.hosts[other].seed_number;
            (current || !conf.suite.has_static_keys()).then_some(conf.suite)
        };
        let suites = (hybrid(a, b), hybrid(b, a));
        let same_suite = matches!(suites, (Some(one), Some(other)) if one == other);
        match (self.hosts[a].policy(b), self.hosts[b].policy(a)) {
            (Off, Off) => Some(0),
            (Off, Require) | (Require, Off) => None,
            (Off, Prefer) | (Prefer, Off) | (Prefer, Prefer) => Some(OTHER_WAY),
            (Require, Require) => same_suite.then_some(0),
            (Prefer, Require) | (Require, Prefer) => same_suite.then_some(OTHER_WAY),
        }
    }

    /// Checks that a host has no session of a kind that it forbids, and that the other end, if it
    /// has the session too, agrees on its kind.
    pub(crate) fn check_suites(&self, host: usize) -> Result<(), Violation> {
        let h = &self.hosts[host];
        let Some(node) = &h.node else {
            return Ok(());
        };
        for session in node.device.sessions() {
            let Some(other) = node.sessions.peer_of(&session) else {
                continue;
            };
            let Some(conf) = h.peers[other].filter(|conf| conf.present) else {
                continue;
            };
            let wanted = conf.hybrid.map(|hybrid| hybrid.suite);
            let allowed = match h.policy(other) {
                PostQuantum::Off => session.suite().is_none(),
                PostQuantum::Prefer => session.suite().is_none() || session.suite() == wanted,
                PostQuantum::Require => session.suite() == wanted,
            };
            if !allowed {
                let what = format!(
                    "has a session of suite {:?} where {:?} {wanted:?} holds",
                    session.suite(),
                    h.policy(other)
                );
                return Err(Violation::new(Invariant::Suite, what).between(host, other));
            }
            let other_end = self.hosts[other].node.as_ref().and_then(|node| {
                let sessions = node.device.sessions();
                let is_it = |it: &&std::sync::Arc<taupe_protocol::Session>| {
                    it.local_index() == session.remote_index()
                        && it.remote_index() == session.local_index()
                };
                sessions.iter().find(is_it).map(|it| it.suite())
            });
            if other_end.is_some_and(|suite| suite != session.suite()) {
                let what = format!(
                    "{:?} at one end, {other_end:?} at the other",
                    session.suite()
                );
                return Err(Violation::new(Invariant::Suite, what).between(host, other));
            }
        }
        Ok(())
    }
}
