//! The simulated world: one clock, a queue of events, hosts and the links between them.
//!
//! It acts as the driver of the protocol: it takes all output after every call, meets deadlines to
//! the nanosecond, answers wake-ups at once, and checks the invariants after every event.

use taupe_crypto::Provider;
use taupe_protocol::DropReason;
use taupe_protocol::message::{Kind, classify, data_header};

use crate::host::{Conf, Host, HybridConf};
use crate::ledger::Ledger;
use crate::network::Link;
use crate::plan::{Action, Episode, Nanos, QUIET_PERIOD, SECOND, Time};
use crate::random::Random;
use crate::stats::Stats;
use crate::violation::{Invariant, Violation};

mod actions;
mod attack;
mod captures;
mod configuration;
mod hybrid;
mod impersonation;
mod lanes;
mod pair;
mod part_attacks;
mod probe;
mod queue;
mod receive;
pub(crate) mod traffic;
mod transmit;

use captures::Captures;
use impersonation::Impersonator;
use pair::Pair;
use queue::{Event, Queue};

/// Interval of checks that are not tied to an event.
const TICK: Nanos = 5 * SECOND;

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
    /// Chooses lanes and their delays.
    pub(crate) lane_random: Random,
    pub(crate) stats: Stats,
    pub(crate) ambush_until: Nanos,
    pub(crate) impersonator: Impersonator,
    pub(crate) spare: Vec<Vec<u8>>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) trace: Option<Vec<String>>,
    queue: Queue,
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
            lane_random: Random::new(episode.seed, 3),
            stats: Stats::default(),
            ambush_until: 0,
            impersonator: Impersonator::default(),
            spare: Vec::new(),
            scratch: Vec::new(),
            trace: trace.then(Vec::new),
            queue: Queue::default(),
        };
        if let Some(first) = episode.events.first() {
            world.schedule(first.at, Event::Planned(0));
        }
        world.schedule(TICK, Event::Tick);
        world
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.start()?;
        let end = self.episode.duration;
        self.run_until(end)?;
        self.end_disturbances()?;
        self.run_until(end + QUIET_PERIOD)?;
        self.finish()
    }

    /// Starts all hosts.
    pub(crate) fn start(&mut self) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            self.hosts[host].start(self.crypto, 0, false);
            self.drain_output(host)?;
        }
        Ok(())
    }

    /// Processes all events until `end`.
    pub(crate) fn run_until(&mut self, end: Nanos) -> Result<(), Violation> {
        loop {
            let due = (0..self.hosts.len())
                .filter_map(|host| Some((self.hosts[host].deadline()?, host)))
                .min();
            let next = self.queue.next_at();
            match (due, next) {
                (Some((at, host)), next) if next.is_none_or(|next| at <= next) => {
                    if at > end {
                        break;
                    }
                    self.now = self.now.max(at);
                    self.handle_deadline(host)?;
                }
                (_, Some(at)) if at <= end => {
                    self.now = at;
                    if let Some(event) = self.queue.pop() {
                        self.stats.events += 1;
                        self.dispatch(event)?;
                    }
                }
                _ => break,
            }
        }
        self.now = end;
        Ok(())
    }

    fn dispatch(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrive(datagrams) => self.arrive(datagrams),
            Event::Planned(index) => {
                if let Some(next) = self.episode.events.get(index + 1) {
                    self.schedule(next.at, Event::Planned(index + 1));
                }
                let planned = self.episode.events[index];
                self.log(|| format!("{:?}", planned.action));
                self.act(planned.action)
            }
            Event::FollowUp(later) => {
                self.log(|| format!("{later:?}"));
                self.follow_up(later)
            }
            Event::Flow { edge, turn } => self.flow(edge, turn),
            Event::Probe { edge, turn } => self.probe(edge, turn),
            Event::Tick => {
                self.schedule(self.now + TICK, Event::Tick);
                (0..self.hosts.len()).try_for_each(|host| self.check_host(host))
            }
        }
    }

    /// Adds an event to the queue.
    pub(crate) fn schedule(&mut self, at: Nanos, event: Event) {
        self.queue.push(at.max(self.now), event);
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>16} {}", Time(self.now), line()));
        }
    }

    /// Handles the due deadline of a host.
    fn handle_deadline(&mut self, host: usize) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        let sent = self.stats.messages;
        let alive = node.sessions.alive();
        let staged = node.path.counters().count(DropReason::StagedPurged);
        node.device.handle_deadline(clocks);
        self.stats.wakes += 1;
        self.drain_output(host)?;
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
            || node.path.counters().count(DropReason::StagedPurged) != staged;
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

    /// Checks a host for overdue actions and expired keys.
    pub(crate) fn check_host(&mut self, host: usize) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        if !h.runs() {
            return Ok(());
        }
        let boot = h.boot(self.now).0;
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        for (other, timers) in node.timers.iter_mut().enumerate() {
            timers
                .check(boot)
                .map_err(|violation| violation.between(host, other))?;
        }
        node.sessions.check_expired(boot)
    }

    /// Ends all traffic and disturbances.
    fn end_disturbances(&mut self) -> Result<(), Violation> {
        self.log(|| "the quiet period".into());
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

    /// Checks that only configuration is left after the quiet period.
    pub(crate) fn finish(&mut self) -> Result<(), Violation> {
        for host in 0..self.hosts.len() {
            self.check_host(host)?;
            let h = &mut self.hosts[host];
            h.check_memory()?;
            let Some(node) = h.node.as_mut().filter(|_| h.suspended_since.is_none()) else {
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
                let what = format!("host {host} has {halves} unfinished handshakes");
                return Err(Violation::new(Invariant::KeyMemory, what));
            }
            node.device.set_down();
            node.sessions
                .check_erased(None, "after the device went down")?;
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
    use core::net::SocketAddr;

    use super::traffic::Packets;
    use super::*;
    use crate::plan::MINUTE;
    use crate::testing;

    #[test]
    fn two_undisturbed_hosts_exchange_packets() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.send(0, 1, &Packets::one(60, true)).unwrap();
        world.run_until(QUIET_PERIOD).unwrap();
        assert_eq!(world.ledger.delivered(), 2, "the packet and its answer");
        world.finish().unwrap();
    }

    #[test]
    fn fires_when_a_datagram_that_should_change_nothing_does() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.send(0, 1, &Packets::one(60, false)).unwrap();
        let initiation = world.queue.drain().find_map(|event| match event {
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
        world.links.iter_mut().for_each(Link::cut_unnoticed);
        world.start_probe(0);
        let violation = world.run_until(2 * MINUTE).unwrap_err();
        assert_eq!(violation.invariant, Invariant::Liveness);
    }

    #[test]
    fn fires_when_a_peer_has_moved_and_is_not_followed() {
        let episode = testing::episode(0);
        let mut world = testing::world(&episode);
        world.send(0, 1, &Packets::one(60, false)).unwrap();
        world.run_until(MINUTE).unwrap();
        let known = world.hosts[0].address;
        world.record_authentic(1, 0, known, false).unwrap();
        let elsewhere = SocketAddr::from(([203, 0, 113, 9], 9));
        let violation = world.record_authentic(1, 0, elsewhere, false).unwrap_err();
        assert_eq!(violation.invariant, Invariant::Roaming);
        let violation = world.record_authentic(0, 1, known, true).unwrap_err();
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
