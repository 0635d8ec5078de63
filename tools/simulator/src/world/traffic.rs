//! Applications: they send packets and answer them.

use std::sync::Arc;

use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, data_header};
use taupe_protocol::{Outbound, Role, Staged, padded_len};

use super::pair::{NARROW_PACKET, Pair};
use super::queue::{Event, FollowUp};
use super::{World, describe};
use crate::ledger::{MIN_PACKET, destination};
use crate::plan::{MILLISECOND, Nanos, Pattern, SECOND};
use crate::violation::{Invariant, Violation};

const MTU: usize = 1420;
/// Rekey-On-Receive: 180 − 10 − 5 s.
const RENEW_ON_RECEIVE: Nanos = 165 * SECOND;
const REKEY_TIMEOUT: Nanos = 5 * SECOND;

/// Packets that applications send at once.
pub(crate) struct Packets {
    pub(crate) count: usize,
    pub(crate) len: usize,
    /// True if each packet is to be answered.
    pub(crate) reply: bool,
    /// True if the attacker keeps the datagrams to replay them.
    pub(crate) replay_later: bool,
}

impl Packets {
    pub(crate) fn one(len: usize, reply: bool) -> Self {
        Self {
            count: 1,
            len,
            reply,
            replay_later: false,
        }
    }
}

