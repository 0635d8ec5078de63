//! `handshake-pq`: the cost of a handshake in bytes and in time.
//!
//! The client's time covers making the initiation and processing the response, the server's time
//! processing the initiation and making the response. Both are [`Device`]s of Taupe's protocol in
//! this process, the lowest level that includes all four steps and the MACs. No socket, file or
//! other thread takes part. The published handshakes come from `taupe_repro`, which has no devices.

mod idle;
mod published;

use super::{DescribedRow, Description, Figure};
use crate::results::{Better, Failure, Metric, Report, Unit};
use crate::statistics::median;
use rustix::time::{ClockId, clock_gettime};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use taupe_crypto::{AWS_LC, Provider, Secret};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, classify};
use taupe_protocol::time::{self, Now, Tai64N};
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};
use taupe_protocol::{
    Device, Endpoint, Outbound, Output, Random, ReceivedBatch, Staged, padded_len,
};
use taupe_runtime::random::SystemRandom;

/// Name of the table, and prefix of its metrics' keys.
pub const NAME: &str = "handshake-pq";

/// Number of handshakes whose median is one sample.
const HANDSHAKES: usize = 1_000;

/// The same for handshakes that are so slow that more would delay the whole run.
#[cfg(feature = "rainbow")]
const FEW_HANDSHAKES: usize = 50;

/// Approximate seconds to measure all of them once. Rainbow's keys take most of this time.
pub const SECONDS: f64 = if cfg!(feature = "rainbow") { 12.0 } else { 3.0 };

/// Number of batches whose median is one sample.
const BATCHES: usize = 500;

/// Packets in a batch, and bytes of each packet inside the tunnel.
const BATCH: usize = 64;
const PACKET: usize = 1_424;

/// The product's cryptography.
const CRYPTO: &Provider = &AWS_LC;

/// UDP payload of an IPv6 packet of 1,280 bytes.
const DATAGRAM: usize = 1_280 - 40 - 8;

/// A measured handshake: a row of the table.
pub struct Variant {
    /// Id in place of a contestant's.
    pub id: &'static str,
    /// Label of its row.
    pub label: &'static str,
    /// Number of handshakes whose median is one sample.
    pub handshakes: usize,
    /// Creates two ends that know each other.
    pub begin: fn() -> Result<Box<dyn Handshake>>,
    /// Measures the memory in bytes by which an idle peer exceeds one with X25519 alone.
    pub memory: Option<fn() -> Result<f64>>,
}

impl Variant {
    const fn new(
        id: &'static str,
        label: &'static str,
        begin: fn() -> Result<Box<dyn Handshake>>,
    ) -> Self {
        Self {
            id,
            label,
            handshakes: HANDSHAKES,
            begin,
            memory: None,
        }
    }
}

/// All measured handshakes.
pub const VARIANTS: &[Variant] = &[
    Variant::new("x25519", "WireGuard, X25519", || {
        Ok(Box::new(Devices::new(None)?))
    }),
    Variant {
        memory: Some(|| idle::memory_beyond(Suite::Hybrid768)),
        ..Variant::new("hybrid-768", "Taupe, hybrid-768", || {
            Ok(Box::new(Devices::new(Some(Suite::Hybrid768))?))
        })
    },
    Variant {
        memory: Some(|| idle::memory_beyond(Suite::Hybrid512)),
        ..Variant::new("hybrid-512", "Taupe, hybrid-512", || {
            Ok(Box::new(Devices::new(Some(Suite::Hybrid512))?))
        })
    },
    Variant {
        memory: Some(|| idle::memory_beyond(Suite::Light)),
        ..Variant::new("hybrid-light", "Taupe, hybrid-light", || {
            Ok(Box::new(Devices::new(Some(Suite::Light))?))
        })
    },
    Variant::new("repro-k-k", "K+K", || published::begin("K+K")),
    Variant::new("repro-k-tk", "K+tK", || published::begin("K+tK")),
    #[cfg(feature = "rainbow")]
    Variant {
        handshakes: FEW_HANDSHAKES,
        ..Variant::new("repro-r-tk", "R+tK", || published::begin("R+tK"))
    },
    Variant::new("repro-k512-tk512", "K512+tK512", || {
        published::begin("K512+tK512")
    }),
    #[cfg(feature = "rainbow")]
    Variant {
        handshakes: FEW_HANDSHAKES,
        ..Variant::new("repro-r1-tk512", "R1+tK512", || {
            published::begin("R1+tK512")
        })
    },
];

