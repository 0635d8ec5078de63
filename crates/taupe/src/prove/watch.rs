//! The capture, and the samples of sockets by which its packets are attributed.

use super::text::escaped;
use crate::interrupt::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};
use taupe_inspect::prove::{
    LEAKS_LISTED, Members, Nonces, Observation, Observed, ObservedTraffic, OutsideFlow,
    OutsideReport, ProofTarget, TcpProbe,
};
use taupe_os_linux::interface;
use taupe_os_linux::packet_socket::{
    Direction, MAX_FLOWS, PacketFilter, PacketSocket, SNAP_LENGTH, UdpFlow,
};

/// Longest wait for packets, after which signals and samples are due.
const TURN: Duration = Duration::from_millis(50);

/// Interval between samples of the sockets.
const SOCKETS: Duration = Duration::from_millis(250);

/// Shortest interval, for a flow whose socket is unknown, as a multiple of the time that a sample takes.
const REST: u32 = 4;

/// Interval between samples of the peers' endpoints.
const ENDPOINTS: Duration = Duration::from_secs(1);

/// Packets that are read before anything else is done.
const BATCH: usize = 4096;

/// A running observation.
pub(super) struct Watch<'a> {
    target: &'a ProofTarget,
    capture: PacketSocket,
    /// Counters of the tunnel's datagrams, sent and received.
    counters: [PacketSocket; 2],
    observation: Observation,
    names: HashMap<u32, String>,
    begun: Instant,
    members: Members,
    processes: Vec<u32>,
    endpoints_read: Instant,
    sockets_read: Instant,
    sample_time: Duration,
    /// True if the kernel did not list the sockets once.
    has_failed: bool,
    probe: Option<u32>,
    lost: u64,
    /// Flows of the counters, and others.
    counted: HashSet<UdpFlow>,
    uncounted: HashSet<UdpFlow>,
}

/// A finished observation.
pub(super) struct Seen {
    pub(super) observed: Observed,
    /// True if the kernel did not list the sockets once.
    pub(super) has_failed: bool,
    names: HashMap<u32, String>,
    /// WireGuard packets, sent and received.
    wireguard: [u64; 2],
    lost: u64,
    /// Endpoints of peers that the counter of received packets lacks.
    uncounted: u64,
}

impl<'a> Watch<'a> {
    /// Begins to capture. `probe` is the process whose packets have nonces below `count`.
    pub(super) fn begin(
        target: &'a ProofTarget,
        nonces: Nonces,
        count: usize,
        probe: Option<u32>,
    ) -> io::Result<Self> {
        let own = interface::index(&target.tunnel);
        let flows = target.outer_flows();
        let counter = |direction| {
            PacketSocket::count(&PacketFilter::Flows {
                flows: &flows,
                direction,
            })
        };
        let counters = [counter(Direction::Sent)?, counter(Direction::Received)?];
        let capture = PacketSocket::capture(&PacketFilter::Sent {
            except: &flows,
            only_syn_on: own,
        })?;
        let now = Instant::now();
        let mut watch = Self {
            target,
            capture,
            counters,
            observation: Observation::new(nonces, count, own, &flows),
            names: HashMap::new(),
            begun: now,
            members: Members::default(),
            processes: Vec::new(),
            endpoints_read: now,
            sockets_read: now,
            sample_time: Duration::ZERO,
            has_failed: false,
            probe,
            lost: 0,
            counted: counted(&flows),
            uncounted: HashSet::new(),
        };
        watch.learn_endpoints(&flows);
        watch.sample_sockets();
        Ok(watch)
    }

    /// Processes of the application in the last sample.
    pub(super) fn processes(&self) -> &[u32] {
        &self.processes
    }

    pub(super) fn has_seen(&self, number: usize) -> bool {
        self.observation.has_seen(number)
    }

    pub(super) fn add_tcp_probe(&mut self, probe: TcpProbe) {
        self.observation.add_tcp_probe(probe);
    }

    /// Observes for some time, or until a condition holds or a signal has come.
    pub(super) fn until(
        &mut self,
        time: Duration,
        interrupt: &Interrupt,
        mut is_done: impl FnMut(&Self) -> bool,
    ) {
        let end = Instant::now() + time;
        loop {
            self.turn();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || interrupt.is_set() || is_done(self) {
                return;
            }
            let turn = match self.observation.has_unknown() {
                true => TURN.min(self.sample_time * REST),
                false => TURN,
            };
            self.wait(left.min(turn));
        }
    }

    /// Observes for some time, whatever happens.
    pub(super) fn settle(&mut self, time: Duration) {
        self.until(time, &Interrupt::default(), |_| false);
    }

    fn wait(&self, time: Duration) {
        let time = Timespec::try_from(time).ok();
        // An error ends the wait early.
        let _ = poll(
            &mut [PollFd::new(&self.capture, PollFlags::IN)],
            time.as_ref(),
        );
    }

