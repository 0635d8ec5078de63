//! The simulated world: one clock, a queue of events, hosts and the links between them.
//!
//! It acts as the driver of the protocol: it takes all output after every call, meets deadlines to
//! the nanosecond, answers wake-ups at once, and checks the invariants after every event.

use core::cmp::Reverse;
use core::net::SocketAddr;
use std::collections::BinaryHeap;

use taupe_crypto::Provider;
use taupe_protocol::hybrid::Half;
use taupe_protocol::message::{Kind, classify, data_header};
use taupe_protocol::{Endpoint, Output};

use crate::attack::Captures;
use crate::host::{Conf, Host, owner};
use crate::ledger::Ledger;
use crate::network::{Datagrams, Fate, Link};
use crate::parts::{MAX_HANDSHAKE, check_handshake_size, part_of};
use crate::plan::{Action, Episode, LULL, MILLISECOND, Nanos, Quality, SECOND, Time};
use crate::post_quantum::HybridConf;
use crate::random::Random;
use crate::stats::Stats;
use crate::thief::Thief;
use crate::traffic::Pair;
use crate::violation::{Invariant, Violation};

/// Interval of checks that are not tied to an event.
const TICK: Nanos = 5 * SECOND;

/// A future event.
pub(crate) enum Event {
    /// Datagrams arrive at an address.
    Arrive(Datagrams),
    /// The next action of the plan.
    Planned(usize),
    /// The second half of an action.
    Later(Later),
    /// A pair sends packets of its pattern.
    Flow { edge: usize, turn: u64 },
    /// A step of a probe.
    Probe { edge: usize, turn: u64 },
    /// A check of all hosts.
    Tick,
}

/// The second half of an action.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Later {
    Start {
        host: usize,
        incarnation: u64,
        reboot: bool,
    },
    Wake {
        host: usize,
    },
    Up {
        host: usize,
    },
    Add {
        host: usize,
        other: usize,
    },
    TellKey {
        host: usize,
        other: usize,
    },
    Preshared {
        host: usize,
        other: usize,
        number: u64,
    },
    TellSeed {
        host: usize,
        other: usize,
    },
    Hybrid {
        host: usize,
        other: usize,
        conf: Option<HybridConf>,
    },
    AllowedBack {
        host: usize,
        from: usize,
        to: usize,
    },
    Ambush {
        host: usize,
    },
    EdgeOfWindow {
        host: usize,
        incarnation: u64,
    },
}

struct Queued {
    at: Nanos,
    number: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// State of one episode.
pub struct World<'e> {
    pub(crate) episode: &'e Episode,
    pub(crate) crypto: &'static Provider,
    pub(crate) now: Nanos,
    pub(crate) hosts: Vec<Host>,
    pub(crate) links: Vec<Link>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) ledger: Ledger,
    pub(crate) captures: Captures,
    pub(crate) random: Random,
    pub(crate) stats: Stats,
    pub(crate) ambush_until: Nanos,
    pub(crate) thief: Thief,
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) trace: Option<Vec<String>>,
    queue: BinaryHeap<Reverse<Queued>>,
    number: u64,
}

/// Result of an episode.
pub struct Outcome {
    /// Counters up to the end or the violation.
    pub stats: Stats,
    /// The violated invariant.
    pub violation: Option<Violation>,
    /// The trace, if it was requested.
    pub trace: Vec<String>,
}

/// Runs an episode to its end or to the first violation.
#[must_use]
pub fn run(episode: &Episode, crypto: &'static Provider, trace: bool) -> Outcome {
    let mut world = World::new(episode, crypto, trace);
    let violation = world.run().err().map(|violation| Violation {
        at: world.now,
        ..violation
    });
    world.count();
    Outcome {
        stats: world.stats,
        violation,
        trace: world.trace.unwrap_or_default(),
    }
}