/// Two ends that perform handshakes repeatedly.
pub trait Handshake {
    /// Performs a whole handshake, and checks that both ends have the same keys.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if it does not complete.
    fn shake(&mut self) -> Result<Exchange>;

    /// Carries a batch of packets from one end to the other in the session of the last handshake,
    /// and returns the time it took. `None` if the ends carry no packets.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if packets are missing.
    fn carry(&mut self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

/// The cost of one handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// UDP payload of each message in order, in bytes.
    pub messages: Vec<usize>,
    /// Time to make the initiation and process the response.
    pub client: Duration,
    /// Time to process the initiation and make the response.
    pub server: Duration,
    /// Processor time of the server's part on this thread.
    pub answering: Duration,
}

impl Exchange {
    /// Returns the UDP payload of both directions, in bytes.
    pub fn traffic(&self) -> usize {
        self.messages.iter().sum()
    }

    /// Returns the number of IPv6 packets of at most 1,280 bytes for all messages.
    pub fn packets(&self) -> usize {
        let packets = self.messages.iter();
        packets.map(|length| length.div_ceil(DATAGRAM)).sum()
    }
}

fn traffic() -> Metric {
    metric("traffic", "traffic", Unit::Bytes)
}

fn packets() -> Metric {
    metric("packets", "IPv6 packets", Unit::Count)
}

fn client() -> Metric {
    metric("client", "client", Unit::Seconds)
}

fn server() -> Metric {
    metric("server", "server", Unit::Seconds)
}

fn answered() -> Metric {
    let better = Better::Higher;
    Metric::new(
        format!("{NAME}/answered"),
        "answered by a core",
        Unit::PerSecond,
        better,
    )
}

fn packet() -> Metric {
    metric("packet", "a packet", Unit::Seconds)
}

fn idle_peer() -> Metric {
    metric("memory", "idle peer, beyond X25519's", Unit::Bytes)
}

fn metric(key: &str, title: &str, unit: Unit) -> Metric {
    Metric::new(format!("{NAME}/{key}"), title, unit, Better::Lower)
}

/// Published figures: bytes, IPv6 packets, client's time, server's time.
const PUBLISHED: [(&str, [&str; 4]); 5] = [
    ("K+K", ["4816 B", "4", "0.64 ms", "0.43 ms"]),
    ("K+tK", ["3760 B", "4", "0.50 ms", "0.29 ms"]),
    ("R+tK", ["1912 B", "2", "5.76 ms", "5.41 ms"]),
    ("K512+tK512", ["3172 B", "4", "0.39 ms", "0.27 ms"]),
    ("R1+tK512", ["1716 B", "2", "4.40 ms", "4.31 ms"]),
];

/// Returns the table's description.
pub fn description() -> Description {
    let is_published =
        |variant: &&Variant| PUBLISHED.iter().any(|(label, _)| *label == variant.label);
    let ours = VARIANTS.iter().filter(|variant| !is_published(variant));
    let ours = ours.map(|variant| DescribedRow::new(variant.label, Some(variant.id), &[]));
    let theirs = PUBLISHED.iter().map(|(label, figures)| {
        let measured = VARIANTS.iter().find(|variant| variant.label == *label);
        let id = measured.map(|variant| variant.id);
        DescribedRow::new(label, id, &figures.map(Some))
    });
    let others = ["PQ-OpenVPN", "PQ-WireGuard, Hülsing et al."];
    let others = others.map(|label| DescribedRow::new(label, None, &[]));
    let mut differences = vec![
        "K is Kyber-768, tK a Kyber with other parameters (“tweaked”), R Rainbow; K512, \
         tK512 and R1 are those of the lowest level of security.",
        "All rows from K+K to R1+tK512 are for comparison only: they are insecure. Of Rainbow: \
         key recovery in 53 hours on a laptop (Beullens 2022, eprint 2022/214).",
        "These rows are measured without devices: both ends' handshakes as the published program \
         has them, made of AWS-LC's ML-KEM for Kyber, of Taupe's own K-PKE in plain Rust where \
         parameters are tweaked, and of PQClean's Rainbow. Encapsulation has 32 random bytes, \
         and a bad signature is refused, both unlike the published program.",
        "PQ-OpenVPN and the PQ-WireGuard of Hülsing et al. are published without figures here.",
        "Here traffic is the UDP payload of both messages. The published column is not \
         counted in one way: 4816 B has an IPv6 and a UDP header for each of four packets \
         in it, 3760, 1912 and 1716 B are payload alone, and for 3172 B the published \
         program sends 3120.",
        "IPv6 packets are those of at most 1,280 B that the payload needs, worked out from \
         the messages' lengths.",
        "The times of other rows are those of whole devices of Taupe's protocol, with AWS-LC: MACs, the \
         search for the peer, timers, the session's keys and, at the client, the first \
         packet sealed. The Diffie-Hellman result of the two static keys is kept from one \
         handshake to the next, as by any device. There are no sockets.",
        "Each sample is the median of 1,000 handshakes on one thread, with Rainbow of 50. The \
         published times are of other machines and another program: compare the rows that were \
         measured here.",
        "Answered by a core: how many of these handshakes, one after the other, take a second of \
         the processor's time at the server.",
        "A packet: of 1,424 bytes, encrypted by one device and opened by the other, in batches of \
         64, in the session that the handshake has made; both on one thread.",
        "Idle peer: what 10,000 peers of one device take of physical memory beyond what as many \
         peers with X25519 alone take, for each.",
    ];
    if !cfg!(feature = "rainbow") {
        differences.push(
            "This program was built without Rainbow (cargo's feature `rainbow`), whose rows have \
             only what was published.",
        );
    }
    if cfg!(debug_assertions) {
        differences.push("This program was built without optimisation: the times mean nothing.");
    }
    Description {
        name: NAME,
        title: "Handshakes with and without post-quantum cryptography, medians",
        source: "a post on post-quantum WireGuard by Kudelski Security, 2021",
        columns: vec![
            traffic(),
            packets(),
            client(),
            server(),
            answered(),
            packet(),
            idle_peer(),
        ],
        rows: ours.chain(theirs).chain(others).collect(),
        figure: Figure::Median,
        differences: differences.into_iter().map(str::to_owned).collect(),
    }
}

/// Measures every variant once: a sample for each column. The report's failures list variants whose
/// handshake does not complete.
pub fn measure(report: &mut Report) {
    measure_all(VARIANTS, HANDSHAKES, report);
}

fn measure_all(variants: &[Variant], at_most: usize, report: &mut Report) {
    for variant in variants {
        if let Err(error) = measure_one(variant, at_most, report) {
            report.failures.push(Failure {
                what: NAME.to_owned(),
                contestant: variant.id.to_owned(),
                reason: error.one_line(),
            });
        }
    }
}

fn measure_one(variant: &Variant, at_most: usize, report: &mut Report) -> Result<()> {
    let handshakes = variant.handshakes.min(at_most);
    let mut ends = (variant.begin)()?;
    // Warm-up: the first handshakes fill caches and precomputed values.
    for _ in 0..handshakes / 10 {
        ends.shake()?;
    }
    let exchanges = (0..handshakes).map(|_| ends.shake());
    let exchanges: Vec<Exchange> = exchanges.collect::<Result<_>>()?;
    let batches = (0..BATCHES.min(at_most)).map(|_| ends.carry());
    let batches: Vec<Option<Duration>> = batches.collect::<Result<_>>()?;
    let memory_beyond = variant.memory.map(|beyond| beyond()).transpose()?;

    let mut record = |metric: &Metric, sample: Option<f64>| {
        if let Some(sample) = sample {
            report.record(variant.id, metric, sample);
        }
    };
    let middle = |figure: fn(&Exchange) -> f64| {
        let all: Vec<f64> = exchanges.iter().map(figure).collect();
        median(&all)
    };
    record(&traffic(), middle(|exchange| exchange.traffic() as f64));
    record(&packets(), middle(|exchange| exchange.packets() as f64));
    record(&client(), middle(|exchange| exchange.client.as_secs_f64()));
    record(&server(), middle(|exchange| exchange.server.as_secs_f64()));
    let busy: Duration = exchanges.iter().map(|exchange| exchange.answering).sum();
    record(
        &answered(),
        Some(exchanges.len() as f64 / busy.as_secs_f64()),
    );
    let batches = batches.into_iter().flatten();
    let each: Vec<f64> = batches
        .map(|took| took.as_secs_f64() / BATCH as f64)
        .collect();
    record(&packet(), median(&each));
    record(&idle_peer(), memory_beyond);
    Ok(())
}

/// Two devices that perform an ordinary or a hybrid handshake.
struct Devices {
    suite: Option<Suite>,
    client: End,
    server: End,
    now: Now,
}

impl Devices {
    fn new(suite: Option<Suite>) -> Result<Self> {
        let mut client = End::new([192, 0, 2, 1], [10, 0, 0, 1])?;
        let mut server = End::new([192, 0, 2, 2], [10, 0, 0, 2])?;
        let now = Now {
            boot: time::Instant(1),
            wall: Duration::from_secs(1_700_000_000),
        };
        client.know(now, &server, suite)?;
        server.know(now, &client, suite)?;
        Ok(Self {
            suite,
            client,
            server,
            now,
        })
    }
}

impl Handshake for Devices {
    fn shake(&mut self) -> Result<Exchange> {
        let (client, server) = (&mut self.client, &mut self.server);
        // Enough time for another handshake to be allowed. Taking a device down removes its
        // session.
        let second = Duration::from_secs(1);
        self.now.boot += second;
        self.now.wall += second;
        let now = self.now;
        for end in [&mut *client, &mut *server] {
            end.device.set_down();
            end.device.set_up(now);
        }
        client.want_to_send(now, server)?;

        let (initiating, initiation) = client.act(|device| device.handle_pending_work(now))?;
        let (taken, answering) = processor_time(|| server.take(now, client.address, &initiation));
        let (responding, response) = taken?;
        let (finishing, first) = client.take(now, server.address, &response)?;

        let kinds = [&initiation, &response, &first].map(|messages| kinds(messages));
        let whole = match self.suite {
            None => [Kind::Initiation, Kind::Response, Kind::Data],
            Some(_) => [Kind::HybridInitiation, Kind::HybridResponse, Kind::Data],
        };
        let whole = whole.map(|kind| Some(vec![kind]));
        ensure!(kinds == whole, "the handshake was {kinds:?}");
        let first = first.into_iter().next();
        server.open(now, client, first.unwrap_or_default())?;
        let messages = initiation.iter().chain(&response);
        Ok(Exchange {
            messages: messages.map(Vec::len).collect(),
            client: initiating + finishing,
            server: responding,
            answering,
        })
    }

