//! A cable behind the tunnel on which every packet is checked.
//!
//! Both ends are TUNs without offloads. The kernel must therefore split the tunnel's super-packets
//! and complete every checksum before packets arrive here; a capture on the tunnel's own interface
//! may show partial checksums.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use taupe_lab::host::{Host, add_address};
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::tun::{Offloads, READ_BUFFER_LEN, Read, Tun, WriteError};
use taupe_packet::merge::TunWrite;

/// Its interface on both machines.
const CABLE: &str = "lan0";

/// The tunnel's MTU, the largest size of a packet from the tunnel.
const TUNNEL_MTU: usize = 1420;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Number of packets from the tunnel.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketCounts {
    pub(crate) tcp: u64,
    pub(crate) udp: u64,
    /// Packets whose ECN field marks congestion.
    pub(crate) marked: u64,
}

/// The cable.
pub(crate) struct Inspector {
    findings: Arc<Mutex<Findings>>,
}

#[derive(Default)]
struct Findings {
    seen: PacketCounts,
    /// The fault of the first faulty packet.
    fault: Option<String>,
}

impl Inspector {
    /// Connects a tunnel's machine to the one behind it, until the test ends.
    pub(crate) fn between(far: (&Host, &[&str]), beyond: (&Host, &[&str])) -> Result<Self> {
        let plug = |(host, addresses)| plug(host, addresses).map(Arc::new);
        let (far, beyond) = (plug(far)?, plug(beyond)?);
        let findings = Arc::new(Mutex::new(Findings::default()));
        for (from, to, looks) in [
            (far.clone(), beyond.clone(), Some(findings.clone())),
            (beyond, far, None),
        ] {
            thread::spawn(move || carry(&from, &to, looks.as_deref()));
        }
        Ok(Self { findings })
    }

    /// Returns the packets since the last call.
    ///
    /// An error if a packet was faulty.
    pub(crate) fn take(&self) -> Result<PacketCounts> {
        let mut findings = lock(&self.findings);
        match findings.fault.take() {
            Some(fault) => Err(Error::unmet(format!("out of the tunnel came {fault}"))),
            None => Ok(std::mem::take(&mut findings.seen)),
        }
    }
}

fn plug(host: &Host, addresses: &[&str]) -> Result<Tun> {
    let tun = host.enter(|| {
        Tun::create(CABLE, Offloads::NONE).map_err(|error| Error::unmet(error.to_string()))
    })?;
    for address in addresses {
        add_address(host, CABLE, address)?;
    }
    #[rustfmt::skip]
    host.ip(&["link", "set", CABLE, "mtu", "1500", "txqueuelen", "4096", "up"])?;
    Ok(tun)
}

fn carry(from: &Tun, to: &Tun, findings: Option<&Mutex<Findings>>) {
    let mut buffer = vec![0; READ_BUFFER_LEN];
    while let Ok(Read::Packet { range, .. }) = from.read(&mut buffer) {
        let packet = buffer.get(range).unwrap_or_default();
        if let Some(findings) = findings {
            look(packet, &mut lock(findings));
        }
        match to.write(&TunWrite::single(packet)) {
            Ok(()) | Err(WriteError::Down) => {}
            Err(error) => return eprintln!("the cable broke: {error}"),
        }
    }
}

fn look(packet: &[u8], findings: &mut Findings) {
    match check(packet) {
        Ok((protocol, ecn)) => {
            findings.seen.tcp += u64::from(protocol == TCP);
            findings.seen.udp += u64::from(protocol == UDP);
            findings.seen.marked += u64::from(ecn == 3);
        }
        Err(fault) => {
            let head = packet.get(..packet.len().min(80)).unwrap_or_default();
            let fault = format!("{fault}: {} bytes, {head:02x?}", packet.len());
            findings.fault.get_or_insert(fault);
        }
    }
}

/// Checks a packet; returns its protocol and its ECN field.
fn check(packet: &[u8]) -> Result<(u8, u8)> {
    ensure!(packet.len() <= TUNNEL_MTU, "more than fits the tunnel");
    let byte = |at: usize| packet.get(at).copied().unwrap_or_default();
    let word = |at: usize| u16::from_be_bytes([byte(at), byte(at + 1)]);
    let (header, length, protocol, class, addresses) = if byte(0) >> 4 == 4 {
        let header = usize::from(byte(0) & 15) * 4;
        ensure!(word(6) & 0x3fff == 0, "a fragment");
        let sum = sum(0, packet.get(..header).unwrap_or_default());
        ensure!(sum == 0xffff, "a wrong sum of the header");
        (header, usize::from(word(2)), byte(9), byte(1), 12..20)
    } else {
        let class = byte(0) << 4 | byte(1) >> 4;
        (40, 40 + usize::from(word(4)), byte(6), class, 8..40)
    };
    ensure!(length == packet.len(), "a length of {length}");
    if [TCP, UDP].contains(&protocol) {
        let transport = packet.get(header..).unwrap_or_default();
        let pseudo_header = sum(
            (transport.len() + usize::from(protocol)) as u32,
            packet.get(addresses).unwrap_or_default(),
        );
        let is_udp_without = protocol == UDP && word(header + 6) == 0;
        ensure!(!is_udp_without, "UDP without a checksum");
        let sum = sum(pseudo_header.into(), transport);
        ensure!(sum == 0xffff, "a wrong checksum of protocol {protocol}");
    }
    Ok((protocol, class & 3))
}

/// Computes the sum of RFC 1071 word by word, independently of the product.
fn sum(start: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(*high) << 8 | u32::from(*low),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn lock(findings: &Mutex<Findings>) -> MutexGuard<'_, Findings> {
    findings.lock().unwrap_or_else(PoisonError::into_inner)
}