impl<'e> World<'e> {
    pub(crate) fn new(episode: &'e Episode, crypto: &'static Provider, trace: bool) -> Self {
        let n = episode.hosts;
        let mut hosts: Vec<Host> = (0..n)
            .map(|index| Host::new(episode.seed, index, n, crypto))
            .collect();
        for edge in &episode.edges {
            for (side, (own, other)) in [(edge.a, edge.b), (edge.b, edge.a)].into_iter().enumerate()
            {
                hosts[own].peers[other] = Some(Conf {
                    key: hosts[other].public,
                    preshared: u64::from(edge.preshared),
                    keepalive: edge.keepalive[side],
                    endpoint: edge.endpoint[side].then_some(hosts[other].address),
                    present: true,
                    allowed: true,
                    generation: 0,
                    hybrid: edge.hybrid.map(|agreed| HybridConf::new(agreed, side)),
                });
                hosts[own].has_seed |= edge
                    .hybrid
                    .is_some_and(|agreed| agreed.suite.has_static_keys());
            }
        }
        let mut world = Self {
            episode,
            crypto,
            now: 0,
            hosts,
            links: vec![Link::default(); n * n],
            pairs: episode
                .edges
                .iter()
                .map(|edge| Pair::new(edge, episode.duration))
                .collect(),
            ledger: Ledger::default(),
            captures: Captures::new(n),
            random: Random::new(episode.seed, 2),
            stats: Stats::default(),
            ambush_until: 0,
            thief: Thief::default(),
            spare: Vec::new(),
            scratch: Vec::new(),
            trace: trace.then(Vec::new),
            queue: BinaryHeap::new(),
            number: 0,
        };
        if let Some(first) = episode.events.first() {
            world.at(first.at, Event::Planned(0));
        }
        world.at(TICK, Event::Tick);
        world
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.start()?;
        let end = self.episode.duration;
        self.run_until(end)?;
        self.calm()?;
        self.run_until(end + LULL)?;
        self.finish()
    }

