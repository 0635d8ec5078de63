//! Applications: they send packets and answer them. Probes check that a pair that can exchange
//! packets does so.

use taupe_protocol::Outbound;
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, data_header};
use taupe_protocol::{Staged, padded_len};

use crate::ledger::destination;
use crate::plan::{Edge, HOUR, MILLISECOND, Nanos, Pattern, SECOND};
use crate::violation::{Invariant, Violation};
use crate::world::{Event, World, describe};

const MTU: usize = 1420;
/// Payload that fits into 1,280 bytes with the headers of IPv6, UDP and transport data.
const NARROW_PACKET: u64 = 1200;
/// Interval of a probe's checks.
const PROBE_STEP: Nanos = 2 * SECOND;
/// Longest time for which a probe waits until a pair can exchange packets.
const PROBE_PATIENCE: Nanos = 600 * SECOND;
/// Time limit for a pair that can exchange packets: a dead-peer handshake (15.3 s) that may have to
/// wait for Rekey-Timeout and its jitter, and the transit time of packets.
const RECOVERY: Nanos = 24 * SECOND;
/// The same under load: a cookie costs each side another Rekey-Timeout.
const RECOVERY_UNDER_LOAD: Nanos = RECOVERY + 16 * SECOND;
/// Rekey-On-Receive: 180 − 10 − 5 s.
const RENEW_ON_RECEIVE: Nanos = 165 * SECOND;
const REKEY_TIMEOUT: Nanos = 5 * SECOND;

/// Two hosts that are each other's peers.
pub(crate) struct Pair {
    pub(crate) hosts: [usize; 2],
    /// Time of the last change of its configuration.
    pub(crate) disturbed: Nanos,
    /// The longest packets that get through.
    max_packet: u64,
    turn: u64,
    flow: Option<(Pattern, usize, Nanos, Nanos)>,
    probe: Option<Probe>,
    hours: Vec<Hour>,
}

/// Events of a pair within an hour.
#[derive(Clone, Copy, Default)]
struct Hour {
    rekeyed: bool,
    /// Set after a hybrid handshake.
    hybrid: bool,
    passed: bool,
}

struct Probe {
    turn: u64,
    until: Nanos,
    /// Time since which the pair has been able to exchange packets.
    able_since: Option<Nanos>,
    /// Arrival of the last authentic message that was sent before.
    late: Nanos,
    under_load: bool,
    /// Set when a packet from each side has arrived since.
    passed: [bool; 2],
}

impl Pair {
    pub(crate) fn new(edge: &Edge, duration: Nanos) -> Self {
        Self {
            hosts: [edge.a, edge.b],
            disturbed: 0,
            max_packet: if edge.narrow { NARROW_PACKET } else { 1400 },
            turn: 0,
            flow: None,
            probe: None,
            hours: vec![Hour::default(); (duration / HOUR) as usize],
        }
    }

    /// Ends flows and probes.
    pub(crate) fn stop(&mut self) {
        self.flow = None;
        self.probe = None;
    }

    /// Returns the hours that count, those of them with hybrid handshakes, and those that do not
    /// count.
    pub(crate) fn hours(&self) -> (u64, u64, u64) {
        let counts = |hour: &&Hour| hour.rekeyed && hour.passed;
        let counted = self.hours.iter().filter(counts).count();
        let hybrid = self.hours.iter().filter(counts).filter(|hour| hour.hybrid);
        let not = self.hours.len() - counted;
        (counted as u64, hybrid.count() as u64, not as u64)
    }

    pub(crate) fn rekeyed(&mut self, now: Nanos, hybrid: bool) {
        if let Some(hour) = self.hours.get_mut((now / HOUR) as usize) {
            hour.rekeyed = true;
            hour.hybrid |= hybrid;
        }
    }

    /// Records an authentic message that was sent before the pair was able to exchange packets. Its
    /// receiver considers the other side alive, although this may have lost its sessions since, and
    /// restarts its wait for answers.
    pub(crate) fn alive(&mut self, sent: Nanos, now: Nanos) {
        if let Some(probe) = &mut self.probe
            && probe.able_since.is_some_and(|since| sent < since)
        {
            probe.late = now;
        }
    }

    fn passed(&mut self, from: usize, now: Nanos) {
        if let Some(hour) = self.hours.get_mut((now / HOUR) as usize) {
            hour.passed = true;
        }
        if let Some(probe) = &mut self.probe
            && probe.able_since.is_some()
        {
            probe.passed[usize::from(self.hosts[1] == from)] = true;
        }
    }
}

/// Packets that applications send at once.
pub(crate) struct Load {
    pub(crate) count: usize,
    pub(crate) len: usize,
    /// True if each packet is to be answered.
    pub(crate) reply: bool,
    /// True if the attacker keeps the datagrams to replay them.
    pub(crate) keep: bool,
}