impl World<'_> {
    /// Returns the pair of two hosts.
    pub(crate) fn pair(&mut self, a: usize, b: usize) -> Option<&mut Pair> {
        let (low, high) = (a.min(b), a.max(b));
        self.pairs.iter_mut().find(|pair| pair.hosts == [low, high])
    }

    /// Returns true if datagrams of more than 1,280 bytes with headers are lost between two hosts.
    pub(crate) fn is_narrow(&self, a: usize, b: usize) -> bool {
        let hosts = [a.min(b), a.max(b)];
        let pair = self.pairs.iter().find(|pair| pair.hosts == hosts);
        pair.is_some_and(|pair| pair.max_packet == NARROW_PACKET)
    }

    pub(crate) fn start_flow(
        &mut self,
        edge: usize,
        side: usize,
        pattern: Pattern,
        interval: Nanos,
        span: Nanos,
    ) {
        let until = self.now + span;
        let pair = &mut self.pairs[edge];
        pair.turn += 1;
        let turn = pair.turn;
        pair.flow = Some((pattern, side, interval, until));
        self.schedule(self.now, Event::Flow { edge, turn });
    }

    /// Carries out one step of a flow.
    pub(crate) fn flow(&mut self, edge: usize, turn: u64) -> Result<(), Violation> {
        let pair = &self.pairs[edge];
        let Some((pattern, side, interval, until)) = pair.flow else {
            return Ok(());
        };
        if turn != pair.turn || self.now >= until {
            return Ok(());
        }
        let (from, to) = (pair.hosts[side], pair.hosts[1 - side]);
        let max_packet = pair.max_packet;
        self.schedule(self.now + interval, Event::Flow { edge, turn });
        let len = self.random.spread(60, max_packet) as usize;
        match pattern {
            Pattern::Request => self.send(from, to, &Packets::one(len, true)),
            Pattern::OneWay => self.send(from, to, &Packets::one(len, false)),
            Pattern::Both => {
                self.send(from, to, &Packets::one(len, false))?;
                self.send(to, from, &Packets::one(len, false))
            }
            Pattern::Burst(count) => {
                let mut left = usize::from(count);
                while left > 0 {
                    let count = left.min(1 + self.random.index(64));
                    left -= count;
                    self.send(
                        from,
                        to,
                        &Packets {
                            count,
                            len,
                            reply: false,
                            replay_later: false,
                        },
                    )?;
                }
                Ok(())
            }
        }
    }

    /// Sends packets from an application on `from` to `to`.
    pub(crate) fn send(
        &mut self,
        from: usize,
        to: usize,
        packets: &Packets,
    ) -> Result<(), Violation> {
        if !self.hosts[from].runs() {
            return Ok(());
        }
        let clocks = self.hosts[from].clocks(self.now);
        let Some(node) = self.hosts[from]
            .node
            .as_ref()
            .filter(|node| node.device.is_up())
        else {
            return Ok(());
        };
        let path = Arc::clone(&node.path);
        let first = self.ledger.sent();
        let Some(peer) = path.routes().lookup(destination(first, to)).cloned() else {
            return Ok(());
        };
        // While allowed IPs are moved, another host gets them.
        let Some(via) = self.hosts[from].peer_of(peer.public_key()) else {
            return Err(Violation::new(
                Invariant::Delivery,
                format!("host {from} routes packets to a peer that it does not have"),
            ));
        };
        let ids: Vec<u64> = (0..packets.count)
            .map(|_| self.ledger.enter(from, to, via, packets.len, packets.reply))
            .collect();
        let len = packets.len.max(MIN_PACKET);
        let stride = padded_len(len, MTU) + DATA_OVERHEAD;
        let lane = self.any_lane(from);
        let outbound = path.reserve_on(
            lane,
            clocks.boot,
            &peer,
            packets.count as u64,
            (stride * packets.count) as u64,
        );
        let Some(node) = self.hosts[from].node.as_mut() else {
            return Ok(());
        };
        node.idle.used();
        match outbound {
            Outbound::Send(mut reservation) => {
                let mut batch = self.spare.pop().unwrap_or_default();
                batch.resize(stride * packets.count, 0);
                for (id, message) in ids.iter().zip(batch.chunks_mut(stride)) {
                    self.ledger.write(*id, &mut self.scratch);
                    let end = DATA_HEADER_LEN + self.scratch.len();
                    message[DATA_HEADER_LEN..end].copy_from_slice(&self.scratch);
                    message[end..].fill(0);
                }
                let to = reservation.endpoint().remote;
                let ready = reservation.seal(&mut batch, stride);
                batch.truncate(ready);
                for message in batch.chunks(stride) {
                    if let Some((index, counter)) = data_header(message) {
                        let seen = node.sessions.sent(index, counter, clocks.boot.0)?;
                        if seen != via {
                            return Err(Violation::new(
                                Invariant::Delivery,
                                format!(
                                    "host {from} sends packets for {via} in a session with {seen}"
                                ),
                            ));
                        }
                    }
                }
                node.timers[via]
                    .data(clocks.boot.0, true)
                    .map_err(|violation| violation.between(from, via))?;
                let renewal = data_header(&batch)
                    .is_some_and(|(index, _)| node.sessions.wants_renewal(index, clocks.boot.0));
                if packets.replay_later {
                    let from = self.hosts[from].address;
                    self.captures.replay_later(via, from, ids, &batch, stride);
                }
                self.log(|| {
                    format!(
                        "{from} → {to}: {} × {}",
                        packets.count,
                        describe(&batch[..stride])
                    )
                });
                let stall = self.stall(from, via);
                self.send_datagrams(from, to, batch, stride, stall);
                self.drain_output(from)?;
                if renewal {
                    self.check_renewal(
                        from,
                        via,
                        clocks.boot.0 - REKEY_TIMEOUT,
                        "sent with an old session",
                    )?;
                }
                Ok(())
            }
            Outbound::Stage => {
                node.timers[via].packets_staged(clocks.boot.0);
                node.staged.entered(packets.count as u64);
                self.log(|| format!("{from} stages {} for {via}", packets.count));
                let (ledger, scratch) = (&self.ledger, &mut self.scratch);
                let packets = ids.into_iter().map(|id| {
                    ledger.write(id, scratch);
                    scratch.resize(padded_len(scratch.len(), MTU), 0);
                    Staged {
                        packet: scratch.clone(),
                        ecn: 0,
                        lane,
                    }
                });
                path.stage(clocks.boot, &peer, packets);
                self.drain_output(from)?;
                self.hosts[from].check_memory()
            }
            Outbound::NoEndpoint => Ok(()),
        }
    }

    /// Delivers a packet from `sender` to an application on `host`.
    pub(crate) fn deliver(
        &mut self,
        host: usize,
        sender: usize,
        packet: &[u8],
    ) -> Result<(), Violation> {
        let mut scratch = core::mem::take(&mut self.scratch);
        let delivered = self.ledger.deliver(host, packet, &mut scratch);
        self.scratch = scratch;
        let delivered = delivered?;
        let allowed =
            self.hosts[host].peers[sender].is_some_and(|conf| conf.present && conf.allowed);
        if delivered.from != sender || !allowed {
            return Err(Violation::new(
                Invariant::Delivery,
                format!(
                    "host {host} received a packet of host {} from host {sender}, which does not \
                     have this address",
                    delivered.from
                ),
            ));
        }
        let now = self.now;
        if let Some(pair) = self.pair(host, sender) {
            pair.passed(sender, now);
        }
        if delivered.reply {
            self.send(host, sender, &Packets::one(60, false))?;
        }
        Ok(())
    }

    /// Records a packet received from `sender` in an old session: the session must be renewed, by
    /// this side if it was the initiator.
    pub(crate) fn check_renewal_on_receive(
        &mut self,
        host: usize,
        sender: usize,
    ) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        let now = h.boot(self.now).0;
        let Some(key) = h.peers[sender]
            .filter(|conf| conf.present)
            .map(|conf| conf.key)
        else {
            return Ok(());
        };
        let current = h
            .node
            .as_mut()
            .and_then(|node| node.device.current_session(&key));
        let Some(current) = current.filter(|s| s.role() == Role::Initiator) else {
            return Ok(());
        };
        let born = current.born().0;
        drop(current);
        if now - born < RENEW_ON_RECEIVE {
            return Ok(());
        }
        let since = born + RENEW_ON_RECEIVE - REKEY_TIMEOUT;
        self.check_renewal(host, sender, since, "received with a session of 165 s")
    }

    fn check_renewal(
        &self,
        host: usize,
        other: usize,
        since: Nanos,
        why: &str,
    ) -> Result<(), Violation> {
        let node = self.hosts[host].node.as_ref();
        if node.is_some_and(|node| node.timers[other].renewed_since(since)) {
            return Ok(());
        }
        Err(Violation::new(
            Invariant::Deadline,
            format!("host {host} {why} to or from {other}, and has not renewed it"),
        ))
    }

    /// Sends more packets in one session than a replay window holds.
    pub(crate) fn bulk(
        &mut self,
        edge: usize,
        side: usize,
        packets: usize,
    ) -> Result<(), Violation> {
        if !self.can_exchange(edge) {
            return Ok(());
        }
        let hosts = self.pairs[edge].hosts;
        let (from, to) = (hosts[side], hosts[1 - side]);
        // Packets that will be just outside the window at the end.
        let beyond = packets.saturating_sub(8240)..packets.saturating_sub(8090);
        let mut done = 0;
        while done < packets {
            let single = packets < 2000;
            let count = if single {
                1
            } else {
                (packets - done).min(1 + self.random.index(64))
            };
            let replay_later =
                !beyond.is_empty() && done < beyond.end && done + count > beyond.start;
            self.send(
                from,
                to,
                &Packets {
                    count,
                    len: 48,
                    reply: false,
                    replay_later,
                },
            )?;
            done += count;
        }
        let incarnation = self.hosts[to].incarnation;
        let later = FollowUp::EdgeOfWindow {
            host: to,
            incarnation,
        };
        self.schedule(self.now + 300 * MILLISECOND, Event::FollowUp(later));
        Ok(())
    }
}
