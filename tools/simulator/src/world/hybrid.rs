//! Changes of settings for hybrid handshakes, and the sessions that may result
//! (docs/post-quantum.md).

use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PostQuantum};

use super::World;
use super::configuration::AffectedPeers;
use super::queue::{Event, FollowUp};
use crate::host::HybridConf;
use crate::plan::{Agreed, Nanos, SECOND};
use crate::violation::{Invariant, Violation};

/// After three unanswered handshakes of one kind, each with Rekey-Timeout and its jitter, the other
/// kind is tried.
const OTHER_KIND_DELAY: Nanos = 16 * SECOND;

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
            let later = FollowUp::Hybrid {
                host: hosts[side],
                other: hosts[1 - side],
                conf: agreed.map(|agreed| HybridConf::new(agreed, side)),
            };
            self.schedule(at, Event::FollowUp(later));
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
            self.update_device_seed(host)?;
        }
        self.update_device_peer(host, other)
    }

    /// Changes the seed of a host; its peers get the new key within `gap`.
    pub(crate) fn new_seed(&mut self, host: usize, gap: Nanos) -> Result<(), Violation> {
        if !self.hosts[host].has_seed || !self.hosts[host].runs() {
            return Ok(());
        }
        self.stats.changes += 1;
        self.hosts[host].seed_number += 1;
        self.hosts[host].disturbed = self.now;
        self.update_device_seed(host)?;
        for other in 0..self.hosts.len() {
            let after = self.random.below(gap + 1);
            let tell = FollowUp::ConfigurePqKey {
                host: other,
                other: host,
            };
            if self.hosts[other].peers[host].is_some() {
                self.schedule(self.now + after, Event::FollowUp(tell));
            }
        }
        Ok(())
    }

    /// Configures another host's new ML-KEM key.
    pub(crate) fn configure_pq_key(&mut self, host: usize, other: usize) -> Result<(), Violation> {
        let seed = self.hosts[other].seed_number;
        let conf = self.hosts[host].peers[other].and_then(|conf| conf.hybrid);
        match conf {
            Some(conf) if conf.seed != seed => {
                let conf = HybridConf { seed, ..conf };
                self.hosts[host].set_hybrid(other, Some(conf));
                self.update_device_peer(host, other)
            }
            _ => Ok(()),
        }
    }

    fn update_device_seed(&mut self, host: usize) -> Result<(), Violation> {
        let update = DeviceUpdate {
            pq_private_key: Some(self.hosts[host].pq_private()),
            ..DeviceUpdate::default()
        };
        for timers in self.hosts[host]
            .node
            .iter_mut()
            .flat_map(|node| &mut node.timers)
        {
            timers.abandoned();
        }
        self.update(host, AffectedPeers::None, update)
    }

    fn update_device_peer(&mut self, host: usize, other: usize) -> Result<(), Violation> {
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
            node.timers[other].abandoned();
        }
        self.apply(host, AffectedPeers::Unchanged(other), vec![update])?;
        self.check_suites(host)
    }

    /// Returns the longest time that two hosts need to find a handshake that both allow, or `None`
    /// if there is none.
    pub(crate) fn handshake_delay(&self, a: usize, b: usize) -> Option<Nanos> {
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
            (Off, Prefer) | (Prefer, Off) | (Prefer, Prefer) => Some(OTHER_KIND_DELAY),
            (Require, Require) => same_suite.then_some(0),
            (Prefer, Require) | (Require, Prefer) => same_suite.then_some(OTHER_KIND_DELAY),
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
