//! Classification of captured packets. All tables are bounded.

use super::nonce::Nonces;
use super::packet::{PacketFlow, Parser};
use super::sockets::{SocketOwner, SocketTable, SocketTuple};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taupe_os_linux::packet_socket::UdpFlow;
use taupe_packet::ip::{TCP, UDP};

/// Flows outside the tunnel that are remembered. Packets of further flows are only counted.
const MAX_OUTSIDE_FLOWS: usize = 8192;

/// Flows outside the tunnel that a report lists.
pub const LEAKS_LISTED: usize = 20;

/// Samples after a flow's last packet that may still find it to be the application's. The application's
/// process may be younger than the list of processes of the sample before.
const RECHECKS: u8 = 8;

/// Port of name servers.
const DNS_PORT: u16 = 53;

/// A probe that opens a TCP connection. Its first packet carries no nonce; its port is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpProbe {
    /// Number of the probe.
    pub number: usize,
    /// Its local port. A socket of another address or protocol may have the same.
    pub port: u16,
    /// Its destination.
    pub destination: SocketAddr,
}

/// First sight of a probe's packet at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Index of the interface.
    pub interface: u32,
    /// Destination of the packet, if it could be read.
    pub destination: Option<SocketAddr>,
    /// Time since the beginning.
    pub at: Duration,
}

/// Packets outside the tunnel with the same addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideFlow {
    /// Index of the interface by which they left.
    pub interface: u32,
    /// Protocol number of IP.
    pub protocol: u8,
    /// Source; the port is 0 if the protocol has none.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
    /// Number of packets.
    pub packets: u64,
    /// Time of the first since the beginning.
    pub first: Duration,
}

/// A flow in the table.
#[derive(Clone, Copy, Debug)]
struct SeenFlow {
    packets: u64,
    first: Duration,
    owner: Option<SocketOwner>,
    /// True if a sample that was taken after the first packet is to decide.
    is_provisional: bool,
    /// Samples since the last packet.
    samples: u8,
}

/// Packets of probes at one kind of interface, by the probes' numbers.
type Sightings = HashMap<usize, Sighting>;

/// State of an observation.
#[derive(Debug)]
pub struct Observation {
    nonces: Nonces,
    /// Probes' numbers are below this.
    probes: usize,
    /// Index of the tunnel's interface.
    tunnel: Option<u32>,
    endpoints: HashSet<UdpFlow>,
    tcp: Vec<TcpProbe>,
    /// Source addresses of this machine's packets.
    local: HashSet<IpAddr>,
    parser: Parser,
    sockets: SocketTable,
    flows: HashMap<(u32, PacketFlow), SeenFlow>,
    in_tunnel: Sightings,
    outside: Sightings,
    tunnel_packets: u64,
    unlisted: u64,
    has_unknown: bool,
}

/// Result of an observation.
#[derive(Debug)]
pub struct Observed {
    /// First sights of probes at the tunnel's interface.
    pub in_tunnel: HashMap<usize, Sighting>,
    /// First sights of probes at other interfaces.
    pub outside: HashMap<usize, Sighting>,
    /// The application's flows outside the tunnel, those that began first at the front.
    pub leaked: Vec<OutsideFlow>,
    /// The flows to which no socket fits, in the same order.
    pub unknown: Vec<OutsideFlow>,
    /// WireGuard packets of the tunnel that the kernel's filter did not count.
    pub tunnel_packets: u64,
    /// Packets of other processes' sockets.
    pub of_others: u64,
    /// Packets to which no socket fits.
    pub unattributed: u64,
    /// True if there were more flows or sockets than the tables hold.
    pub is_incomplete: bool,
}

