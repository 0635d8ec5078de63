//! Throughput of a tunnel while strangers flood its server with handshakes.
//!
//! A third machine, connected to the server by a cable of its own, sends 100,000 datagrams of 148
//! bytes a second (`sendmmsg` on a raw socket). Each has a different port and address out of the
//! 131,072 of 198.18.0.0/15 (RFC 2544). The server has a route to these addresses, so its answers
//! cost what real answers cost; the third machine drops them.
//!
//! The reference is the same flood to a UDP socket that no program reads. The kernel drops these
//! datagrams once the socket's buffer is full, before any program sees them. A reference program
//! that received and discarded them would cost more, and make the tunnel look better by comparison.

use super::iperf::{self, Flow, Transfer};
use super::servers::Servers;
use crate::contestant::{Contestant, HandshakeTarget};
use crate::session::Session;
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{
    AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
    sendmmsg, socket_with,
};
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use taupe_crypto::AWS_LC;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};

/// Datagrams per second.
pub const RATE: u32 = 100_000;

/// Time between the start of the flood and the transfer, in which the server adapts to the flood.
const LEAD: Duration = Duration::from_millis(300);

/// Number of datagrams per system call.
const BATCH: usize = 50;

/// Longest delay of the sender that it makes up for.
const MAX_LAG: Duration = Duration::from_millis(20);

/// Addresses of the third machine and of the server on their cable.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const VICTIM: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

/// Prefix of the spoofed source addresses, 15 bits long.
const SOURCES: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const SOURCES_MASK: u32 = (1 << 17) - 1;

/// Discard (RFC 863).
const DISCARD: u16 = 9;

/// Contents and target of the flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodKind {
    /// Initiations to the socket that nobody reads.
    Unread,
    /// Initiations with a wrong mac1, as from a sender without the server's public key.
    WrongMac1,
    /// Initiations with a valid mac1 (whitepaper §5.4.4) and otherwise random content.
    ValidMac1,
}

impl FloodKind {
    /// All kinds; the reference comes first.
    pub const ALL: [Self; 3] = [Self::Unread, Self::WrongMac1, Self::ValidMac1];

    /// Returns the name for keys of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::WrongMac1 => "strangers",
            Self::ValidMac1 => "informed",
        }
    }
}

/// A transfer during a flood.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloodedTransfer {
    /// Kind of the flood.
    pub kind: FloodKind,
    /// Datagrams per second as actually sent.
    pub rate: f64,
    /// The transfer through the tunnel.
    pub transfer: Transfer,
}

/// Measures a transfer during a flood of each [`FloodKind`]. `None` if the contestant accepts no
/// handshakes.
pub fn measure(
    contestant: &dyn Contestant,
    session: &Session,
    servers: &mut Servers,
    flow: Flow,
) -> Option<Result<Vec<FloodedTransfer>>> {
    let handshakes = contestant.handshakes(&session.pair, &session.server)?;
    Some(handshakes.and_then(|handshakes| {
        let attacker = Attacker::new(session, handshakes)?;
        let mut flooded = |kind| {
            let (rate, transfer) =
                attacker.during(kind, || iperf::transfer(session, servers, flow))?;
            Ok(FloodedTransfer {
                kind,
                rate,
                transfer,
            })
        };
        FloodKind::ALL.into_iter().map(&mut flooded).collect()
    }))
}

/// The third machine; dropping it removes it.
#[derive(Debug)]
pub struct Attacker {
    host: Host,
    handshakes: HandshakeTarget,
    socket: OwnedFd,
    /// Bound and never read.
    _unread: UdpSocket,
}