    fn carry(&mut self) -> Result<Option<Duration>> {
        let (client, server, now) = (&mut self.client, &self.server, self.now);
        let peer = client.device.peer(&server.public);
        let peer = peer.ok_or_else(|| Error::unmet("the peer is not known"))?;
        let mut packet = client.packet(server);
        packet.resize(PACKET, 0);
        if let Some(length) = packet.get_mut(2..4) {
            length.copy_from_slice(&(PACKET as u16).to_be_bytes());
        }
        let stride = PACKET + DATA_OVERHEAD;
        let mut batch = vec![0; BATCH * stride];
        for message in batch.chunks_mut(stride) {
            if let Some(inner) = message.get_mut(DATA_HEADER_LEN..DATA_HEADER_LEN + PACKET) {
                inner.copy_from_slice(&packet);
            }
        }
        let mut sorted = ReceivedBatch::default();
        let start = Instant::now();
        let path = client.device.data_path();
        let Outbound::Send(reserved) =
            path.reserve(now.boot, &peer, BATCH as u64, batch.len() as u64)
        else {
            return Err(Error::unmet("there is no session to send with"));
        };
        reserved.seal(&mut batch, stride);
        let from = Endpoint::from(client.address);
        let path = server.device.data_path();
        path.receive(now.boot, from, &mut batch, stride, &mut sorted);
        let took = start.elapsed();
        let arrived = sorted.inner.iter();
        let whole = arrived.filter(|at| batch.get((*at).clone()) == Some(&*packet));
        ensure!(whole.count() == BATCH, "packets that did not arrive");
        Ok(Some(took))
    }
}

/// Runs `work` and returns the processor time of this thread for it.
fn processor_time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    };
    let start = now();
    let done = work();
    (done, now().saturating_sub(start))
}

