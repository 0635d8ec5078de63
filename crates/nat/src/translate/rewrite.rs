//! Replaces addresses and ports in a packet, and corrects its checksums by the difference (RFC
//! 1624).

use taupe_packet::{
    checksum::{self, Sum},
    ip::{self, Family},
};

use super::view::{Content, View};
use crate::{flows::End, tcp};

const UDP_CHECKSUM: usize = 6;
const ICMP_CHECKSUM: usize = 2;
const ICMP_ID: usize = 4;
const V4_CHECKSUM: usize = 10;

/// New addresses and ports for a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rewrite {
    source: End,
    destination: End,
    addresses: Difference,
    ports: Difference,
}

/// Sums of the words that are replaced, before and after.
#[derive(Clone, Copy, Debug)]
struct Difference {
    old: u16,
    new: u16,
}

impl Difference {
    fn and(self, other: Self) -> Self {
        let add = |a, b| Sum::ZERO.word(a).word(b).folded();
        Self {
            old: add(self.old, other.old),
            new: add(self.new, other.new),
        }
    }

    /// Corrects the checksum at `at`, if the packet is long enough.
    fn correct(self, packet: &mut [u8], at: usize, kind: ChecksumKind) {
        let Some(field) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) else {
            return;
        };
        let sum = u16::from_be_bytes(*field);
        let sum = match kind {
            ChecksumKind::Complete => checksum::update(sum, self.old, self.new),
            // The field is the sum of the pseudo-header, not its complement.
            ChecksumKind::Partial => !checksum::update(!sum, self.old, self.new),
            // Zero means that there is no checksum.
            ChecksumKind::Optional if sum == 0 => 0,
            ChecksumKind::Optional => match checksum::update(sum, self.old, self.new) {
                0 => 0xffff,
                sum => sum,
            },
        };
        *field = sum.to_be_bytes();
    }
}

#[derive(Clone, Copy)]
enum ChecksumKind {
    Complete,
    Partial,
    /// UDP over IPv4, where 0 means none.
    Optional,
}

impl Rewrite {
    /// Creates the rewrite from one pair of source and destination to another.
    pub(super) fn new(from: (End, End), to: (End, End)) -> Self {
        let addresses = |(a, b): (End, End)| sum(sum(Sum::ZERO, a.ip), b.ip).folded();
        // Only one end of an ICMP query has an identifier.
        let ports = |(a, b): (End, End)| Sum::ZERO.word(a.port).word(b.port).folded();
        Self {
            source: to.0,
            destination: to.1,
            addresses: Difference {
                old: addresses(from),
                new: addresses(to),
            },
            ports: Difference {
                old: ports(from),
                new: ports(to),
            },
        }
    }

    /// Rewrites `packet`, whose header is `view`. If `partial` is set, the transport checksum
    /// covers only the pseudo-header so far.
    pub(super) fn apply(&self, packet: &mut [u8], view: &View, partial: bool) {
        write_addresses(
            packet,
            view.family,
            self.source.ip,
            self.destination.ip,
            self.addresses,
        );
        let whole = self.addresses.and(self.ports);
        match view.content {
            Content::Tcp { .. } => {
                self.write_ports(packet, view.at);
                let at = view.at + tcp::CHECKSUM;
                if partial {
                    self.addresses.correct(packet, at, ChecksumKind::Partial);
                } else {
                    whole.correct(packet, at, ChecksumKind::Complete);
                }
            }
            Content::Udp { .. } => {
                self.write_ports(packet, view.at);
                let at = view.at + UDP_CHECKSUM;
                if partial {
                    self.addresses.correct(packet, at, ChecksumKind::Partial);
                } else {
                    whole.correct(packet, at, ChecksumKind::Optional);
                }
            }
            Content::Echo { .. } => {
                let id = self.source.port | self.destination.port;
                put(packet, view.at + ICMP_ID, id);
                let at = view.at + ICMP_CHECKSUM;
                match (view.family, partial) {
                    (Family::V4, true) => {}
                    (Family::V4, false) => self.ports.correct(packet, at, ChecksumKind::Complete),
                    (Family::V6, true) => self.addresses.correct(packet, at, ChecksumKind::Partial),
                    (Family::V6, false) => whole.correct(packet, at, ChecksumKind::Complete),
                }
            }
            Content::Error | Content::Opaque => {}
        }
    }

    fn write_ports(&self, packet: &mut [u8], at: usize) {
        put(packet, at, self.source.port);
        put(packet, at + 2, self.destination.port);
    }
}

/// Rewrites an ICMP error and the packet that it quotes. The error gets the addresses `source` and
/// `destination`; the quoted packet gets the rewrite in `quoted`.
pub(super) fn apply_to_error(
    packet: &mut [u8],
    view: &View,
    (source, destination): (u128, u128),
    quoted: (&View, &Rewrite),
) {
    let end = |ip| End { ip, port: 0 };
    let outer = Rewrite::new(
        (end(view.source), end(view.destination)),
        (end(source), end(destination)),
    );
    write_addresses(packet, view.family, source, destination, outer.addresses);
    let Some(message) = packet.get_mut(view.at..view.len) else {
        return;
    };
    // Errors are short and rare, so the whole message is summed before and after.
    let old = Sum::ZERO.bytes(message).folded();
    let (quoted, rewrite) = quoted;
    if let Some(bytes) = message.get_mut(QUOTE..) {
        rewrite.apply(bytes, quoted, false);
    }
    let new = Sum::ZERO.bytes(message).folded();
    let mut difference = Difference { old, new };
    if view.family == Family::V6 {
        difference = difference.and(outer.addresses);
    }
    difference.correct(message, ICMP_CHECKSUM, ChecksumKind::Complete);
}

/// Offset of the quoted packet in an ICMP error, in bytes.
pub(super) const QUOTE: usize = 8;

/// Returns the offset of a protocol's checksum in its header, in bytes.
pub(super) fn checksum_offset(protocol: u8) -> Option<usize> {
    match protocol {
        ip::TCP => Some(tcp::CHECKSUM),
        ip::UDP => Some(UDP_CHECKSUM),
        ip::ICMP | ip::ICMPV6 => Some(ICMP_CHECKSUM),
        _ => None,
    }
}

fn write_addresses(
    packet: &mut [u8],
    family: Family,
    source: u128,
    destination: u128,
    difference: Difference,
) {
    match family {
        Family::V4 => {
            if let Some(field) = packet.get_mut(12..20) {
                let both = (source as u64) << 32 | destination as u64;
                field.copy_from_slice(&both.to_be_bytes());
            }
            difference.correct(packet, V4_CHECKSUM, ChecksumKind::Complete);
        }
        Family::V6 => {
            if let Some(field) = packet.get_mut(8..40) {
                field[..16].copy_from_slice(&source.to_be_bytes());
                field[16..].copy_from_slice(&destination.to_be_bytes());
            }
        }
    }
}

fn put(packet: &mut [u8], at: usize, word: u16) {
    if let Some(field) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *field = word.to_be_bytes();
    }
}

fn sum(sum: Sum, ip: u128) -> Sum {
    (0..8).fold(sum, |sum, word| sum.word((ip >> (16 * word)) as u16))
}