    /// Starts all hosts.
    pub(crate) fn start(&mut self) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            self.hosts[host].start(self.crypto, 0, false);
            self.settle(host)?;
        }
        Ok(())
    }

    /// Processes all events until `end`.
    pub(crate) fn run_until(&mut self, end: Nanos) -> Result<(), Violation> {
        loop {
            let due = (0..self.hosts.len())
                .filter_map(|host| Some((self.hosts[host].deadline()?, host)))
                .min();
            let next = self.queue.peek().map(|Reverse(queued)| queued.at);
            match (due, next) {
                (Some((at, host)), next) if next.is_none_or(|next| at <= next) => {
                    if at > end {
                        break;
                    }
                    self.now = self.now.max(at);
                    self.expire(host)?;
                }
                (_, Some(at)) if at <= end => {
                    self.now = at;
                    if let Some(Reverse(queued)) = self.queue.pop() {
                        self.stats.events += 1;
                        self.happen(queued.event)?;
                    }
                }
                _ => break,
            }
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrive(datagrams) => self.arrive(datagrams),
            Event::Planned(index) => {
                if let Some(next) = self.episode.events.get(index + 1) {
                    self.at(next.at, Event::Planned(index + 1));
                }
                let planned = self.episode.events[index];
                self.note(|| format!("{:?}", planned.action));
                self.act(planned.action)
            }
            Event::Later(later) => {
                self.note(|| format!("{later:?}"));
                self.act_later(later)
            }
            Event::Flow { edge, turn } => self.flow(edge, turn),
            Event::Probe { edge, turn } => self.probe(edge, turn),
            Event::Tick => {
                self.at(self.now + TICK, Event::Tick);
                (0..self.hosts.len()).try_for_each(|host| self.look(host))
            }
        }
    }

    /// Adds an event to the queue.
    pub(crate) fn at(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        let number = self.number;
        self.queue.push(Reverse(Queued {
            at: at.max(self.now),
            number,
            event,
        }));
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>16} {}", Time(self.now), line()));
        }
    }

    /// Handles the due deadline of a host.
    fn expire(&mut self, host: usize) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        let sent = self.stats.messages;
        let alive = node.sessions.alive();
        let staged = node
            .path
            .counters()
            .count(taupe_protocol::DropReason::StagedPurged);
        node.device.handle_deadline(clocks);
        self.stats.wakes += 1;
        self.settle(host)?;
        let h = &mut self.hosts[host];
        h.check_memory()?;
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        if let Some((at, reason)) = node.deadline
            && at <= clocks.boot
        {
            return Err(Violation::new(
                Invariant::Deadline,
                format!("host {host}: {reason:?} is due again at once after it was handled"),
            ));
        }
        let effect = self.stats.messages != sent
            || node.sessions.alive() != alive
            || node
                .path
                .counters()
                .count(taupe_protocol::DropReason::StagedPurged)
                != staged;
        self.stats.idle_wakes += u64::from(!effect);
        // Each timer of each peer may have been stopped after it was armed.
        let timers = taupe_protocol::Timer::ALL.len() * h.peers.len();
        node.idle
            .woken(effect, timers)
            .map_err(|violation| Violation {
                what: format!("host {host} {}", violation.what),
                ..violation
            })
    }

    /// Takes all output of a host and answers its wake-ups. Follows every call.
    pub(crate) fn settle(&mut self, host: usize) -> Result<(), Violation> {
        let mut pin_changed = false;
        loop {
            while let Some(output) = self.hosts[host]
                .node
                .as_mut()
                .and_then(|node| node.device.poll_output())
            {
                match output {
                    Output::Transmit {
                        endpoint, datagram, ..
                    } => {
                        self.transmit(host, endpoint, datagram)?;
                    }
                    // Endpoints in the simulation are addresses, not names.
                    Output::Resolve { .. } | Output::Notice(_) => {}
                    Output::ReserveTimestamps { public_key, up_to } => {
                        self.hosts[host].reserve_labels(public_key, up_to);
                    }
                    Output::PinPostQuantum { peer, pinned, .. } => {
                        self.hosts[host].remember(peer, pinned);
                        pin_changed = true;
                    }
                }
            }
            let h = &mut self.hosts[host];
            let clocks = h.clocks(self.now);
            let Some(node) = h.node.as_mut() else {
                return Ok(());
            };
            let woken = node.take_wake();
            if node.device.has_pending_work() {
                if !woken {
                    return Err(Violation::new(
                        Invariant::Deadline,
                        format!("host {host} wants attention and has not said so"),
                    ));
                }
                node.device.handle_pending_work(clocks);
            } else {
                node.deadline = node.device.next_deadline();
                // The change may forbid existing sessions.
                return if pin_changed {
                    self.check_suites(host)
                } else {
                    Ok(())
                };
            }
        }
    }

    /// Sends a handshake or timer message of a host.
    fn transmit(&mut self, host: usize, to: Endpoint, datagram: Vec<u8>) -> Result<(), Violation> {
        let now = self.hosts[host].boot(self.now).0;
        self.stats.messages += 1;
        let other = owner(to.remote).filter(|other| *other < self.hosts.len());
        match (classify(&datagram), other) {
            (Ok(Kind::Initiation), Some(other)) => {
                self.stats.initiations += 1;
                self.hosts[host].label_used(self.now);
                if let Some(node) = &mut self.hosts[host].node {
                    node.pulses[other]
                        .initiation(now)
                        .map_err(|violation| violation.between(host, other))?;
                }
                self.ambush_later(host);
            }
            (Ok(Kind::HybridInitiation), Some(other)) => {
                self.stats.parts += 1;
                check_handshake_size(host, &datagram)?;
                let begins = self.part_sent(host, other, &datagram)?;
                self.stats.initiations += u64::from(begins);
                if begins {
                    self.ambush_later(host);
                }
            }
            (Ok(Kind::HybridResponse), Some(other)) => {
                self.stats.parts += 1;
                check_handshake_size(host, &datagram)?;
                let first = part_of(&datagram).is_some_and(|part| part.half == Half::A);
                if first && let Some(node) = &mut self.hosts[host].node {
                    let sessions = node.device.sessions();
                    self.stats.sessions += node.sessions.observe(other, &sessions)?;
                }
            }
            (Ok(Kind::Response), Some(other)) => {
                if let Some(node) = &mut self.hosts[host].node {
                    node.pulses[other]
                        .response(now)
                        .map_err(|violation| violation.between(host, other))?;
                    let sessions = node.device.sessions();
                    self.stats.sessions += node.sessions.observe(other, &sessions)?;
                }
            }
            (Ok(Kind::Data), Some(_)) => {
                if let Some((index, counter)) = data_header(&datagram)
                    && let Some(node) = &mut self.hosts[host].node
                {
                    let keepalive = datagram.len() == taupe_protocol::message::DATA_OVERHEAD;
                    let other = node.sessions.sent(index, counter, now)?;
                    node.pulses[other]
                        .data(now, !keepalive)
                        .map_err(|violation| violation.between(host, other))?;
                    if !keepalive {
                        node.staged.flushed();
                        self.stats.staged += 1;
                    }
                }
            }
            (Ok(Kind::CookieReply), _) => self.stats.cookies += 1,
            _ => {
                let what = format!("host {host} sends no message, or to nobody: {}", to.remote);
                return Err(Violation::new(Invariant::Delivery, what));
            }
        }
        self.note(|| format!("{host} → {}: {}", to.remote, describe(&datagram)));
        let stride = datagram.len();
        self.wire(host, to.remote, datagram, stride);
        Ok(())
    }

    /// Records that a part of an initiation is sent. Returns true for the first part of a
    /// handshake.
    fn part_sent(&mut self, host: usize, other: usize, part: &[u8]) -> Result<bool, Violation> {
        let now = self.hosts[host].boot(self.now).0;
        let Some([a, b, c, d]) = part.get(4..).and_then(|rest| rest.first_chunk().copied()) else {
            return Ok(false);
        };
        self.hosts[host].label_used(self.now);
        let Some(node) = &mut self.hosts[host].node else {
            return Ok(false);
        };
        node.pulses[other]
            .part(now, u32::from_le_bytes([a, b, c, d]))
            .map_err(|violation| violation.between(host, other))
    }

    /// During ambushes, attacks about half of the new handshakes before the answer arrives.
    fn ambush_later(&mut self, host: usize) {
        if self.now < self.ambush_until && self.random.once_in(2) {
            let soon = self.now + self.random.below(40 * MILLISECOND);
            self.at(soon, Event::Later(Later::Ambush { host }));
        }
    }

    /// Sends datagrams of equal size into the network.
    pub(crate) fn wire(&mut self, host: usize, to: SocketAddr, bytes: Vec<u8>, stride: usize) {
        let Some(other) = owner(to).filter(|other| *other < self.hosts.len()) else {
            return;
        };
        self.captures
            .sent(&mut self.random, host, other, &bytes, stride);
        let from = self.hosts[host].address;
        if stride > MAX_HANDSHAKE && self.is_narrow(host, other) {
            return;
        }
        let link = &self.links[host * self.hosts.len() + other];
        let quality = link.quality(self.now);
        let datagrams = Datagrams {
            from,
            to,
            sender: host,
            sent: self.now,
            bytes,
            stride,
            tampered: false,
        };
        if quality == Quality::GOOD {
            self.at(self.now + quality.delay, Event::Arrive(datagrams));
            return;
        }
        for datagram in datagrams.split() {
            for Fate { after, datagrams } in
                quality.fates(&mut self.random, datagram, &mut self.stats)
            {
                self.at(self.now + after, Event::Arrive(datagrams));
            }
        }
    }

    /// Checks a host for overdue actions and expired keys.
    pub(crate) fn look(&mut self, host: usize) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        if !h.runs() {
            return Ok(());
        }
        let boot = h.boot(self.now).0;
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        for (other, pulse) in node.pulses.iter_mut().enumerate() {
            pulse
                .check(boot)
                .map_err(|violation| violation.between(host, other))?;
        }
        node.sessions.expired(boot)
    }

    /// Ends all traffic and disturbances.
    fn calm(&mut self) -> Result<(), Violation> {
        self.note(|| "the lull".into());
        self.ambush_until = 0;
        self.wake_all();
        for pair in &mut self.pairs {
            pair.stop();
        }
        for edge in 0..self.episode.edges.len() {
            for side in 0..2 {
                self.act(Action::Keepalive {
                    edge,
                    side,
                    seconds: 0,
                })?;
            }
        }
        Ok(())
    }

    /// Checks that only configuration is left after the lull.
    pub(crate) fn finish(&mut self) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            self.look(host)?;
            let h = &mut self.hosts[host];
            h.check_memory()?;
            let Some(node) = h.node.as_mut().filter(|_| h.asleep.is_none()) else {
                continue;
            };
            if let Some((at, reason)) = node.device.next_deadline() {
                return Err(Violation::new(
                    Invariant::Idle,
                    format!(
                        "host {host} is idle and will wake for {reason:?} at {}",
                        Time(at.0)
                    ),
                ));
            }
            let halves = node.device.provisional_handshakes();
            if halves > 0 {
                let what =
                    format!("host {host} keeps {halves} handshakes that nobody has finished");
                return Err(Violation::new(Invariant::KeyMemory, what));
            }
            node.device.set_down();
            node.sessions.gone(None, "after the device went down")?;
            h.check_memory()?;
        }
        Ok(())
    }

    /// Computes the counters that are known only at the end.
    fn count(&mut self) {
        self.stats.sent = self.ledger.sent();
        self.stats.delivered = self.ledger.delivered();
        self.stats.virtual_time = self.now;
        for pair in &self.pairs {
            let (counted, hybrid, not) = pair.hours();
            self.stats.pair_hours += counted;
            self.stats.hybrid_hours += hybrid;
            self.stats.uncounted_hours += not;
        }
    }

    /// Returns a buffer for reuse.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < 64 {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// Describes a datagram briefly.