/// Returns the kinds of `messages`, merging equal neighbours. `None` if a message has no kind.
fn kinds(messages: &[Vec<u8>]) -> Option<Vec<Kind>> {
    let kinds = messages.iter().map(|message| classify(message).ok());
    let mut kinds: Vec<Kind> = kinds.collect::<Option<_>>()?;
    kinds.dedup();
    Some(kinds)
}

/// A device with its addresses.
struct End {
    device: Device,
    seed: PqPrivateKey,
    public: PublicKey,
    /// Address outside the tunnel.
    address: SocketAddr,
    /// Address inside the tunnel.
    inner: Ipv4Addr,
}

impl End {
    fn new(outer: [u8; 4], inner: [u8; 4]) -> Result<Self> {
        let secret: Secret<32> = SystemRandom.secret();
        let private = PrivateKey::new(*secret.expose());
        let private = private.ok_or_else(|| Error::unmet("a private key of zeros"))?;
        let public = PublicKey(CRYPTO.dh.public(private.expose()));
        let now = Now {
            boot: time::Instant(0),
            wall: Duration::ZERO,
        };
        let mut seed = Secret::zeroed();
        SystemRandom.fill(seed.expose_mut());
        let seed = PqPrivateKey::new(seed);
        let seed = seed.ok_or_else(|| Error::unmet("a seed of zeros"))?;
        let mut device = Device::new(CRYPTO, Box::new(SystemRandom), std::sync::Arc::new(|| {}));
        let key = PrivateKeyUpdate {
            key: Some(private),
            timestamp_floor: Tai64N::ZERO,
        };
        let update = DeviceUpdate {
            private_key: Some(key),
            pq_private_key: Some(Some(seed.clone())),
            ..DeviceUpdate::default()
        };
        update_device(&mut device, now, update)?;
        Ok(Self {
            device,
            seed,
            public,
            address: (outer, 51_820).into(),
            inner: inner.into(),
        })
    }