impl Attacker {
    /// Connects the machine to the session's server.
    ///
    /// # Errors
    ///
    /// Any error of a program or socket.
    pub fn new(session: &Session, handshakes: HandshakeTarget) -> Result<Self> {
        let server = &session.pair.server;
        let host = Host::new(&format!("{}-attacker", session.pair.name))?;
        let [near, far] = [ATTACKER, VICTIM].map(|address| format!("{address}/24"));
        host::link(
            host.port("eth0", &[&near]),
            server.port("flood", &[&far]),
            1500,
        )?;
        let sources = format!("{}/15", Ipv4Addr::from(SOURCES));
        server.ip(&["route", "add", &sources, "via", &ATTACKER.to_string()])?;
        let socket = host.enter(|| {
            let (family, kind) = (AddressFamily::INET, SocketType::RAW);
            socket_with(family, kind, SocketFlags::CLOEXEC, Some(ipproto::RAW))
                .map_err(Error::io("a raw socket"))
        })?;
        let unread = server.enter(|| {
            UdpSocket::bind((VICTIM, DISCARD)).map_err(Error::io("the port of discard"))
        })?;
        Ok(Self {
            host,
            handshakes,
            socket,
            _unread: unread,
        })
    }

    /// Runs `work` during the flood. Returns the datagrams per second of the flood, and the result
    /// of `work`.
    ///
    /// # Errors
    ///
    /// Those of `work`; [`Error::Io`] if the flood cannot be sent.
    pub fn during<T>(&self, kind: FloodKind, work: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
        let mut initiations = Initiations::new(kind, self.handshakes);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let flood = scope.spawn(|| self.flood(&mut initiations, &stop));
            thread::sleep(LEAD);
            let done = work();
            stop.store(true, Ordering::Relaxed);
            let rate = flood.join();
            let rate = rate.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok((rate, done?))
        })
    }

    /// Sends until `stop` is set. Returns the datagrams per second.
    fn flood(&self, initiations: &mut Initiations, stop: &AtomicBool) -> Result<f64> {
        let to = SocketAddr::from((VICTIM, 0)).as_any();
        let (begin, mut sent) = (Instant::now(), 0_u64);
        let interval = Duration::from_secs(1) * BATCH as u32 / RATE;
        let mut next = begin;
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            thread::sleep(next.saturating_duration_since(now));
            next = next.max(now.checked_sub(MAX_LAG).unwrap_or(now)) + interval;
            let batch = initiations.next_batch();
            let slices = batch.map(IoSlice::new);
            let mut controls: [_; BATCH] = std::array::from_fn(|_| SendAncillaryBuffer::default());
            let messages = slices.iter().zip(&mut controls);
            let mut messages: Vec<MMsgHdr<'_>> = messages
                .map(|(slice, control)| {
                    MMsgHdr::new_with_addr(&to, std::slice::from_ref(slice), control)
                })
                .collect();
            match sendmmsg(&self.socket, &mut messages, SendFlags::empty()) {
                Ok(count) => sent += count as u64,
                // The datagrams are lost on the attacker's machine.
                Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(error) => return Err(Error::io("sending the flood")(error)),
            }
        }
        Ok(sent as f64 / begin.elapsed().as_secs_f64())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // The kernel removes the cable with the machine, but with a delay. The sandbox removes
        // whatever remains.
        let _ = self.host.ip(&["link", "delete", "eth0"]);
        let _ = self.host.clone().delete();
    }
}

/// Bytes of an IPv4 header without options, of a UDP header, and of an initiation.
const IP: usize = 20;
const UDP: usize = 8;
const INITIATION: usize = 148;

type Packet = [u8; IP + UDP + INITIATION];

/// Initiations made in advance, because making one costs more than sending it. Each gets a new
/// source address whenever it is sent.
struct Initiations {
    packets: Vec<Packet>,
    at: usize,
    random: fastrand::Rng,
}

impl Initiations {
    /// Number of prepared initiations.
    const COUNT: usize = BATCH * 100;

