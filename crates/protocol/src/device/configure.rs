//! Configuration: applies updates to a running device, and reports its status.

use core::time::Duration;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::Arc;

use ipnet::IpNet;

use crate::device::hybrid_settings::HybridUpdate;
use crate::device::identity::DeviceIdentity;
use crate::device::{Device, UpdateError};
use crate::key::PublicKey;
use crate::limits::MAX_PEERS;
use crate::lock;
use crate::output::Output;
use crate::path::{DataPath, Routes};
use crate::peer::{Peer, PeerEntry, PeerId, Timer, set_endpoint};
use crate::time::Now;
use crate::update::{
    AllowedIpChange, DeviceStatus, DeviceUpdate, PeerStatus, PeerUpdate, PrivateKeyUpdate,
    SessionStatus, Unanswered,
};

impl Device {
    /// Applies one transaction of configuration.
    ///
    /// # Errors
    /// [`UpdateError`] if there would be too many peers; then nothing is applied.
    pub fn update(&mut self, now: Now, update: DeviceUpdate) -> Result<(), UpdateError> {
        self.check(&update)?;
        let mut routes = RoutesEdit::new(&self.core.path);
        // Peers are removed before the key is set, so that they get no message made with the new
        // key.
        if update.replace_peers {
            for id in self.peers.ids() {
                self.remove_peer(id);
            }
            routes.after = Routes::default();
        }
        // Peers to send to once everything is in place; true if a keepalive is due.
        let mut touched: BTreeMap<PeerId, bool> = BTreeMap::new();
        if let Some(private_key) = update.private_key {
            touched = self.set_private_key(private_key, &mut routes);
        }
        if let Some(key) = update.pq_private_key {
            for id in self.set_pq_private_key(key) {
                if let Some(entry) = self.peers.entry(id) {
                    self.core.run_pending_work(now, entry);
                }
            }
        }
        // All peers that lose their allowed IPs lose them in one pass over the table.
        let losing: BTreeSet<PeerId> = update
            .peers
            .iter()
            .filter(|peer| peer.remove || peer.replace_allowed_ips)
            .filter_map(|peer| self.peers.find(&peer.public_key))
            .collect();
        if !losing.is_empty() {
            routes.forget(&losing);
        }
        for peer in update.peers {
            // A peer that is added later in this update may reuse the number of a removed one.
            if let Some(id) = self.peers.find(&peer.public_key)
                && peer.remove
            {
                touched.remove(&id);
            }
            if let Some((id, keepalive)) = self.update_peer(peer, &mut routes) {
                *touched.entry(id).or_default() |= keepalive;
            }
        }
        // The routes must be in place before waiting packets are sent.
        routes.commit(&self.core.path);
        for (id, keepalive) in touched {
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            if keepalive {
                self.core.send_keepalive(now, entry);
            } else {
                self.core.flush(now, entry);
            }
            self.core.run_pending_work(now, entry);
        }
        Ok(())
    }

    /// Checks whether [`Device::update`] would accept `update`.
    ///
    /// # Errors
    /// Those of [`Device::update`].
    pub fn check(&self, update: &DeviceUpdate) -> Result<(), UpdateError> {
        let present = if update.replace_peers {
            0
        } else {
            self.peers.by_key.len()
        };
        if present + update.peers.len() <= MAX_PEERS {
            return Ok(());
        }
        let added: BTreeSet<&PublicKey> = update
            .peers
            .iter()
            .filter(|peer| !peer.remove && !peer.update_only)
            .map(|peer| &peer.public_key)
            .filter(|key| update.replace_peers || self.peers.find(key).is_none())
            .collect();
        let total = present + added.len();
        if total > MAX_PEERS {
            return Err(UpdateError::TooManyPeers(total));
        }
        Ok(())
    }