    /// Adds the other end as a peer.
    fn know(&mut self, now: Now, other: &Self, suite: Option<Suite>) -> Result<()> {
        let mut peer = PeerUpdate::new(other.public);
        peer.endpoint = Some(other.address);
        if let Some(suite) = suite {
            let key = || other.seed.public(CRYPTO, suite);
            peer.pq_public_key = Some(suite.has_static_keys().then(key));
            peer.post_quantum = Some(Some(PostQuantum::Require));
        }
        peer.allowed_ips = vec![AllowedIpChange::Add(IpAddr::V4(other.inner).into())];
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        update_device(&mut self.device, now, update)
    }

    /// Queues a packet for the other end, which starts a handshake.
    fn want_to_send(&mut self, now: Now, to: &Self) -> Result<()> {
        let peer = self.device.peer(&to.public);
        let peer = peer.ok_or_else(|| Error::unmet("the peer is not known"))?;
        let mut packet = self.packet(to);
        packet.resize(padded_len(packet.len(), 1420), 0);
        let staged = Staged { packet, ecn: 0 };
        let path = self.device.data_path();
        path.stage(now.boot, &peer, std::iter::once(staged));
        Ok(())
    }

    /// Returns an IPv4 packet without content (RFC 791; protocol 253 of RFC 3692).
    fn packet(&self, to: &Self) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0];
        packet.extend(self.inner.octets());
        packet.extend(to.inner.octets());
        packet
    }

    /// Processes a handshake message, which may consist of several parts.
    fn take(
        &mut self,
        now: Now,
        from: SocketAddr,
        parts: &[Vec<u8>],
    ) -> Result<(Duration, Vec<Vec<u8>>)> {
        let mut refused = None;
        let done = self.act(|device| {
            refused = parts
                .iter()
                .find_map(|part| device.handle_message(now, Endpoint::from(from), part, 0));
        });
        match refused {
            Some(cause) => Err(Error::unmet(format!("a handshake message: {cause}"))),
            None => done,
        }
    }

    /// Runs `work`; returns the time it took and the messages it sent.
    fn act(&mut self, work: impl FnOnce(&mut Device)) -> Result<(Duration, Vec<Vec<u8>>)> {
        let start = Instant::now();
        work(&mut self.device);
        let outputs = std::iter::from_fn(|| self.device.poll_output());
        let sent = outputs.filter_map(|output| match output {
            Output::Transmit { datagram, .. } => Some(datagram),
            Output::ReserveTimestamps { .. }
            | Output::Resolve { .. }
            | Output::PinPostQuantum { .. }
            | Output::Notice(_) => None,
        });
        let sent: Vec<_> = sent.collect();
        let took = start.elapsed();
        ensure!(!sent.is_empty(), "a handshake goes on with no message");
        Ok((took, sent))
    }

    /// Decrypts the first message of the new session.
    fn open(&self, now: Now, from: &Self, mut message: Vec<u8>) -> Result<()> {
        let mut sorted = ReceivedBatch::default();
        let endpoint = Endpoint::from(from.address);
        let length = message.len();
        let path = self.device.data_path();
        path.receive(now.boot, endpoint, &mut message, length, &mut sorted);
        let inner = sorted.inner.first().and_then(|at| message.get(at.clone()));
        ensure!(
            inner == Some(&*from.packet(self)),
            "the two ends do not have the same keys"
        );
        Ok(())
    }
}

