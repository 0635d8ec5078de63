//! Captures packets with `tcpdump`, and reads them back.

use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{Process, wait_until};
use crate::sandbox;
use rustix::process::Signal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Size of the kernel's capture buffer, in KiB. The kernel reserves the size of the largest packet,
/// 64 KiB with offloads, for each packet: enough for a thousand packets that arrive while `tcpdump`
/// does not run.
const BUFFER: &str = "65536";

/// Larger than any packet (`tcpdump`'s default).
const SNAPSHOT_LENGTH: u32 = 262_144;

/// A running capture on one interface.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Process,
    file: PathBuf,
}

impl Capture {
    /// Starts a capture, which sees all packets from the return of this function on. `filter` is in
    /// the language of `pcap-filter(7)`, empty for everything.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the capture does not start, such as for an invalid filter.
    pub fn start(host: &Host, interface: &str, filter: &str) -> Result<Self> {
        Self::start_truncated(host, interface, filter, SNAPSHOT_LENGTH)
    }

    /// As [`start`](Self::start), but captures only the first `length` bytes of each packet,
    /// including the link's header. The kernel can then buffer many more packets.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_truncated(
        host: &Host,
        interface: &str,
        filter: &str,
        length: u32,
    ) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = sandbox::scratch(&format!("{number}.pcap"));
        let path = file.display().to_string();
        let length = length.to_string();
        #[rustfmt::skip]
        let mut command = vec![
            "tcpdump", "-i", interface, "-n", "-U", "--immediate-mode",
            "-B", BUFFER, "-s", &length, "-Z", "root", "-w", &path,
        ];
        if !filter.is_empty() {
            command.push(filter);
        }
        let mut tcpdump = host.spawn(&command)?;
        wait_until("beginning of the capture", Duration::from_secs(60), || {
            if !tcpdump.runs()? {
                return Err(Error::unmet(format!("tcpdump: {}", tcpdump.output())));
            }
            Ok(tcpdump.output().contains("listening on"))
        })?;
        Ok(Self { tcpdump, file })
    }

    /// Returns the capturing program.
    pub const fn process(&self) -> &Process {
        &self.tcpdump
    }

    /// Ends the capture as soon as its packets fulfil a condition, and returns them. `tcpdump`
    /// writes packets with a delay.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] naming `what` after 10 seconds, with the numbers of captured and lost
    /// packets, and as [`stop`](Self::stop).
    pub fn stop_once(
        self,
        what: &str,
        mut condition: impl FnMut(&[Packet]) -> bool,
    ) -> Result<Vec<Packet>> {
        let name = self.file.display().to_string();
        let seen = wait_until(what, Duration::from_secs(10), || {
            let bytes = std::fs::read(&self.file).map_err(Error::io(&*name))?;
            // A file that is still being written may end within a packet.
            Ok(parse(&bytes).is_some_and(|packets| condition(&packets)))
        });
        let (packets, lost) = self.stop_with_drops()?;
        seen.map_err(|error| match error {
            Error::Timeout { .. } => Error::unmet(format!(
                "{error} in {} packets captured; the capture lost {lost}",
                packets.len()
            )),
            other => other,
        })?;
        Ok(packets)
    }

    /// Ends the capture and returns its packets in order. If packets are missing, because they
    /// arrived faster than `tcpdump` read them, it prints their number.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if tcpdump does not end, [`Error::Malformed`] if its file or output is
    /// invalid.
    pub fn stop(self) -> Result<Vec<Packet>> {
        let file = self.file.display().to_string();
        let (packets, lost) = self.stop_with_drops()?;
        if lost > 0 {
            eprintln!("{file}: the capture lost {lost} packets");
        }
        Ok(packets)
    }

    /// Ends the capture and returns its packets in order, and the number of missing ones.
    ///
    /// # Errors
    ///
    /// As [`stop`](Self::stop).
    pub fn stop_with_drops(mut self) -> Result<(Vec<Packet>, u64)> {
        self.tcpdump.signal(Signal::INT)?;
        self.tcpdump.wait(Duration::from_secs(30))?;
        let name = self.file.display().to_string();
        let bytes = std::fs::read(&self.file).map_err(Error::io(&*name))?;
        let malformed = |what: String, why: &str| Error::Malformed {
            what,
            why: why.to_owned(),
        };
        let packets = parse(&bytes)
            .ok_or_else(|| malformed(name, "not a whole pcap file of a known link type"))?;
        let result = self.tcpdump.output();
        let lost = parse_dropped(&result)
            .ok_or_else(|| malformed("tcpdump's last words".to_owned(), result.trim()))?;
        Ok((packets, lost))
    }
}

