//! Observes the demo from outside: a machine's configuration, and the packets on its cable.

use super::world::{INTERFACE, WEB, World};
use crate::capture::{Capture, Packet};
use crate::error::{Error, Result};
use crate::host::Host;
use std::net::{Ipv4Addr, UdpSocket};

/// Network configuration of a system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Configuration {
    /// Addresses, routes, rules, filters, name servers.
    lines: Vec<String>,
    /// The kernel's settings.
    pub(super) settings: Vec<String>,
    links: Vec<String>,
}

impl Configuration {
    /// Reads a machine's configuration.
    pub(super) fn of(home: &Host) -> Result<Self> {
        let mut lines = Vec::new();
        for command in [
            &["ip", "-4", "route", "show", "table", "all"][..],
            &["ip", "-6", "route", "show", "table", "all"],
            &["ip", "-4", "rule"],
            &["ip", "-6", "rule"],
            &["ip", "-o", "address"],
            &["nft", "list", "ruleset"],
            &["cat", "/etc/resolv.conf"],
        ] {
            let output = home.run(command)?;
            lines.extend(output.stdout.lines().map(str::to_owned));
        }
        // Excludes the settings of the tunnel's own interface, and a file that holds a count; some
        // files are write-only.
        let settings = format!(
            "cd /proc/sys/net && grep -rs . . | grep -v -e /{INTERFACE}/ -e nf_conntrack_count | sort"
        );
        let settings = home.run(&["sh", "-c", &settings])?.stdout;
        let settings: Vec<String> = settings.lines().map(str::to_owned).collect();
        let links = home.run(&["ip", "-o", "link"])?.stdout;
        Ok(Self {
            lines,
            settings,
            links: links.lines().map(str::to_owned).collect(),
        })
    }

    /// Returns the differences since `before`, without links.
    pub(super) fn changes(&self, before: &Self) -> Vec<String> {
        let mut changes = changes(&before.lines, &self.lines);
        changes.extend(self::changes(&before.settings, &self.settings));
        changes
    }

    /// Returns the links that differ since `before`.
    pub(super) fn changed_links(&self, before: &Self) -> Vec<String> {
        changes(&before.links, &self.links)
    }
}

/// Returns lines that are in only one of the lists; never empty if the lists differ.
fn changes(before: &[String], after: &[String]) -> Vec<String> {
    if before == after {
        return Vec::new();
    }
    let gone = before.iter().filter(|line| !after.contains(line));
    let new = after.iter().filter(|line| !before.contains(line));
    let gone = gone.map(|line| format!("-{line}"));
    let changes: Vec<String> = gone.chain(new.map(|line| format!("+{line}"))).collect();
    match changes.is_empty() {
        true => vec!["the same lines in another order, or more than once".to_owned()],
        false => changes,
    }
}

/// A capture at the router's end of the cable to the home, without the link's housekeeping packets.
pub(super) struct CableCapture<'a> {
    world: &'a World,
    capture: Capture,
}

/// Packets on the cable.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketCounts {
    /// Number of unencrypted packets.
    pub(super) clear: usize,
    /// Number of WireGuard messages, and of ICMP errors for them.
    pub(super) tunnel: usize,
}

impl<'a> CableCapture<'a> {
    pub(super) fn start(world: &'a World) -> Result<Self> {
        let capture = Capture::start(&world.router, "home", "tcp or udp or icmp")?;
        Ok(Self { world, capture })
    }

    /// Returns the packets until now. A final unencrypted datagram, which is not counted, marks the
    /// end of the capture.
    pub(super) fn stop(self) -> Result<PacketCounts> {
        const LAST: &[u8] = b"the last packet that counts";
        self.world.home.enter(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
            let sent = socket.and_then(|socket| socket.send_to(LAST, (WEB[0], 9)));
            sent.map(drop).map_err(Error::io("the last packet"))
        })?;
        let is_last = |payload: &[u8]| payload == LAST;
        let packets = self.capture.stop_once("the last packet", |packets| {
            let mut datagrams = packets.iter().filter_map(|packet| packet.datagram());
            datagrams.any(|datagram| is_last(datagram.payload))
        })?;
        let before = packets.into_iter().take_while(|packet| {
            let datagram = packet.datagram();
            !datagram.is_some_and(|datagram| is_last(datagram.payload))
        });
        let (tunnel, clear): (Vec<Packet>, Vec<Packet>) = before.partition(is_of_tunnel);
        for packet in &clear {
            // Output for a failed demo.
            eprintln!("in clear: {:02x?}", packet.ip);
        }
        Ok(PacketCounts {
            clear: clear.len(),
            tunnel: tunnel.len(),
        })
    }
}

/// Returns true for a WireGuard message, and for an ICMP destination unreachable message that
/// quotes one (RFC 792).
fn is_of_tunnel(packet: &Packet) -> bool {
    const ICMP: u8 = 1;
    const UNREACHABLE: u8 = 3;
    let quoted = || {
        let header = usize::from(packet.ip.first()? & 15) * 4;
        let is_icmp = packet.ip.first()? >> 4 == 4 && *packet.ip.get(9)? == ICMP;
        let icmp = packet.ip.get(header..)?;
        let quotes = is_icmp && *icmp.first()? == UNREACHABLE;
        let ip = icmp.get(8..).filter(|_| quotes)?.to_vec();
        let time = packet.time;
        Packet { time, ip }.message()
    };
    packet.message().or_else(quoted).is_some()
}