impl Load {
    pub(crate) fn one(len: usize, reply: bool) -> Self {
        Self {
            count: 1,
            len,
            reply,
            keep: false,
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
        self.at(self.now, Event::Flow { edge, turn });
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
        self.at(self.now + interval, Event::Flow { edge, turn });
        let len = self.random.spread(60, max_packet) as usize;
        match pattern {
            Pattern::Request => self.send(from, to, &Load::one(len, true)),
            Pattern::OneWay => self.send(from, to, &Load::one(len, false)),
            Pattern::Both => {
                self.send(from, to, &Load::one(len, false))?;
                self.send(to, from, &Load::one(len, false))
            }
            Pattern::Burst(count) => {
                let mut left = usize::from(count);
                while left > 0 {
                    let count = left.min(1 + self.random.index(64));
                    left -= count;
                    self.send(
                        from,
                        to,
                        &Load {
                            count,
                            len,
                            reply: false,
                            keep: false,
                        },
                    )?;
                }
                Ok(())
            }
        }
    }

    /// Sends packets from an application on `from` to `to`.
    pub(crate) fn send(&mut self, from: usize, to: usize, load: &Load) -> Result<(), Violation> {
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
        let path = std::sync::Arc::clone(&node.path);
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
        let ids: Vec<u64> = (0..load.count)
            .map(|_| self.ledger.enter(from, to, via, load.len, load.reply))
            .collect();
        let len = load.len.max(crate::ledger::MIN_PACKET);
        let stride = padded_len(len, MTU) + DATA_OVERHEAD;
        let outbound = path.reserve(
            clocks.boot,
            &peer,
            load.count as u64,
            (stride * load.count) as u64,
        );
        let Some(node) = self.hosts[from].node.as_mut() else {
            return Ok(());
        };
        node.idle.used();
        match outbound {
            Outbound::Send(reservation) => {
                let mut batch = self.spare.pop().unwrap_or_default();
                batch.resize(stride * load.count, 0);
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
                                    "host {from} sends what is for {via} in a session with {seen}"
                                ),
                            ));
                        }
                    }
                }
                node.pulses[via]
                    .data(clocks.boot.0, true)
                    .map_err(|violation| violation.between(from, via))?;
                let renewal = data_header(&batch)
                    .is_some_and(|(index, _)| node.sessions.wants_renewal(index, clocks.boot.0));
                if load.keep {
                    let from = self.hosts[from].address;
                    self.captures.keep(via, from, ids, &batch, stride);
                }
                self.note(|| {
                    format!(
                        "{from} → {to}: {} × {}",
                        load.count,
                        describe(&batch[..stride])
                    )
                });
                self.wire(from, to, batch, stride);
                self.settle(from)?;
                if renewal {
                    self.renewed(
                        from,
                        via,
                        clocks.boot.0 - REKEY_TIMEOUT,
                        "sent with an old session",
                    )?;
                }
                Ok(())
            }
            Outbound::Stage => {
                node.pulses[via].asked(clocks.boot.0);
                node.staged.entered(load.count as u64);
                self.note(|| format!("{from} stages {} for {via}", load.count));
                let (ledger, scratch) = (&self.ledger, &mut self.scratch);
                let packets = ids.into_iter().map(|id| {
                    ledger.write(id, scratch);
                    scratch.resize(padded_len(scratch.len(), MTU), 0);
                    Staged {
                        packet: scratch.clone(),
                        ecn: 0,
                    }
                });
                path.stage(clocks.boot, &peer, packets);
                self.settle(from)?;
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
                    "host {host} was given a packet of host {} from host {sender}, whose address that is not",
                    delivered.from
                ),
            ));
        }
        let now = self.now;
        if let Some(pair) = self.pair(host, sender) {
            pair.passed(sender, now);
        }
        if delivered.reply {
            self.send(host, sender, &Load::one(60, false))?;
        }
        Ok(())
    }

    /// Records a packet received from `sender` in an old session: the session must be renewed, by
    /// this side if it was the initiator.
    pub(crate) fn renewed_on_receive(
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
        let Some(current) = current.filter(|s| s.role() == taupe_protocol::Role::Initiator) else {
            return Ok(());
        };
        let born = current.born().0;
        drop(current);
        if now - born < RENEW_ON_RECEIVE {
            return Ok(());
        }
        let since = born + RENEW_ON_RECEIVE - REKEY_TIMEOUT;
        self.renewed(host, sender, since, "received with a session of 165 s")
    }

    fn renewed(&self, host: usize, other: usize, since: Nanos, why: &str) -> Result<(), Violation> {
        let node = self.hosts[host].node.as_ref();
        if node.is_some_and(|node| node.pulses[other].renewed_since(since)) {
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
        if !self.able(edge) {
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
            let keep = !beyond.is_empty() && done < beyond.end && done + count > beyond.start;
            self.send(
                from,
                to,
                &Load {
                    count,
                    len: 48,
                    reply: false,
                    keep,
                },
            )?;
            done += count;
        }
        let incarnation = self.hosts[to].incarnation;
        let later = crate::world::Later::EdgeOfWindow {
            host: to,
            incarnation,
        };
        self.at(self.now + 300 * MILLISECOND, Event::Later(later));
        Ok(())
    }

    pub(crate) fn start_probe(&mut self, edge: usize) {
        self.stats.probes += 1;
        let pair = &mut self.pairs[edge];
        let turn = pair.probe.as_ref().map_or(0, |probe| probe.turn) + 1;
        pair.probe = Some(Probe {
            turn,
            until: self.now + PROBE_PATIENCE,
            able_since: None,
            late: 0,
            under_load: false,
            passed: [false; 2],
        });
        self.at(self.now, Event::Probe { edge, turn });
    }

    /// Carries out one step of a probe.
    pub(crate) fn probe(&mut self, edge: usize, turn: u64) -> Result<(), Violation> {
        let able = self.able(edge);
        let disturbed = self.disturbed(edge);
        let now = self.now;
        let hosts = self.pairs[edge].hosts;
        let other_way = self.agree_on_handshake(hosts[0], hosts[1]).unwrap_or(0);
        let loaded = hosts
            .iter()
            .any(|host| now <= self.hosts[*host].loaded_until + SECOND);
        let Some(probe) = self.pairs[edge]
            .probe
            .as_mut()
            .filter(|probe| probe.turn == turn)
        else {
            return Ok(());
        };
        if probe.able_since.is_none_or(|since| since < disturbed) || !able {
            probe.able_since = able.then_some(now);
            probe.passed = [false; 2];
            probe.under_load = false;
        }
        probe.under_load |= loaded;
        let limit = other_way
            + if probe.under_load {
                RECOVERY_UNDER_LOAD
            } else {
                RECOVERY
            };
        match probe.able_since {
            Some(_) if probe.passed == [true; 2] => {
                self.stats.probes_passed += 1;
                self.pairs[edge].probe = None;
                return Ok(());
            }
            Some(since) if now - since.max(probe.late) > limit => {
                return Err(Violation::new(
                    Invariant::Liveness,
                    format!(
                        "hosts {} and {} can exchange packets for {} s and do not (arrived from each: {:?})",
                        hosts[0],
                        hosts[1],
                        (now - since) / SECOND,
                        probe.passed
                    ),
                ));
            }
            None if now > probe.until => {
                self.pairs[edge].probe = None;
                return Ok(());
            }
            _ => {}
        }
        self.at(now + PROBE_STEP, Event::Probe { edge, turn });
        if able {
            self.send(hosts[0], hosts[1], &Load::one(80, false))?;
            self.send(hosts[1], hosts[0], &Load::one(80, false))?;
        }
        Ok(())
    }

    /// Returns true if nothing keeps a pair from exchanging packets.
    fn able(&mut self, edge: usize) -> bool {
        let [a, b] = self.pairs[edge].hosts;
        let n = self.hosts.len();
        let good = |from: usize, to: usize| self.links[from * n + to].is_good(self.now);
        if !good(a, b) || !good(b, a) {
            return false;
        }
        self.agree_on_handshake(a, b).is_some()
            && self.agrees(a, b)
            && self.agrees(b, a)
            && (self.can_initiate(a, b) || self.can_initiate(b, a))
    }

    fn agrees(&self, host: usize, other: usize) -> bool {
        let (Some(own), Some(theirs)) =
            (self.hosts[host].peers[other], self.hosts[other].peers[host])
        else {
            return false;
        };
        self.hosts[host].runs()
            && self.hosts[host]
                .node
                .as_ref()
                .is_some_and(|node| node.device.is_up())
            && own.present
            && own.allowed
            && own.key == self.hosts[other].public
            && own.preshared == theirs.preshared
    }

    fn can_initiate(&mut self, host: usize, other: usize) -> bool {
        let address = self.hosts[other].address;
        !self.hosts[host].locked_out(self.now)
            && self.hosts[host].endpoint_of(other) == Some(address)
    }

    /// Returns the last time at which something kept a pair from exchanging packets.
    fn disturbed(&self, edge: usize) -> Nanos {
        let [a, b] = self.pairs[edge].hosts;
        let pair = self.pairs[edge].disturbed;
        pair.max(self.hosts[a].disturbed)
            .max(self.hosts[b].disturbed)
    }
}