pub(crate) fn describe(datagram: &[u8]) -> String {
    match (classify(datagram), data_header(datagram)) {
        (Ok(Kind::Data), Some((index, counter))) => {
            format!("data {index:08x}/{counter}, {} bytes", datagram.len())
        }
        (Ok(kind), _) => format!("{kind:?}"),
        (Err(malformed), _) => format!("no message ({malformed:?}), {} bytes", datagram.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::MINUTE;
    use crate::testing;
    use crate::traffic::Load;

    #[test]
    fn two_hosts_that_are_left_alone_pass_data() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.send(0, 1, &Load::one(60, true)).unwrap();
        world.run_until(LULL).unwrap();
        assert_eq!(world.ledger.delivered(), 2, "the packet and its answer");
        world.finish().unwrap();
    }

    #[test]
    fn fires_when_a_datagram_that_should_change_nothing_does() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.send(0, 1, &Load::one(60, false)).unwrap();
        let initiation = world
            .queue
            .drain()
            .find_map(|Reverse(queued)| match queued.event {
                Event::Arrive(datagrams) => Some(datagrams),
                _ => None,
            });
        let initiation = initiation.unwrap();
        let stride = initiation.stride;
        let violation = world
            .inject(1, initiation.from, initiation.bytes, stride, "authentic")
            .unwrap_err();
        assert_eq!(violation.invariant, Invariant::Unauthenticated);
    }

    #[test]
    fn fires_when_a_pair_that_can_exchange_packets_does_not() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.start_probe(0);
        world.run_until(MINUTE).unwrap();
        assert_eq!(world.stats.probes_passed, 1);
        world.links.iter_mut().for_each(Link::cut_in_secret);
        world.start_probe(0);
        let violation = world.run_until(2 * MINUTE).unwrap_err();
        assert_eq!(violation.invariant, Invariant::Liveness);
    }

    #[test]
    fn fires_when_a_peer_has_moved_and_is_not_followed() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.send(0, 1, &Load::one(60, false)).unwrap();
        world.run_until(MINUTE).unwrap();
        let known = world.hosts[0].address;
        world.heard(1, 0, known, false).unwrap();
        let elsewhere = SocketAddr::from(([203, 0, 113, 9], 9));
        let violation = world.heard(1, 0, elsewhere, false).unwrap_err();
        assert_eq!(violation.invariant, Invariant::Roaming);
        let violation = world.heard(0, 1, known, true).unwrap_err();
        assert_eq!(violation.invariant, Invariant::Deadline, "nothing sent now");
    }

    #[test]
    fn fires_when_an_idle_device_would_wake() {
        let episode = testing::episode(25);
        let mut world = testing::world(&episode);
        world.run_until(MINUTE).unwrap();
        let violation = world.finish().unwrap_err();
        assert_eq!(violation.invariant, Invariant::Idle);
    }
}
