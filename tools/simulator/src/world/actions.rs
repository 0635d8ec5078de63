//! Carries out the actions of a plan.

use super::World;
use super::queue::{Event, FollowUp};
use crate::host::{Host, new_address};
use crate::network::Link;
use crate::plan::{Action, Hostile, Nanos, SECOND};
use crate::violation::Violation;

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
                let h = self.mark_disturbed(host);
                h.address.set_port(port);
            }
            Action::Roam { host } => {
                self.stats.roams += 1;
                let address = new_address(host, &mut self.random);
                self.mark_disturbed(host).address = address;
            }
            Action::Crash {
                host,
                keep_timestamps,
                keep_endpoints,
                span,
                wall_jump,
            } => {
                self.crash(host, keep_timestamps, keep_endpoints, wall_jump)?;
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
                self.mark_disturbed(host).suspended_since = Some(now);
                self.schedule(now + span, Event::FollowUp(FollowUp::Wake { host }));
            }
            Action::Down { host, span } if self.hosts[host].runs() => {
                self.stats.changes += 1;
                self.mark_disturbed(host);
                self.down(host)?;
                self.schedule(now + span, Event::FollowUp(FollowUp::Up { host }));
            }
            Action::Remove { edge, side, span } => {
                let (host, other) = self.sides(edge, side);
                if self.hosts[host].suspended_since.is_none() {
                    self.remove(host, other)?;
                    self.pairs[edge].disturbed = now;
                    self.schedule(now + span, Event::FollowUp(FollowUp::Add { host, other }));
                }
            }
            Action::Preshared { edge, side, gap } => {
                let (host, other) = self.sides(edge, side);
                self.stats.changes += 1;
                self.pairs[edge].disturbed = now;
                let number = now + 2;
                self.schedule(
                    now,
                    Event::FollowUp(FollowUp::Preshared {
                        host,
                        other,
                        number,
                    }),
                );
                self.schedule(
                    now + gap,
                    Event::FollowUp(FollowUp::Preshared {
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
                        self.schedule(
                            now + after,
                            Event::FollowUp(FollowUp::ConfigureKey {
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
                let moved = self.move_allowed_ips(host, from, to)?;
                if moved {
                    self.schedule(
                        now + span,
                        Event::FollowUp(FollowUp::RestoreAllowedIps { host, from, to }),
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
    pub(crate) fn follow_up(&mut self, later: FollowUp) -> Result<(), Violation> {
        let now = self.now;
        let host = later.host();
        if self.hosts[host].suspended_since.is_some() && !matches!(later, FollowUp::Wake { .. }) {
            self.schedule(now + 5 * SECOND, Event::FollowUp(later));
            return Ok(());
        }
        match later {
            FollowUp::Start {
                host,
                incarnation,
                reboot,
            } => {
                let h = self.mark_disturbed(host);
                if h.node.is_none() && h.incarnation == incarnation {
                    let crypto = self.crypto;
                    self.hosts[host].start(crypto, now, reboot);
                    self.drain_output(host)?;
                }
            }
            FollowUp::Wake { host } => self.wake(host),
            FollowUp::Up { host } => {
                let clocks = self.mark_disturbed(host).clocks(now);
                // The host may have been restarted meanwhile, and be up.
                let node = self.hosts[host].node.as_mut();
                if let Some(node) = node.filter(|node| !node.device.is_up()) {
                    node.device.set_up(clocks);
                    for other in 0..self.hosts.len() {
                        self.hosts[host].reset_timers(other, now);
                    }
                    self.drain_output(host)?;
                }
            }
            FollowUp::Add { host, other } => {
                let address = self.hosts[other].address;
                let knows_endpoint = self.random.once_in(2);
                let key = self.hosts[other].public;
                if let Some(conf) = &mut self.hosts[host].peers[other] {
                    conf.present = true;
                    conf.generation += 1;
                    conf.key = key;
                    if knows_endpoint {
                        conf.endpoint = Some(address);
                    }
                }
                self.configure(host, other, None)?;
            }
            FollowUp::ConfigureKey { host, other } => {
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
            FollowUp::Preshared {
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
            FollowUp::ConfigurePqKey { host, other } => self.configure_pq_key(host, other)?,
            FollowUp::Hybrid { host, other, conf } => self.configure_hybrid(host, other, conf)?,
            FollowUp::RestoreAllowedIps { host, from, to } => {
                self.restore_allowed_ips(host, from, to)?
            }
            FollowUp::Ambush { host } => {
                for kind in [
                    Hostile::ForgedResponse,
                    Hostile::ForgedCookie,
                    Hostile::BitFlip,
                ] {
                    self.attack(host, kind)?;
                }
                self.ambush_initiator(host)?;
                let target = self.captures.initiation(host).map(|(to, _)| to);
                target.map_or(Ok(()), |target| self.impersonate(target, host))?;
            }
            FollowUp::EdgeOfWindow { host, incarnation } => {
                self.replay_edge_packets(host, incarnation)?
            }
        }
        Ok(())
    }

    /// Records that something kept a host from exchanging packets.
    pub(super) fn mark_disturbed(&mut self, host: usize) -> &mut Host {
        let host = &mut self.hosts[host];
        host.disturbed = self.now;
        host
    }

    fn sides(&self, edge: usize, side: usize) -> (usize, usize) {
        let hosts = self.pairs[edge].hosts;
        (hosts[side], hosts[1 - side])
    }

    fn link(&mut self, edge: usize, side: usize) -> &mut Link {
        let (from, to) = self.sides(edge, side);
        let n = self.hosts.len();
        &mut self.links[from * n + to]
    }

    fn crash(
        &mut self,
        host: usize,
        keep_timestamps: bool,
        keep_endpoints: bool,
        wall_jump: i64,
    ) -> Result<(), Violation> {
        self.stats.crashes += 1;
        let known: Vec<_> = (0..self.hosts.len())
            .map(|o| self.hosts[host].endpoint_of(o))
            .collect();
        let h = self.mark_disturbed(host);
        let sessions = h.crash(keep_timestamps);
        h.jump(wall_jump);
        if keep_endpoints {
            for (conf, known) in h.peers.iter_mut().zip(known) {
                if let Some(conf) = conf {
                    conf.endpoint = known.or(conf.endpoint);
                }
            }
        }
        sessions.map_or(Ok(()), |sessions| {
            sessions.check_erased(None, "after the device has ended")
        })
    }

    /// Closes the device regularly.
    fn close(&mut self, host: usize) -> Result<(), Violation> {
        self.stats.changes += 1;
        if let Some(node) = &mut self.hosts[host].node {
            node.device.close();
            node.sessions
                .check_erased(None, "after the device was closed")?;
        }
        self.drain_output(host)?;
        self.hosts[host].check_memory()?;
        self.mark_disturbed(host).crash(true);
        Ok(())
    }

    fn start_later(&mut self, host: usize, span: Nanos, reboot: bool) {
        let incarnation = self.hosts[host].incarnation;
        let start = FollowUp::Start {
            host,
            incarnation,
            reboot,
        };
        self.schedule(self.now + span, Event::FollowUp(start));
    }

    fn wake(&mut self, host: usize) {
        let now = self.now;
        let h = self.mark_disturbed(host);
        let Some(since) = h.suspended_since.take() else {
            return;
        };
        let (since, boot) = (h.boot(since).0, h.boot(now).0);
        if let Some(node) = &mut h.node {
            for timers in &mut node.timers {
                timers.suspended(since, boot);
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
            node.sessions
                .check_erased(None, "after the device went down")?;
        }
        for other in 0..h.peers.len() {
            h.reset_timers(other, now);
        }
        self.drain_output(host)?;
        self.hosts[host].check_memory()
    }
}