impl Observation {
    /// Begins an observation, of a tunnel with this interface and these flows to its peers.
    #[must_use]
    pub fn new(nonces: Nonces, probes: usize, tunnel: Option<u32>, endpoints: &[UdpFlow]) -> Self {
        Self {
            nonces,
            probes,
            tunnel,
            endpoints: endpoints.iter().copied().collect(),
            tcp: Vec::new(),
            local: HashSet::new(),
            parser: Parser::default(),
            sockets: SocketTable::default(),
            flows: HashMap::new(),
            in_tunnel: HashMap::new(),
            outside: HashMap::new(),
            tunnel_packets: 0,
            unlisted: 0,
            has_unknown: false,
        }
    }

    /// Adds a probe that is recognised by its port.
    pub fn add_tcp_probe(&mut self, probe: TcpProbe) {
        self.tcp.push(probe);
    }

    /// Adds source addresses of this machine's packets.
    pub fn add_local_addresses(&mut self, addresses: &[IpAddr]) {
        self.local.extend(addresses);
    }

    /// Finds the probe to whose connection a packet belongs.
    fn tcp_probe(&self, flow: &PacketFlow) -> Option<usize> {
        let (source, to) = (flow.source, flow.destination);
        let fits = |probe: &&TcpProbe| {
            let aim = probe.destination;
            let has_aim = to.ip() == aim.ip().to_canonical() && to.port() == aim.port();
            // Connections to name servers are redirected to another server.
            let is_redirected = aim.port() == DNS_PORT && to.port() == DNS_PORT;
            probe.port == source.port() && (has_aim || is_redirected)
        };
        let is_own = flow.protocol == TCP && self.local.contains(&source.ip());
        let probe = self.tcp.iter().filter(|_| is_own).find(fits)?;
        Some(probe.number)
    }

    /// Sets the index of the tunnel's interface, which may appear after the beginning.
    pub fn set_tunnel(&mut self, interface: u32) {
        self.tunnel = Some(interface);
    }

    /// Adds flows to peers, such as to the endpoint of a peer that has roamed.
    pub fn add_endpoints(&mut self, flows: &[UdpFlow]) {
        self.endpoints.extend(flows);
    }

    /// Classifies a packet that has left by an interface, by its bytes from the header of this
    /// EtherType on. It may be cut off.
    pub fn packet(&mut self, interface: u32, ether_type: u16, bytes: &[u8], at: Duration) {
        let parsed = self.parser.parse(ether_type, bytes);
        let by_nonce = self
            .nonces
            .find(bytes)
            .filter(|number| *number < self.probes);
        let by_port = || {
            let parsed = parsed.filter(|parsed| parsed.is_syn)?;
            self.tcp_probe(&parsed.flow)
        };
        let is_in_tunnel = self.tunnel == Some(interface);
        if let Some(number) = by_nonce.or_else(by_port) {
            let sightings = match is_in_tunnel {
                true => &mut self.in_tunnel,
                false => &mut self.outside,
            };
            sightings.entry(number).or_insert(Sighting {
                interface,
                destination: parsed.map(|parsed| parsed.flow.destination),
                at,
            });
            return;
        }
        let (false, Some(parsed)) = (is_in_tunnel, parsed) else {
            return;
        };
        let flow = parsed.flow;
        let outer = UdpFlow {
            local_port: flow.source.port(),
            remote: flow.destination,
        };
        if flow.protocol == UDP && self.endpoints.contains(&outer) {
            self.tunnel_packets += 1;
            return;
        }
        // Later packets of a probe's connection.
        if self.tcp_probe(&flow).is_some() {
            return;
        }
        let room = self.flows.len() < MAX_OUTSIDE_FLOWS;
        match self.flows.get_mut(&(interface, flow)) {
            Some(seen) => {
                seen.packets += 1;
                seen.samples = 0;
                // Another socket may have the port of another program's closed one.
                self.has_unknown |= seen.owner == Some(SocketOwner::Other)
                    && !self.sockets.find(&flow).is_some_and(|one| one.is_current);
            }
            None if room => {
                let found = self.sockets.find(&flow);
                let is_current = found.is_some_and(|found| found.is_current);
                self.has_unknown |= !is_current && flow.source.port() != 0;
                let seen = SeenFlow {
                    packets: 1,
                    first: at,
                    owner: found.map(|found| found.owner),
                    is_provisional: !is_current,
                    samples: 0,
                };
                self.flows.insert((interface, flow), seen);
            }
            None => self.unlisted += 1,
        }
    }