    /// Returns the device's configuration and state.
    #[must_use]
    pub fn status(&self) -> DeviceStatus {
        let mut allowed_ips: Vec<Vec<IpNet>> = vec![Vec::new(); self.peers.entries.len()];
        let routes = self.core.path.routes.load();
        routes.allowed_ips.for_each(|prefix, owner| {
            if let Some(prefixes) = allowed_ips.get_mut(owner.id().0 as usize) {
                prefixes.push(prefix);
            }
        });
        let mut entries: Vec<&PeerEntry> = self
            .peers
            .entries
            .iter()
            .flatten()
            .map(|entry| &**entry)
            .collect();
        entries.sort_by_key(|entry| entry.added);
        let peers = entries
            .into_iter()
            .map(|entry| {
                let prefixes = allowed_ips.get_mut(entry.peer.id().0 as usize);
                let mut prefixes = prefixes.map(core::mem::take).unwrap_or_default();
                prefixes.sort_unstable();
                let state = lock(&entry.peer.state);
                let hybrid = entry.hybrid.as_ref();
                let current = state.sessions.current.as_ref();
                let sending = current.filter(|current| current.may_send);
                PeerStatus {
                    public_key: *entry.peer.public_key(),
                    preshared_key: entry.preshared_key.clone(),
                    pq_public_key: hybrid.and_then(|it| it.remote.pq_public_key.clone()),
                    post_quantum: hybrid.and_then(|it| it.setting),
                    pq_pinned: hybrid.is_some_and(|it| it.pinned),
                    session: sending.map(|current| SessionStatus {
                        suite: current.session.suite(),
                        born: current.session.born(),
                    }),
                    lanes: current.and_then(|current| state.lanes.status(&current.session)),
                    endpoint: state.endpoint.map(|endpoint| endpoint.remote),
                    endpoint_name: entry
                        .named_endpoint
                        .as_ref()
                        .map(|named| named.name.clone()),
                    latest_handshake: entry.latest_handshake,
                    unanswered: state.initiation.unanswered.map(|since| Unanswered {
                        initiations: state.initiation.count,
                        since,
                    }),
                    tx_bytes: state.statistics.tx_bytes,
                    rx_bytes: state.statistics.rx_bytes,
                    persistent_keepalive: state.keepalive.interval.as_secs() as u16,
                    allowed_ips: prefixes,
                }
            })
            .collect();
        DeviceStatus {
            private_key: self.core.identity.as_ref().map(|i| i.keys.private.clone()),
            pq_private_key: self.core.pq_private_key.clone(),
            peers,
        }
    }

    /// Sets or removes the private key. Returns the peers that need a new session. For each, the
    /// value is true if a keepalive is due at once. That is only so if there was no key before:
    /// after a change of key, the peers may have to be configured with the new one first, and an
    /// initiation that comes too early delays the next one by Rekey-Timeout.
    fn set_private_key(
        &mut self,
        update: PrivateKeyUpdate,
        routes: &mut RoutesEdit,
    ) -> BTreeMap<PeerId, bool> {
        let mut touched = BTreeMap::new();
        let current = self.core.identity.as_ref().map(|i| &i.keys.private);
        if current == update.key.as_ref() {
            return touched;
        }
        let had_key = self.core.identity.is_some();
        if let Some(before) = &mut self.core.identity {
            before.release(&mut self.core.outputs);
        }
        self.core.identity = update.key.map(|private| {
            let seed = self.core.pq_private_key.as_ref();
            DeviceIdentity::new(self.core.crypto, private, seed, update.timestamp_floor)
        });
        // A device cannot be its own peer.
        let own = self.core.identity.as_ref().map(|i| i.keys.public);
        if let Some(id) = own.and_then(|key| self.peers.find(&key)) {
            self.remove_peer(id);
            routes.forget(&BTreeSet::from([id]));
        }
        for id in self.peers.ids() {
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            self.core.abandon_initiation(entry);
            self.core.forget_provisional(entry, |_| true);
            // The fact is stored per device key: store it for the new key, so that the peer
            // cannot be downgraded to ordinary handshakes.
            let peer = *entry.peer.public_key();
            let pinned = entry.hybrid.as_ref().is_some_and(|hybrid| hybrid.pinned);
            if let (true, Some(public_key)) = (pinned, own) {
                self.core.outputs.push_back(Output::PinPostQuantum {
                    public_key,
                    peer,
                    pinned,
                });
            }
            if let Some(handshakes) = &mut entry.handshakes {
                handshakes.precomputed = None;
                handshakes.timestamp_sent = None;
            }
            let mut state = lock(&entry.peer.state);
            state.initiation.last_sent = None;
            state.initiation.unanswered = None;
            state.initiation.attempts = 0;
            state.sessions.renewed_on_receive = false;
            state.timers.stop(Timer::Retransmit);
            state.timers.stop(Timer::ResendParts);
            // Packets sent to the old key may still arrive, but the session sends no more.
            if let Some(current) = &mut state.sessions.current {
                current.may_send = false;
            }
            let next = state.sessions.next.take();
            state.sessions.retired.extend(next);
            let keepalive = self.core.up && !had_key && !state.keepalive.interval.is_zero();
            touched.insert(id, keepalive);
        }
        touched
    }

