//! Carries out the actions of a plan.

use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate};

use crate::host::{Host, new_address, prefixes};
use crate::plan::{Action, Hostile, Nanos, SECOND};
use crate::violation::{Invariant, Violation};
use crate::world::{Event, Later, World};

/// The peers that a change of configuration affects; determines which expectations are reset.
#[derive(Clone, Copy)]
pub(crate) enum About {
    /// A peer that stays the same.
    Known(usize),
    /// A new or removed peer.
    Fresh(usize),
    /// All peers: the device has another key.
    Everyone,
    /// None: the expectations remain.
    Nobody,
}

use About::{Everyone, Fresh, Known};

impl World<'_> {
    /// Carries out a planned action.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), Violation> {
        let now = self.now;
        match action {
            Action::Flow {
                edge,
                side,
                pattern,
                interval,
                span,
            } => {
                self.start_flow(edge, side, pattern, interval, span);
            }
            Action::Probe { edge } => self.start_probe(edge),
            Action::Bulk {
                edge,
                side,
                packets,
            } => self.bulk(edge, side, packets.into())?,
            Action::Impair {
                edge,
                quality,
                span,
            } => {
                for side in 0..2 {
                    self.link(edge, side).impair(quality, now + span);
                }
            }
            Action::Partition { edge, sides, span } => {
                for side in (0..2).filter(|side| sides[*side]) {
                    self.link(edge, side).cut(now + span);
                }
            }
            Action::Rebind { host } => {
                self.stats.roams += 1;
                let port = self.random.between(1024, 65536) as u16;
                let h = self.disturb(host);
                h.address.set_port(port);
            }
            Action::Roam { host } => {
                self.stats.roams += 1;
                let address = new_address(host, &mut self.random);
                self.disturb(host).address = address;
            }
            Action::Crash {
                host,
                keep_labels,
                keep_endpoints,
                span,
                wall_jump,
            } => {
                self.crash(host, keep_labels, keep_endpoints, wall_jump)?;
                let reboot = self.random.once_in(2);
                self.start_later(host, span, reboot);
            }
            Action::Restart { host, span } if self.hosts[host].runs() => {
                self.close(host)?;
                self.start_later(host, span, false);
            }
            Action::ClockJump { host, by } => {
                self.stats.clock_jumps += 1;
                self.hosts[host].jump(by);
            }
            Action::Suspend { host, span } if self.hosts[host].runs() => {
                self.stats.suspends += 1;
                self.disturb(host).asleep = Some(now);
                self.at(now + span, Event::Later(Later::Wake { host }));
            }
            Action::Down { host, span } if self.hosts[host].runs() => {
                self.stats.changes += 1;
                self.disturb(host);
                self.down(host)?;
                self.at(now + span, Event::Later(Later::Up { host }));
            }
            Action::Remove { edge, side, span } => {
                let (host, other) = self.sides(edge, side);
                if self.hosts[host].asleep.is_none() {
                    self.remove(host, other)?;
                    self.pairs[edge].disturbed = now;
                    self.at(now + span, Event::Later(Later::Add { host, other }));
                }
            }
            Action::Preshared { edge, side, gap } => {
                let (host, other) = self.sides(edge, side);
                self.stats.changes += 1;
                self.pairs[edge].disturbed = now;
                let number = now + 2;
                self.at(
                    now,
                    Event::Later(Later::Preshared {
                        host,
                        other,
                        number,
                    }),
                );
                self.at(
                    now + gap,
                    Event::Later(Later::Preshared {
                        host: other,
                        other: host,
                        number,
                    }),
                );
            }
            Action::Endpoint { edge, side } => {
                let (host, other) = self.sides(edge, side);
                let address = self.hosts[other].address;
                self.change(host, other, |conf, update| {
                    conf.endpoint = Some(address);
                    update.endpoint = Some(address);
                })?;
            }
            Action::Keepalive {
                edge,
                side,
                seconds,
            } => {
                let (host, other) = self.sides(edge, side);
                self.change(host, other, |conf, update| {
                    conf.keepalive = seconds;
                    update.persistent_keepalive = Some(seconds);
                })?;
            }
            Action::PrivateKey { host, gap } if self.hosts[host].runs() => {
                self.new_key(host)?;
                for other in 0..self.hosts.len() {
                    if self.hosts[host].peers[other].is_some() {
                        let after = self.random.below(gap + 1);
                        self.at(
                            now + after,
                            Event::Later(Later::TellKey {
                                host: other,
                                other: host,
                            }),
                        );
                    }
                }
            }
            Action::Seed { host, gap } => self.new_seed(host, gap)?,
            Action::Hybrid {
                edge,
                side,
                agreed,
                gap,
            } => self.change_hybrid(edge, side, agreed, gap),
            Action::MoveAllowed {
                host,
                from,
                to,
                span,
            } => {
                let moved = self.move_allowed(host, from, to)?;
                if moved {
                    self.at(
                        now + span,
                        Event::Later(Later::AllowedBack { host, from, to }),
                    );
                }
            }
            Action::Load { host, span } => self.hosts[host].loaded_until = now + span,
            Action::Attack { host, kind, count } => {
                for _ in 0..count {
                    self.attack(host, kind)?;
                }
            }
            Action::Ambush { span } => self.ambush_until = now + span,
            Action::Restart { .. }
            | Action::Suspend { .. }
            | Action::Down { .. }
            | Action::PrivateKey { .. } => {}
        }
        Ok(())
    }

    /// Carries out the second half of an action. It waits while its host is suspended.
    pub(crate) fn act_later(&mut self, later: Later) -> Result<(), Violation> {
        let now = self.now;
        let host = later.host();
        if self.hosts[host].asleep.is_some() && !matches!(later, Later::Wake { .. }) {
            self.at(now + 5 * SECOND, Event::Later(later));
            return Ok(());
        }
        match later {
            Later::Start {
                host,
                incarnation,
                reboot,
            } => {
                let h = self.disturb(host);
                if h.node.is_none() && h.incarnation == incarnation {
                    let crypto = self.crypto;
                    self.hosts[host].start(crypto, now, reboot);
                    self.settle(host)?;
                }
            }
            Later::Wake { host } => self.wake(host),
            Later::Up { host } => {
                let clocks = self.disturb(host).clocks(now);
                // The host may have been restarted meanwhile, and be up.
                let node = self.hosts[host].node.as_mut();
                if let Some(node) = node.filter(|node| !node.device.is_up()) {
                    node.device.set_up(clocks);
                    for other in 0..self.hosts.len() {
                        self.hosts[host].reset_pulse(other, now);
                    }
                    self.settle(host)?;
                }
            }
            Later::Add { host, other } => {
                let address = self.hosts[other].address;
                let told = self.random.once_in(2);
                let key = self.hosts[other].public;
                if let Some(conf) = &mut self.hosts[host].peers[other] {
                    conf.present = true;
                    conf.generation += 1;
                    conf.key = key;
                    if told {
                        conf.endpoint = Some(address);
                    }
                }
                self.configure(host, other, None)?;
            }
            Later::TellKey { host, other } => {
                let key = self.hosts[other].public;
                let Some(conf) = &mut self.hosts[host].peers[other] else {
                    return Ok(());
                };
                let before = core::mem::replace(&mut conf.key, key);
                conf.generation += 1;
                if conf.present && before != key {
                    self.configure(host, other, Some(before))?;
                }
            }
            Later::Preshared {
                host,
                other,
                number,
            } => {
                let preshared = self.hosts[host].preshared(other, number);
                if let Some(pair) = self.pair(host, other) {
                    pair.disturbed = now;
                }
                self.change(host, other, |conf, update| {
                    conf.preshared = number;
                    update.preshared_key = Some(preshared);
                })?;
            }
            Later::TellSeed { host, other } => self.tell_seed(host, other)?,
            Later::Hybrid { host, other, conf } => self.configure_hybrid(host, other, conf)?,
            Later::AllowedBack { host, from, to } => self.allowed_back(host, from, to)?,
            Later::Ambush { host } => {
                for kind in [
                    Hostile::ForgedResponse,
                    Hostile::ForgedCookie,
                    Hostile::BitFlip,
                ] {
                    self.attack(host, kind)?;
                }
                self.ambush_initiator(host)?;
                let target = self.captures.initiation(host).map(|(to, _)| to);
                target.map_or(Ok(()), |target| self.steal_as(target, host))?;
            }
            Later::EdgeOfWindow { host, incarnation } => self.replay_kept(host, incarnation)?,
        }
        Ok(())
    }

    /// Records that something kept a host from exchanging packets.
    fn disturb(&mut self, host: usize) -> &mut Host {
        let host = &mut self.hosts[host];
        host.disturbed = self.now;
        host
    }

    fn sides(&self, edge: usize, side: usize) -> (usize, usize) {
        let hosts = self.pairs[edge].hosts;
        (hosts[side], hosts[1 - side])
    }

    fn link(&mut self, edge: usize, side: usize) -> &mut crate::network::Link {
        let (from, to) = self.sides(edge, side);
        let n = self.hosts.len();
        &mut self.links[from * n + to]
    }

    fn crash(
        &mut self,
        host: usize,
        keep_labels: bool,
        keep_endpoints: bool,
        wall_jump: i64,
    ) -> Result<(), Violation> {
        self.stats.crashes += 1;
        let known: Vec<_> = (0..self.hosts.len())
            .map(|o| self.hosts[host].endpoint_of(o))
            .collect();
        let h = self.disturb(host);
        let sessions = h.crash(keep_labels);
        h.jump(wall_jump);
        if keep_endpoints {
            for (conf, known) in h.peers.iter_mut().zip(known) {
                if let Some(conf) = conf {
                    conf.endpoint = known.or(conf.endpoint);
                }
            }
        }
        sessions.map_or(Ok(()), |sessions| {
            sessions.gone(None, "after the device has ended")
        })
    }

    /// Closes the device regularly.
    fn close(&mut self, host: usize) -> Result<(), Violation> {
        self.stats.changes += 1;
        if let Some(node) = &mut self.hosts[host].node {
            node.device.close();
            node.sessions.gone(None, "after the device was closed")?;
        }
        self.settle(host)?;
        self.hosts[host].check_memory()?;
        self.disturb(host).crash(true);
        Ok(())
    }

    fn start_later(&mut self, host: usize, span: Nanos, reboot: bool) {
        let incarnation = self.hosts[host].incarnation;
        let start = Later::Start {
            host,
            incarnation,
            reboot,
        };
        self.at(self.now + span, Event::Later(start));
    }

    fn wake(&mut self, host: usize) {
        let now = self.now;
        let h = self.disturb(host);
        let Some(since) = h.asleep.take() else {
            return;
        };
        let (since, boot) = (h.boot(since).0, h.boot(now).0);
        if let Some(node) = &mut h.node {
            for pulse in &mut node.pulses {
                pulse.slept(since, boot);
            }
        }
    }

    /// Resumes all suspended hosts.
    pub(crate) fn wake_all(&mut self) {
        for host in 0..self.hosts.len() {
            self.wake(host);
        }
    }

    fn down(&mut self, host: usize) -> Result<(), Violation> {
        let now = self.now;
        let h = &mut self.hosts[host];
        if let Some(node) = &mut h.node {
            node.device.set_down();
            node.sessions.gone(None, "after the device went down")?;
        }
        for other in 0..h.peers.len() {
            h.reset_pulse(other, now);
        }
        self.settle(host)?;
        self.hosts[host].check_memory()
    }

    fn remove(&mut self, host: usize, other: usize) -> Result<(), Violation> {
        self.stats.changes += 1;
        let Some(conf) = &mut self.hosts[host].peers[other] else {
            return Ok(());
        };
        if !core::mem::take(&mut conf.present) {
            return Ok(());
        }
        let mut update = PeerUpdate::new(conf.key);
        update.remove = true;
        self.apply(host, Fresh(other), vec![update])?;
        let h = &mut self.hosts[host];
        if let Some(node) = &h.node {
            node.sessions
                .gone(Some(other), "after the peer was removed")?;
        }
        h.check_memory()
    }

    /// Configures a peer completely; a peer with another key is removed first.
    fn configure(
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
        self.apply(host, Fresh(other), updates)?;
        let h = &self.hosts[host];
        if before.is_some()
            && let Some(node) = &h.node
        {
            node.sessions
                .gone(Some(other), "after its peer was replaced")?;
        }
        Ok(())
    }

    fn change(
        &mut self,
        host: usize,
        other: usize,
        change: impl FnOnce(&mut crate::host::Conf, &mut PeerUpdate),
    ) -> Result<(), Violation> {
        if self.hosts[host].asleep.is_some() {
            return Ok(());
        }
        self.stats.changes += 1;
        let Some(conf) = &mut self.hosts[host].peers[other] else {
            return Ok(());
        };
        let mut update = PeerUpdate::new(conf.key);
        update.update_only = true;
        change(conf, &mut update);
        self.apply(host, Known(other), vec![update])
    }

    pub(crate) fn apply(
        &mut self,
        host: usize,
        about: About,
        peers: Vec<PeerUpdate>,
    ) -> Result<(), Violation> {
        self.update(
            host,
            about,
            DeviceUpdate {
                peers,
                ..DeviceUpdate::default()
            },
        )
    }

    pub(crate) fn update(
        &mut self,
        host: usize,
        about: About,
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
        match about {
            Known(other) => {
                let up = node.device.is_up();
                let keepalive = h.peers[other].filter(|_| up);
                let keepalive = keepalive.map_or(0, |conf| u64::from(conf.keepalive));
                let endpoint = h.endpoint_of(other).is_some();
                if let Some(node) = &mut h.node {
                    node.pulses[other].configured(clocks.boot.0, keepalive * SECOND, endpoint);
                }
            }
            Fresh(other) => h.reset_pulse(other, self.now),
            About::Nobody => {}
            Everyone => (0..h.peers.len()).for_each(|other| h.reset_pulse(other, self.now)),
        }
        self.settle(host)
    }

    fn new_key(&mut self, host: usize) -> Result<(), Violation> {
        self.stats.changes += 1;
        let crypto = self.crypto;
        let h = self.disturb(host);
        h.change_key(crypto);
        let update = DeviceUpdate {
            private_key: Some(h.key_update()),
            ..DeviceUpdate::default()
        };
        self.update(host, Everyone, update)
    }

    fn move_allowed(&mut self, host: usize, from: usize, to: usize) -> Result<bool, Violation> {
        let present =
            |other: usize| self.hosts[host].peers[other].filter(|c| c.present && c.allowed);
        let (Some(_), Some(target)) = (present(from), present(to)) else {
            return Ok(false);
        };
        if from == to || self.hosts[host].asleep.is_some() {
            return Ok(false);
        }
        self.stats.changes += 1;
        if let Some(conf) = &mut self.hosts[host].peers[from] {
            conf.allowed = false;
        }
        let mut update = PeerUpdate::new(target.key);
        update.update_only = true;
        update.allowed_ips = prefixes(from);
        self.apply(host, Known(to), vec![update])?;
        Ok(true)
    }

    fn allowed_back(&mut self, host: usize, from: usize, to: usize) -> Result<(), Violation> {
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
        self.apply(host, Known(to), vec![take])?;
        self.apply(host, Known(from), vec![give])
    }
}

impl Later {
    fn host(self) -> usize {
        match self {
            Self::Start { host, .. }
            | Self::Wake { host }
            | Self::Up { host }
            | Self::Add { host, .. }
            | Self::TellKey { host, .. }
            | Self::Preshared { host, .. }
            | Self::TellSeed { host, .. }
            | Self::Hybrid { host, .. }
            | Self::AllowedBack { host, .. }
            | Self::Ambush { host }
            | Self::EdgeOfWindow { host, .. } => host,
        }
    }
}