    /// Reads packets that have come, and takes samples that are due.
    pub(super) fn turn(&mut self) {
        let at = self.begun.elapsed();
        let mut bytes = [0; SNAP_LENGTH];
        for _ in 0..BATCH {
            match self.capture.receive(&mut bytes) {
                Ok(Some(captured)) => {
                    self.learn_name(captured.interface);
                    let packet = &bytes[..captured.length];
                    self.observation
                        .packet(captured.interface, captured.protocol, packet, at);
                }
                Ok(None) => break,
                // An interface has gone down. The capture continues at the others.
                Err(_) => {}
            }
        }
        let waited = self.sockets_read.elapsed();
        if waited > SOCKETS || self.observation.has_unknown() && waited >= self.sample_time * REST {
            self.sample_sockets();
        }
        if self.endpoints_read.elapsed() > ENDPOINTS {
            self.learn_endpoints(&self.target.outer_flows());
            self.endpoints_read = Instant::now();
        }
    }

    /// Notes flows to peers, some of which may have roamed, and addresses of this machine.
    fn learn_endpoints(&mut self, flows: &[UdpFlow]) {
        let new = flows.iter().filter(|flow| !self.counted.contains(flow));
        self.uncounted.extend(new);
        self.observation.add_endpoints(flows);
        let own = self.target.local_addresses();
        self.observation.add_local_addresses(&own);
    }

    fn sample_sockets(&mut self) {
        let begun = Instant::now();
        // A process may have started since the last sample.
        let except = self.probe.as_slice();
        self.processes = self.members.refresh(self.target, except);
        match self.target.sockets(&self.processes) {
            Ok(sockets) => self.observation.sample(&sockets),
            Err(_) => self.has_failed = true,
        }
        self.sockets_read = Instant::now();
        self.sample_time = self.sockets_read - begun;
    }

    /// Notes the name of an interface while it is there. The tunnel's interface may be a new one.
    fn learn_name(&mut self, index: u32) {
        if self.names.contains_key(&index) {
            return;
        }
        let name = interface::name(index).unwrap_or_else(|| format!("interface {index}"));
        if name == self.target.tunnel {
            self.observation.set_tunnel(index);
        }
        self.names.insert(index, name);
    }

    pub(super) fn finish(mut self) -> Seen {
        self.turn();
        self.sample_sockets();
        let count = |socket: &PacketSocket| socket.take_counts().unwrap_or_default();
        self.lost += u64::from(count(&self.capture).lost);
        let mut wireguard = [0, 1].map(|one: usize| u64::from(count(&self.counters[one]).passed));
        let observed = self.observation.finish();
        wireguard[0] += observed.tunnel_packets;
        Seen {
            observed,
            has_failed: self.has_failed,
            names: self.names,
            wireguard,
            lost: self.lost,
            uncounted: self.uncounted.len() as u64,
        }
    }
}

/// Returns the flows that the kernel's filter counts.
fn counted(flows: &[UdpFlow]) -> HashSet<UdpFlow> {
    let of = |is_ipv4| {
        let flows = flows.iter().copied();
        let own = flows.filter(move |flow| flow.remote.is_ipv4() == is_ipv4);
        own.take(MAX_FLOWS)
    };
    of(true).chain(of(false)).collect()
}

impl Seen {
    /// Returns the name of an interface, escaped for display.
    pub(super) fn interface(&self, index: u32) -> String {
        let name = self.names.get(&index);
        name.map_or_else(|| format!("interface {index}"), |name| escaped(name))
    }

    fn listed(&self, flows: &[OutsideFlow]) -> Vec<OutsideReport> {
        let listed = flows.iter().take(LEAKS_LISTED).map(|flow| OutsideReport {
            interface: self.interface(flow.interface),
            protocol: flow.protocol,
            source: flow.source,
            destination: flow.destination,
            packets: flow.packets,
            after_ms: milliseconds(flow.first),
        });
        listed.collect()
    }

    pub(super) fn traffic(&self, target: &ProofTarget) -> ObservedTraffic {
        let packets = |flows: &[OutsideFlow]| flows.iter().map(|flow| flow.packets).sum();
        let all = self.observed.leaked.iter().copied();
        let (by_file, leaked): (Vec<_>, Vec<_>) =
            all.partition(|flow| target.bypasses(flow.destination));
        let [wireguard_sent, wireguard_received] = self.wireguard;
        ObservedTraffic {
            wireguard_sent,
            wireguard_received,
            uncounted_endpoints: self.uncounted,
            leaked_packets: packets(&leaked),
            leaked: self.listed(&leaked),
            bypassing_packets: packets(&by_file),
            other_packets: self.observed.of_others,
            unattributed_packets: self.observed.unattributed,
            unattributed: self.listed(&self.observed.unknown),
            lost_packets: self.lost,
        }
    }
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_beyond_the_filter_are_not_counted() {
        let flow = |number, address: &str| UdpFlow {
            local_port: 4000,
            remote: format!("{address}:{number}").parse().unwrap(),
        };
        let v4 = (1..=10).map(|number| flow(number, "192.0.2.1"));
        let v6 = (1..=3).map(|number| flow(number, "[2001:db8::1]"));
        let flows: Vec<_> = v4.chain(v6).collect();
        let counted = counted(&flows);
        assert_eq!(counted.len(), MAX_FLOWS + 3);
        assert!(!counted.contains(&flow(10, "192.0.2.1")));
    }
}