    /// Applies the change of one peer. Returns the peer, and true if a keepalive is due at once.
    fn update_peer(
        &mut self,
        update: PeerUpdate,
        routes: &mut RoutesEdit,
    ) -> Option<(PeerId, bool)> {
        let key = update.public_key;
        let known = self.peers.find(&key);
        if update.remove {
            if let Some(id) = known {
                self.remove_peer(id);
                routes.remove_added(id);
            }
            return None;
        }
        let own = self
            .core
            .identity
            .as_ref()
            .is_some_and(|i| i.keys.public == key);
        if own || (known.is_none() && update.update_only) {
            return None;
        }
        let id = known.unwrap_or_else(|| self.add_peer(key));
        let up = self.core.up;
        let hybrid = HybridUpdate {
            key: update.pq_public_key,
            setting: update.post_quantum,
            pinned: update.pq_pinned,
        };
        self.update_hybrid(id, hybrid);
        let entry = self.peers.entry(id)?;
        if let Some(preshared_key) = update.preshared_key
            && entry.preshared_key != preshared_key
        {
            entry.preshared_key = preshared_key;
            self.core.forget_provisional(entry, |_| true);
        }
        match (update.endpoint_name, update.endpoint) {
            (Some(name), _) => entry.set_name(name),
            (None, Some(_)) => entry.set_name(None),
            (None, None) => {}
        }
        let mut state = lock(&entry.peer.state);
        if let Some(endpoint) = update.endpoint {
            set_endpoint(&mut state, endpoint);
        }
        let mut keepalive = up && update.keepalive_now;
        if let Some(seconds) = update.persistent_keepalive {
            keepalive |= up && seconds > 0 && state.keepalive.interval.is_zero();
            state.keepalive.interval = Duration::from_secs(seconds.into());
            if seconds == 0 {
                state.timers.stop(Timer::PersistentKeepalive);
            }
        }
        drop(state);
        if update.replace_allowed_ips {
            routes.remove_added(id);
        }
        if !update.allowed_ips.is_empty() {
            routes.change(&entry.peer, update.allowed_ips);
        }
        Some((id, keepalive))
    }

    fn add_peer(&mut self, key: PublicKey) -> PeerId {
        let id = self.peers.add(key);
        let up = self.core.up;
        if let Some(entry) = self.peers.entry(id) {
            lock(&entry.peer.state).up = up;
        }
        id
    }

    /// Removes a peer. The caller removes its routes.
    fn remove_peer(&mut self, id: PeerId) {
        if let Some(entry) = self.peers.entry(id) {
            self.core.stop_peer(entry);
        }
        let removed = self.peers.remove(id);
        if let Some(entry) = &removed {
            lock(&entry.peer.state).removed = true;
        }
        // If the peer is added again, it still refuses timestamps that it has received before.
        let sent = removed.and_then(|entry| entry.timestamp_sent());
        if let (Some(identity), Some(sent)) = (&mut self.core.identity, sent) {
            identity.floor = identity.floor.max(sent);
        }
    }
}

/// A change of the routes. It is made on a copy and then swapped in, so that no packet sees half
/// of it.
struct RoutesEdit {
    after: Routes,
    /// Changes of allowed IPs made by this edit, per peer.
    changes: BTreeMap<PeerId, Vec<AllowedIpChange>>,
}

impl RoutesEdit {
    fn new(path: &DataPath) -> Self {
        Self {
            after: Routes::clone(&path.routes.load()),
            changes: BTreeMap::new(),
        }
    }

    /// Removes all prefixes of the peers in `losing`, in one pass over the table.
    fn forget(&mut self, losing: &BTreeSet<PeerId>) {
        let table = &mut self.after.allowed_ips;
        table.retain(|owner| !losing.contains(&owner.id()));
    }

    /// Removes the prefixes that this edit has added to a peer.
    fn remove_added(&mut self, id: PeerId) {
        for change in self.changes.remove(&id).unwrap_or_default() {
            if let AllowedIpChange::Add(prefix) = change {
                let table = &mut self.after.allowed_ips;
                table.remove(prefix, |owner| owner.id() == id);
            }
        }
    }

    fn change(&mut self, peer: &Arc<Peer>, changes: Vec<AllowedIpChange>) {
        let table = &mut self.after.allowed_ips;
        for change in &changes {
            match *change {
                AllowedIpChange::Add(prefix) => table.insert(prefix, Arc::clone(peer)),
                AllowedIpChange::Remove(prefix) => {
                    table.remove(prefix, |owner| Arc::ptr_eq(owner, peer));
                }
            }
        }
        match self.changes.entry(peer.id()) {
            Entry::Vacant(entry) => {
                entry.insert(changes);
            }
            Entry::Occupied(mut entry) => entry.get_mut().extend(changes),
        }
    }

    fn commit(self, path: &DataPath) {
        path.routes.store(Arc::new(self.after));
    }
}