    /// Adds a sample of this namespace's sockets, and attributes flows by it.
    pub fn sample(&mut self, sockets: &[SocketTuple]) {
        self.sockets.sample(sockets);
        self.has_unknown = false;
        for ((_, flow), seen) in &mut self.flows {
            let found = self.sockets.find(flow);
            let current = found.filter(|found| found.is_current);
            let current = current.map(|found| found.owner);
            // A port that the application gets long after the flow's end says nothing about the flow.
            let is_found = current == Some(SocketOwner::Application) && seen.samples < RECHECKS;
            if is_found || seen.is_provisional && current.is_some() {
                seen.owner = current;
            } else if seen.is_provisional && seen.owner == Some(SocketOwner::Other) {
                // The socket was closed before the packet left.
                seen.owner = None;
            }
            seen.is_provisional &= seen.owner.is_none() && seen.samples < RECHECKS;
            seen.samples = seen.samples.saturating_add(1);
        }
    }

    /// True if a flow has begun whose socket is not known. A sample that comes soon may find it.
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        self.has_unknown
    }

    /// True if the probe's packet was seen anywhere.
    #[must_use]
    pub fn has_seen(&self, number: usize) -> bool {
        self.in_tunnel.contains_key(&number) || self.outside.contains_key(&number)
    }

    /// Ends the observation.
    #[must_use]
    pub fn finish(self) -> Observed {
        let of = |owner: Option<SocketOwner>| {
            let flows = self.flows.iter();
            flows.filter(move |(_, seen)| seen.owner == owner)
        };
        let packets = |owner| of(owner).map(|(_, seen)| seen.packets).sum::<u64>();
        let flows = |owner| {
            let flows = of(owner).map(|((interface, flow), seen)| OutsideFlow {
                interface: *interface,
                protocol: flow.protocol,
                source: flow.source,
                destination: flow.destination,
                packets: seen.packets,
                first: seen.first,
            });
            let mut flows: Vec<_> = flows.collect();
            flows.sort_by_key(|flow| (flow.first, flow.source, flow.destination));
            flows
        };
        Observed {
            leaked: flows(Some(SocketOwner::Application)),
            unknown: flows(None),
            tunnel_packets: self.tunnel_packets,
            of_others: packets(Some(SocketOwner::Other)),
            unattributed: packets(None) + self.unlisted,
            is_incomplete: self.unlisted > 0 || self.sockets.is_full,
            in_tunnel: self.in_tunnel,
            outside: self.outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::tests::v4;
    use super::*;

    const IPV4: u16 = 0x0800;
    const TUN: u32 = 9;
    const UPLINK: u32 = 2;
    const ENDS: [&str; 2] = ["192.0.2.1:1000", "198.51.100.1:53"];

    fn observation() -> (Observation, Nonces) {
        let nonces = Nonces::new([3; 8]);
        let endpoint = UdpFlow {
            local_port: 4000,
            remote: "198.51.100.9:51820".parse().unwrap(),
        };
        let observation = Observation::new(nonces.clone(), 4, Some(TUN), &[endpoint]);
        (observation, nonces)
    }

    fn socket(port: u16, owner: SocketOwner) -> SocketTuple {
        SocketTuple {
            protocol: 17,
            local: SocketAddr::new([0, 0, 0, 0].into(), port),
            remote: None,
            owner,
        }
    }

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_nonce_is_a_leak_only_outside_the_tunnel() {
        let (mut observation, nonces) = observation();
        for (number, interface) in [(1, TUN), (2, UPLINK)] {
            let packet = v4(17, ENDS, nonces.nonce(number).as_bytes());
            observation.packet(interface, IPV4, &packet, at(5));
        }
        // Cut off, and in a frame of an unknown protocol.
        observation.packet(UPLINK, 0x8864, nonces.nonce(3).as_bytes(), at(6));
        // The number of no probe.
        let beyond = v4(17, ENDS, nonces.nonce(7).as_bytes());
        observation.packet(UPLINK, IPV4, &beyond, at(7));
        assert!(observation.has_seen(1) && observation.has_seen(3));
        assert!(!observation.has_seen(0));
        let observed = observation.finish();
        let numbers = |all: &HashMap<usize, Sighting>| {
            let mut numbers: Vec<_> = all.keys().copied().collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(&observed.in_tunnel), [1]);
        assert_eq!(numbers(&observed.outside), [2, 3]);
        let sighting = observed.outside[&2];
        assert_eq!(sighting.destination, ENDS[1].parse().ok());
        assert_eq!((sighting.interface, sighting.at), (UPLINK, at(5)));
        assert_eq!(observed.outside[&3].destination, None);
        assert_eq!(observed.unattributed, 1);
    }

    #[test]
    fn the_beginning_of_a_connection_is_known_by_its_port() {
        let (mut observation, _) = observation();
        observation.add_tcp_probe(TcpProbe {
            number: 2,
            port: 1000,
            destination: "203.0.113.7:53".parse().unwrap(),
        });
        observation.add_tcp_probe(TcpProbe {
            number: 3,
            port: 1001,
            destination: "203.0.113.7:9".parse().unwrap(),
        });
        observation.add_local_addresses(&["192.0.2.1".parse().unwrap()]);
        let syn = |ends| {
            let mut packet = v4(6, ends, &[0; 16]);
            packet[33] = 0x02;
            packet
        };
        // Forwarded packets, and other connections from the same port.
        for ends in [
            ["192.0.2.2:1000", "203.0.113.7:53"],
            ["192.0.2.2:1001", "203.0.113.7:9"],
            ["192.0.2.1:1000", "203.0.113.7:54"],
            ["192.0.2.1:1001", "203.0.113.8:9"],
            ["192.0.2.1:1001", "203.0.113.7:10"],
        ] {
            observation.packet(UPLINK, IPV4, &syn(ends), at(1));
        }
        assert!(!observation.has_seen(2) && !observation.has_seen(3));
        let aim = ["192.0.2.1:1001", "203.0.113.7:9"];
        observation.packet(TUN, IPV4, &syn(aim), at(1));
        assert!(observation.has_seen(3));
        // A query that was redirected to another server.
        let mut packet = syn(ENDS);
        packet[33] = 0x10;
        observation.packet(UPLINK, IPV4, &packet, at(1));
        assert!(!observation.has_seen(2));
        packet[33] = 0x02;
        observation.packet(UPLINK, IPV4, &packet, at(2));
        let observed = observation.finish();
        assert_eq!(observed.outside[&2].at, at(2));
        assert_eq!((observed.unattributed, observed.of_others), (5, 0));
    }

    #[test]
    fn packets_are_attributed_by_sockets_that_are_found_later() {
        let (mut observation, _) = observation();
        observation.packet(UPLINK, IPV4, &v4(17, ENDS, &[0; 4]), at(1));
        assert!(observation.has_unknown());
        let other = ["192.0.2.1:2000", "198.51.100.1:53"];
        observation.packet(UPLINK, IPV4, &v4(17, other, &[0; 4]), at(2));
        observation.sample(&[
            socket(1000, SocketOwner::Application),
            socket(2000, SocketOwner::Other),
        ]);
        assert!(!observation.has_unknown());
        observation.packet(UPLINK, IPV4, &v4(17, ENDS, &[0; 4]), at(3));
        let third = ["192.0.2.1:3000", "198.51.100.1:53"];
        observation.packet(UPLINK, IPV4, &v4(17, third, &[0; 4]), at(4));
        // In the tunnel, the same addresses are no leak.
        observation.packet(TUN, IPV4, &v4(17, ENDS, &[0; 4]), at(5));
        let observed = observation.finish();
        assert_eq!((observed.of_others, observed.unattributed), (1, 1));
        let [flow] = observed.leaked[..] else {
            panic!("{:?}", observed.leaked);
        };
        assert_eq!(
            (flow.packets, flow.first, flow.interface),
            (2, at(1), UPLINK)
        );
    }

    #[test]
    fn a_process_that_a_sample_missed_owns_its_socket_by_a_later_one() {
        let (mut observation, _) = observation();
        observation.packet(UPLINK, IPV4, &v4(17, ENDS, &[0; 4]), at(1));
        observation.sample(&[socket(1000, SocketOwner::Other)]);
        observation.sample(&[socket(1000, SocketOwner::Application)]);
        let old = ["192.0.2.1:2000", "198.51.100.1:53"];
        observation.packet(UPLINK, IPV4, &v4(17, old, &[0; 4]), at(2));
        for _ in 0..=RECHECKS {
            observation.sample(&[socket(2000, SocketOwner::Other)]);
        }
        observation.sample(&[socket(2000, SocketOwner::Application)]);
        let observed = observation.finish();
        assert_eq!((observed.leaked.len(), observed.of_others), (1, 1));
    }

    #[test]
    fn a_closed_socket_of_another_program_does_not_decide() {
        for (reuser, expected) in [
            (&[][..], [0, 0, 1]),
            (&[socket(1000, SocketOwner::Application)], [1, 0, 0]),
            (&[socket(1000, SocketOwner::Other)], [0, 1, 0]),
        ] {
            let (mut observation, _) = observation();
            observation.sample(&[socket(1000, SocketOwner::Other)]);
            observation.sample(&[]);
            observation.packet(UPLINK, IPV4, &v4(17, ENDS, &[0; 4]), at(1));
            assert!(observation.has_unknown(), "a sample is due");
            observation.sample(reuser);
            let observed = observation.finish();
            let found = [
                observed.leaked.len() as u64,
                observed.of_others,
                observed.unattributed,
            ];
            assert_eq!(found, expected);
        }
        // Nor does it for a flow that began while it was open.
        let (mut observation, _) = observation();
        observation.sample(&[socket(1000, SocketOwner::Other)]);
        observation.packet(UPLINK, IPV4, &v4(17, ENDS, &[0; 4]), at(1));
        assert!(!observation.has_unknown());
        observation.sample(&[]);
        observation.packet(UPLINK, IPV4, &v4(17, ENDS, &[0; 4]), at(2));
        assert!(observation.has_unknown());
    }

    #[test]
    fn wireguard_is_recognised_by_port_and_endpoint() {
        let (mut observation, _) = observation();
        let send = |observation: &mut Observation, ends: [&str; 2], protocol| {
            observation.packet(UPLINK, IPV4, &v4(protocol, ends, &[0; 4]), at(1));
        };
        send(
            &mut observation,
            ["192.0.2.1:4000", "198.51.100.9:51820"],
            17,
        );
        send(
            &mut observation,
            ["192.0.2.1:4001", "198.51.100.9:51820"],
            17,
        );
        send(
            &mut observation,
            ["192.0.2.1:4000", "198.51.100.9:51820"],
            6,
        );
        send(
            &mut observation,
            ["192.0.2.1:4000", "198.51.100.9:51821"],
            17,
        );
        let observed = observation.finish();
        assert_eq!((observed.tunnel_packets, observed.unattributed), (1, 3));
    }

    #[test]
    fn the_table_of_flows_is_bounded() {
        let (mut observation, _) = observation();
        for number in 0..MAX_OUTSIDE_FLOWS + 5 {
            let source = format!("192.0.{}.{}:1", number / 256, number % 256);
            observation.packet(UPLINK, IPV4, &v4(17, [&source, ENDS[1]], &[0; 4]), at(1));
        }
        assert_eq!(observation.flows.len(), MAX_OUTSIDE_FLOWS);
        let observed = observation.finish();
        assert!(observed.is_incomplete);
        assert_eq!(observed.unattributed, MAX_OUTSIDE_FLOWS as u64 + 5);
    }
}