    fn new(kind: FloodKind, to: HandshakeTarget) -> Self {
        // Every flood starts with other sources: a server may treat a source that returns after
        // some seconds, in this round or the next, as a retry.
        let mut random = fastrand::Rng::new();
        let port = match kind {
            FloodKind::Unread => DISCARD,
            FloodKind::WrongMac1 | FloodKind::ValidMac1 => to.port,
        };
        // HASH(LABEL-MAC1 ‖ S_r^pub)
        let mac1_key = AWS_LC.hash.hash(&[b"mac1----", &to.public_key]);
        let packet = |_| {
            let mut packet = [0; IP + UDP + INITIATION];
            packet[..IP + UDP].copy_from_slice(&headers(port));
            let initiation = &mut packet[IP + UDP..];
            random.fill(initiation);
            initiation[..4].copy_from_slice(&[1, 0, 0, 0]);
            // mac2 stays zero: the senders have no cookie.
            initiation[132..].fill(0);
            if kind == FloodKind::ValidMac1 {
                let mac1 = AWS_LC.hash.mac(&mac1_key, &[&initiation[..116]]);
                initiation[116..132].copy_from_slice(&mac1);
            }
            packet
        };
        Self {
            packets: (0..Self::COUNT).map(packet).collect(),
            at: 0,
            random,
        }
    }

    /// Returns the initiations for one system call.
    fn next_batch(&mut self) -> [&[u8]; BATCH] {
        let from = self.at;
        self.at = (from + BATCH) % Self::COUNT;
        let batch = &mut self.packets[from..from + BATCH];
        for packet in &mut *batch {
            let source = SOURCES | self.random.u32(..) & SOURCES_MASK;
            packet[12..16].copy_from_slice(&source.to_be_bytes());
            let port = self.random.u16(1024..);
            packet[IP..IP + 2].copy_from_slice(&port.to_be_bytes());
        }
        let batch: &[Packet] = batch;
        std::array::from_fn(|i| &batch[i][..])
    }
}

/// Returns the headers of IPv4 and UDP without the source. The kernel fills in the length,
/// identification and checksum of IPv4; a UDP checksum of zero means none.
fn headers(port: u16) -> [u8; IP + UDP] {
    let mut headers = [0; IP + UDP];
    headers[0] = 0x45;
    headers[8] = 64;
    headers[9] = 17;
    headers[16..20].copy_from_slice(&VICTIM.octets());
    headers[22..24].copy_from_slice(&port.to_be_bytes());
    headers[24..26].copy_from_slice(&((UDP + INITIATION) as u16).to_be_bytes());
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const TO: HandshakeTarget = HandshakeTarget {
        port: 51_820,
        public_key: [7; 32],
    };

    fn key(label: &[u8]) -> [u8; 32] {
        AWS_LC.hash.hash(&[label, &TO.public_key])
    }

    #[test]
    fn only_a_sender_with_the_public_key_has_a_valid_mac1() {
        for kind in FloodKind::ALL {
            for packet in Initiations::new(kind, TO).next_batch() {
                let initiation = &packet[IP + UDP..];
                assert_eq!(initiation[..4], [1, 0, 0, 0]);
                let mac1 = AWS_LC.hash.mac(&key(b"mac1----"), &[&initiation[..116]]);
                assert_eq!(initiation[116..132] == mac1, kind == FloodKind::ValidMac1);
                assert_eq!(initiation[132..], [0; 16]);
            }
        }
    }

    #[test]
    fn each_datagram_has_another_source() {
        let mut initiations = Initiations::new(FloodKind::ValidMac1, TO);
        let mut seen = BTreeSet::new();
        // Goes twice through all initiations.
        for _ in 0..2 * Initiations::COUNT / BATCH {
            for packet in initiations.next_batch() {
                assert_eq!((packet[12], packet[13] & 0xfe), (198, 18));
                assert_eq!(packet[16..20], VICTIM.octets());
                seen.insert([&packet[12..16], &packet[IP..IP + 2]].concat());
            }
        }
        // A few random sources are equal.
        assert!(seen.len() > 2 * Initiations::COUNT - 10, "{}", seen.len());
    }

    #[test]
    fn headers_have_length_and_destination() {
        for (kind, port) in [(FloodKind::Unread, 9), (FloodKind::WrongMac1, 51_820)] {
            let mut initiations = Initiations::new(kind, TO);
            let [packet, ..] = initiations.next_batch();
            assert_eq!(packet.len(), 176);
            assert_eq!((packet[0], packet[9]), (0x45, 17));
            assert_eq!(packet[22..26], [(port >> 8) as u8, port as u8, 0, 156]);
        }
    }
}