/// Parses the number of packets that the kernel dropped from `tcpdump`'s output.
fn parse_dropped(output: &str) -> Option<u64> {
    let count = |line: &str| {
        line.strip_suffix(" dropped by kernel")?
            .split(' ')
            .next()?
            .parse()
            .ok()
    };
    output.lines().find_map(count)
}

/// A captured packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// Time of capture since the Unix epoch.
    pub time: Duration,
    /// The IP packet without the link's header. Empty if the frame holds something else.
    pub ip: Vec<u8>,
}

/// The UDP part of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address.
    pub source: SocketAddr,
    /// Destination address.
    pub destination: SocketAddr,
    /// The payload. With offloads it contains all segments of a packet that is not split yet.
    pub payload: &'a [u8],
}

/// The four messages of the protocol (whitepaper section 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Handshake initiation, 148 bytes.
    Initiation,
    /// Handshake response, 92 bytes.
    Response,
    /// Cookie reply, 64 bytes.
    CookieReply,
    /// Transport data, at least 32 bytes.
    Data,
}

impl Packet {
    /// Parses the packet as UDP, without extension headers or fragments.
    pub fn datagram(&self) -> Option<Datagram<'_>> {
        const UDP: u8 = 17;
        let ip = &*self.ip;
        let (protocol, source, destination, udp): (_, IpAddr, IpAddr, _) = match ip.first()? >> 4 {
            4 => (
                *ip.get(9)?,
                Ipv4Addr::from(array::<4>(ip, 12)?).into(),
                Ipv4Addr::from(array::<4>(ip, 16)?).into(),
                ip.get(usize::from(ip.first()? & 15) * 4..)?,
            ),
            6 => (
                *ip.get(6)?,
                Ipv6Addr::from(array::<16>(ip, 8)?).into(),
                Ipv6Addr::from(array::<16>(ip, 24)?).into(),
                ip.get(40..)?,
            ),
            _ => return None,
        };
        if protocol != UDP {
            return None;
        }
        let port = |at| array::<2>(udp, at).map(u16::from_be_bytes);
        Some(Datagram {
            source: SocketAddr::new(source, port(0)?),
            destination: SocketAddr::new(destination, port(2)?),
            payload: udp.get(8..)?,
        })
    }

    /// Returns the kind of WireGuard message in the packet, if it is one.
    pub fn message(&self) -> Option<Message> {
        let payload = self.datagram()?.payload;
        match (payload.get(..4)?, payload.len()) {
            ([1, 0, 0, 0], 148) => Some(Message::Initiation),
            ([2, 0, 0, 0], 92) => Some(Message::Response),
            ([3, 0, 0, 0], 64) => Some(Message::CookieReply),
            ([4, 0, 0, 0], 32..) => Some(Message::Data),
            _ => None,
        }
    }
}

/// Returns the packets with this kind of message.
pub fn messages(packets: &[Packet], message: Message) -> impl Iterator<Item = &Packet> {
    let holds = move |packet: &&Packet| packet.message() == Some(message);
    packets.iter().filter(holds)
}

