//! Changes of configuration.

use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate};

use super::World;
use crate::host::{Conf, prefixes};
use crate::plan::SECOND;
use crate::violation::{Invariant, Violation};

/// The peers that a change of configuration affects; determines which expectations are reset.
#[derive(Clone, Copy)]
pub(crate) enum AffectedPeers {
    /// A peer that stays the same.
    Unchanged(usize),
    /// A new or removed peer.
    Recreated(usize),
    /// All peers: the device has another key.
    All,
    /// None: the expectations remain.
    None,
}

impl World<'_> {
    pub(super) fn remove(&mut self, host: usize, other: usize) -> Result<(), Violation> {
        self.stats.changes += 1;
        let Some(conf) = &mut self.hosts[host].peers[other] else {
            return Ok(());
        };
        if !core::mem::take(&mut conf.present) {
            return Ok(());
        }
        let mut update = PeerUpdate::new(conf.key);
        update.remove = true;
        self.apply(host, AffectedPeers::Recreated(other), vec![update])?;
        let h = &mut self.hosts[host];
        if let Some(node) = &h.node {
            node.sessions
                .check_erased(Some(other), "after the peer was removed")?;
        }
        h.check_memory()
    }

    /// Configures a peer completely; a peer with another key is removed first.
    pub(super) fn configure(
        &mut self,
        host: usize,
        other: usize,
        before: Option<PublicKey>,
    ) -> Result<(), Violation> {
        let now = self.now;
        self.stats.changes += 1;
        if let Some(pair) = self.pair(host, other) {
            pair.disturbed = now;
        }
        let h = &self.hosts[host];
        let mut updates = Vec::new();
        if let Some(before) = before {
            let mut update = PeerUpdate::new(before);
            update.remove = true;
            updates.push(update);
        }
        updates.extend(h.peer_update(other));
        self.apply(host, AffectedPeers::Recreated(other), updates)?;
        let h = &self.hosts[host];
        if before.is_some()
            && let Some(node) = &h.node
        {
            node.sessions
                .check_erased(Some(other), "after its peer was replaced")?;
        }
        Ok(())
    }

    pub(super) fn change(
        &mut self,
        host: usize,
        other: usize,
        change: impl FnOnce(&mut Conf, &mut PeerUpdate),
    ) -> Result<(), Violation> {
        if self.hosts[host].suspended_since.is_some() {
            return Ok(());
        }
        self.stats.changes += 1;
        let Some(conf) = &mut self.hosts[host].peers[other] else {
            return Ok(());
        };
        let mut update = PeerUpdate::new(conf.key);
        update.update_only = true;
        change(conf, &mut update);
        self.apply(host, AffectedPeers::Unchanged(other), vec![update])
    }

    pub(crate) fn apply(
        &mut self,
        host: usize,
        affected: AffectedPeers,
        peers: Vec<PeerUpdate>,
    ) -> Result<(), Violation> {
        self.update(
            host,
            affected,
            DeviceUpdate {
                peers,
                ..DeviceUpdate::default()
            },
        )
    }

    pub(crate) fn update(
        &mut self,
        host: usize,
        affected: AffectedPeers,
        update: DeviceUpdate,
    ) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let Some(node) = &mut h.node else {
            return Ok(());
        };
        node.idle.used();
        if let Err(error) = node.device.update(clocks, update) {
            let what = format!("host {host} refuses an update: {error}");
            return Err(Violation::new(Invariant::Memory, what));
        }
        match affected {
            AffectedPeers::Unchanged(other) => {
                let up = node.device.is_up();
                let keepalive = h.peers[other].filter(|_| up);
                let keepalive = keepalive.map_or(0, |conf| u64::from(conf.keepalive));
                let endpoint = h.endpoint_of(other).is_some();
                if let Some(node) = &mut h.node {
                    node.timers[other].configured(clocks.boot.0, keepalive * SECOND, endpoint);
                }
            }
            AffectedPeers::Recreated(other) => h.reset_timers(other, self.now),
            AffectedPeers::None => {}
            AffectedPeers::All => {
                (0..h.peers.len()).for_each(|other| h.reset_timers(other, self.now))
            }
        }
        self.drain_output(host)
    }

    pub(super) fn new_key(&mut self, host: usize) -> Result<(), Violation> {
        self.stats.changes += 1;
        let crypto = self.crypto;
        let h = self.mark_disturbed(host);
        h.change_key(crypto);
        let update = DeviceUpdate {
            private_key: Some(h.key_update()),
            ..DeviceUpdate::default()
        };
        self.update(host, AffectedPeers::All, update)
    }

    pub(super) fn move_allowed_ips(
        &mut self,
        host: usize,
        from: usize,
        to: usize,
    ) -> Result<bool, Violation> {
        let present =
            |other: usize| self.hosts[host].peers[other].filter(|c| c.present && c.allowed);
        let (Some(_), Some(target)) = (present(from), present(to)) else {
            return Ok(false);
        };
        if from == to || self.hosts[host].suspended_since.is_some() {
            return Ok(false);
        }
        self.stats.changes += 1;
        if let Some(conf) = &mut self.hosts[host].peers[from] {
            conf.allowed = false;
        }
        let mut update = PeerUpdate::new(target.key);
        update.update_only = true;
        update.allowed_ips = prefixes(from);
        self.apply(host, AffectedPeers::Unchanged(to), vec![update])?;
        Ok(true)
    }

    pub(super) fn restore_allowed_ips(
        &mut self,
        host: usize,
        from: usize,
        to: usize,
    ) -> Result<(), Violation> {
        let (Some(back), Some(target)) = (self.hosts[host].peers[from], self.hosts[host].peers[to])
        else {
            return Ok(());
        };
        if let Some(conf) = &mut self.hosts[host].peers[from] {
            conf.allowed = true;
        }
        let now = self.now;
        if let Some(pair) = self.pair(host, from) {
            pair.disturbed = now;
        }
        let mut take = PeerUpdate::new(target.key);
        take.update_only = true;
        let mut give = PeerUpdate::new(back.key);
        give.update_only = true;
        give.allowed_ips = prefixes(from);
        take.allowed_ips = prefixes(from)
            .into_iter()
            .map(|change| match change {
                AllowedIpChange::Add(prefix) => AllowedIpChange::Remove(prefix),
                remove @ AllowedIpChange::Remove(_) => remove,
            })
            .collect();
        self.apply(host, AffectedPeers::Unchanged(to), vec![take])?;
        self.apply(host, AffectedPeers::Unchanged(from), vec![give])
    }
}