fn update_device(device: &mut Device, now: Now, update: DeviceUpdate) -> Result<()> {
    let updated = device.update(now, update);
    updated.map_err(|error| Error::unmet(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_protocol::key::PresharedKey;

    #[test]
    fn a_handshake_of_wireguard_has_the_sizes_of_its_paper() -> Result<()> {
        let mut ends = Devices::new(None)?;
        for _ in 0..3 {
            let exchange = ends.shake()?;
            assert_eq!(exchange.messages, [148, 92]);
            assert_eq!((exchange.traffic(), exchange.packets()), (240, 2));
            assert!(exchange.client > Duration::ZERO && exchange.server > Duration::ZERO);
        }
        Ok(())
    }

    #[test]
    fn handshakes_of_taupe_have_the_sizes_of_their_document() -> Result<()> {
        for (suite, sizes) in [
            (Suite::Light, vec![944, 860]),
            (Suite::Hybrid512, vec![912, 848, 860, 844]),
            (Suite::Hybrid768, vec![1232, 1232, 1180, 1164]),
        ] {
            let mut ends = Devices::new(Some(suite))?;
            for _ in 0..3 {
                assert_eq!(ends.shake()?.messages, sizes);
            }
        }
        Ok(())
    }

    #[test]
    fn ends_that_do_not_share_a_secret_do_not_complete() -> Result<()> {
        let mut ends = Devices::new(None)?;
        let mut peer = PeerUpdate::new(ends.client.public);
        peer.preshared_key = Some(PresharedKey::new([7; 32]));
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        let now = ends.now;
        update_device(&mut ends.server.device, now, update)?;
        assert!(matches!(ends.shake(), Err(Error::Unmet(_))));
        Ok(())
    }

    #[test]
    fn a_packet_that_does_not_open_is_noticed() -> Result<()> {
        let (mut one, mut other) = (Devices::new(None)?, Devices::new(None)?);
        one.shake()?;
        other.shake()?;
        let foreign = vec![4; 64];
        assert!(one.server.open(one.now, &one.client, foreign).is_err());
        // A message for a session of another device.
        other.server.want_to_send(other.now, &other.client)?;
        let now = other.now;
        let (_, mut messages) = other.server.act(|device| device.handle_pending_work(now))?;
        let message = messages.remove(0);
        assert!(
            one.client
                .open(one.now, &other.server, message.clone())
                .is_err()
        );
        other.client.open(other.now, &other.server, message)
    }

    #[test]
    fn messages_that_do_not_fit_take_several_packets() {
        let exchange = |messages: &[usize]| Exchange {
            messages: messages.to_vec(),
            client: Duration::ZERO,
            server: Duration::ZERO,
            answering: Duration::ZERO,
        };
        for (messages, packets) in [
            ([1232, 1], 2),
            ([1233, 92], 3),
            // Sizes of the published programs' messages.
            ([2388, 2236], 4),
            ([1684, 1436], 4),
            ([1080, 832], 2),
        ] {
            assert_eq!(exchange(&messages).packets(), packets, "{messages:?}");
        }
    }

    #[test]
    fn a_variant_that_fails_is_told_of_in_its_row() {
        let Variant { id, label, .. } = VARIANTS[0];
        let variant = Variant::new(id, label, || Err(Error::unmet("no random numbers")));
        let mut report = Report::default();
        measure_all(&[variant], 1, &mut report);
        let table = super::super::fill(&description(), &report);
        let note = table.rows[0].note.as_deref();
        assert_eq!(note, Some("handshake-pq: no random numbers"));
    }

    #[test]
    fn every_column_is_filled_that_a_variant_can_fill() {
        let mut report = Report::default();
        measure_all(VARIANTS, 20, &mut report);
        let table = super::super::fill(&description(), &report);
        let measured: Vec<_> = table
            .rows
            .iter()
            .filter(|row| row.contestant.is_some())
            .collect();
        assert_eq!(measured.len(), VARIANTS.len());
        for row in measured {
            let id = row.contestant.as_deref().unwrap();
            let filled = match id {
                "x25519" => 6,
                id if id.starts_with("repro-") => 5,
                _ => 7,
            };
            for (column, cell) in row.cells.iter().enumerate() {
                // Other tests change the process's memory meanwhile, so this column may be
                // negative.
                let least = if column == 6 { f64::MIN } else { 0.0 };
                let is_filled = cell.measured.is_some_and(|figure| figure > least);
                assert_eq!(is_filled, column < filled, "{row:?}");
            }
        }
    }

    #[test]
    fn what_was_published_is_what_the_variants_say() {
        for variant in taupe_repro::variant::VARIANTS {
            let found = PUBLISHED.iter().find(|(label, _)| *label == variant.name);
            let figures = found.expect("in the table").1;
            let said = &variant.published;
            let [traffic, packets] = [said.traffic, said.packets];
            assert_eq!(figures[0], format!("{traffic} B"));
            assert_eq!(figures[1], packets.to_string());
            assert_eq!(figures[2], format!("{:.2} ms", said.client));
            assert_eq!(figures[3], format!("{:.2} ms", said.server));
        }
    }
}