/// Parses a pcap file (draft-ietf-opsawg-pcap) of either byte order.
fn parse(file: &[u8]) -> Option<Vec<Packet>> {
    let magic: [u8; 4] = array(file, 0)?;
    let (number, unit): (fn([u8; 4]) -> u32, u32) = match magic {
        [0xd4, 0xc3, 0xb2, 0xa1] => (u32::from_le_bytes, 1_000),
        [0x4d, 0x3c, 0xb2, 0xa1] => (u32::from_le_bytes, 1),
        [0xa1, 0xb2, 0xc3, 0xd4] => (u32::from_be_bytes, 1_000),
        [0xa1, 0xb2, 0x3c, 0x4d] => (u32::from_be_bytes, 1),
        _ => return None,
    };
    let field = |at| array(file, at).map(number);
    let link = field(20)?;
    let mut packets = Vec::new();
    let mut at = 24;
    while at < file.len() {
        let nanoseconds = field(at + 4)?.checked_mul(unit)?;
        let time = Duration::new(field(at)?.into(), nanoseconds);
        let length = usize::try_from(field(at + 8)?).ok()?;
        let frame = file.get(at + 16..)?.get(..length)?;
        let ip = ip_packet(link, frame)?.to_vec();
        packets.push(Packet { time, ip });
        at += 16 + length;
    }
    Some(packets)
}

/// Returns the IP packet in a frame; empty if the frame holds something else. Link types are those
/// of the pcap format's registry.
fn ip_packet(link: u32, frame: &[u8]) -> Option<&[u8]> {
    let (kind, start) = match link {
        1 => (array(frame, 12)?, 14),
        101 => return Some(frame),
        113 => (array(frame, 14)?, 16),
        276 => (array(frame, 0)?, 20),
        _ => return None,
    };
    match u16::from_be_bytes(kind) {
        0x0800 | 0x86dd => frame.get(start..),
        _ => Some(&[]),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a file in the given byte order with one IPv4 packet in Ethernet.
    fn file(magic: [u8; 4], number: fn(u32) -> [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
        ip.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        ip.extend([0x27, 0x10, 0x4e, 0x20, 0, 0, 0, 0]);
        ip.extend(payload);
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend(ip);
        let mut file = magic.to_vec();
        file.extend([0; 16]);
        file.extend(number(1));
        let length = u32::try_from(frame.len()).unwrap();
        for field in [7, 500_000, length, length] {
            file.extend(number(field));
        }
        file.extend(frame);
        file
    }

    fn initiation() -> Vec<u8> {
        let mut payload = vec![1, 0, 0, 0];
        payload.resize(148, 0);
        payload
    }

    #[test]
    fn lost_packets_are_counted() {
        let output = "tcpdump: listening on eth0\n3 packets captured\n\
            10 packets received by filter\n7 packets dropped by kernel\n";
        assert_eq!(parse_dropped(output), Some(7));
        assert_eq!(
            parse_dropped(&output.replace("7 packets", "1 packet")),
            Some(1)
        );
        assert_eq!(parse_dropped("3 packets captured\n"), None);
    }

    #[test]
    fn reads_both_byte_orders() {
        let little = file([0xd4, 0xc3, 0xb2, 0xa1], u32::to_le_bytes, &initiation());
        let big = file([0xa1, 0xb2, 0xc3, 0xd4], u32::to_be_bytes, &initiation());
        let packets = parse(&little).unwrap();
        assert_eq!(parse(&big).unwrap(), packets);
        assert_eq!(packets.len(), 1);
        assert_eq!(packets[0].time, Duration::from_millis(7500));
        assert_eq!(packets[0].message(), Some(Message::Initiation));
        let datagram = packets[0].datagram().unwrap();
        assert_eq!(datagram.source, "192.0.2.1:10000".parse().unwrap());
        assert_eq!(datagram.destination, "192.0.2.2:20000".parse().unwrap());
    }

    #[test]
    fn a_message_needs_its_exact_size() {
        for (size, expected) in [(147, None), (148, Some(Message::Initiation)), (149, None)] {
            let mut payload = initiation();
            payload.resize(size, 0);
            let bytes = file([0xd4, 0xc3, 0xb2, 0xa1], u32::to_le_bytes, &payload);
            assert_eq!(parse(&bytes).unwrap()[0].message(), expected, "{size}");
        }
    }

    #[test]
    fn a_truncated_file_is_refused() {
        let full = file([0xd4, 0xc3, 0xb2, 0xa1], u32::to_le_bytes, &initiation());
        assert_eq!(parse(&full[..24]), Some(Vec::new()));
        for length in (0..24).chain(25..full.len()) {
            assert_eq!(parse(&full[..length]), None, "{length}");
        }
    }
}
