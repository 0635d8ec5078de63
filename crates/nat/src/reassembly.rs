//! Reassembly of packets that arrive from the tunnel in fragments (RFC 791 section 3.2,
//! RFC 8200 section 4.5).
//!
//! Transparent mode writes only complete packets to the kernel. The kernel would reassemble
//! fragments from the tunnel with fragments that a host on the uplink sends outside it with the
//! same identification, since only 16 bits distinguish them. The proxy's TCP/IP stack expects
//! complete packets too.
//!
//! A fragment discards its packet (RFC 5722) if it overlaps another fragment, contradicts the
//! length of the packet, or cannot be part of any packet: nothing shows which fragment is valid.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    time::Duration,
};

use taupe_packet::{
    checksum::Sum,
    ip::{Family, Packet, V6_HEADER},
};
use taupe_protocol::time::Instant;
use thiserror::Error;

/// The time from the first fragment of a packet to the last, as on Linux (`ipfrag_time`).
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes counted for each fragment and each incomplete packet besides its content. At least as much
/// as storing it takes.
const OVERHEAD: usize = 512;
/// Bytes of the longest IPv4 packet, and of the longest IPv6 payload.
const LONGEST: usize = 65_535;

/// The fragment contradicts itself, another fragment or the length of the packet, which is
/// discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the fragment contradicts itself or the others of its packet")]
pub struct Inconsistent;

/// The fields that all fragments of a packet share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// `None` for IPv6, whose later fragments may name another protocol than the first.
    protocol: Option<u8>,
}

#[derive(Debug)]
struct IncompletePacket {
    /// Position in the order of arrival.
    number: u64,
    began: Instant,
    /// The header part of the first fragment: everything before the payload.
    head: Option<Vec<u8>>,
    /// Pieces of the payload, by offset. No two overlap.
    pieces: BTreeMap<usize, Vec<u8>>,
    /// Length of the payload in bytes, known from the last fragment.
    len: Option<usize>,
    /// Bytes stored in total, and bytes of payload among them.
    cost: usize,
    received: usize,
    /// Set if a fragment carries an ECN congestion mark (RFC 3168 section 5.3).
    congested: bool,
}

/// Incomplete packets. When they take more memory than the limit, the oldest are discarded.
#[derive(Debug)]
pub struct Reassembly {
    incomplete: HashMap<Key, IncompletePacket>,
    /// Keys in the order in which the packets began.
    order: BTreeMap<u64, Key>,
    begun: u64,
    cost: usize,
    limit: usize,
}

impl Reassembly {
    /// Makes a reassembly whose incomplete packets take at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            incomplete: HashMap::new(),
            order: BTreeMap::new(),
            begun: 0,
            cost: 0,
            limit,
        }
    }

    /// Returns the bytes that incomplete packets take.
    #[must_use]
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Takes any packet. Returns it if it is not a fragment, and the reassembled packet if it is
    /// the fragment that was missing.
    pub fn reassemble<'a>(&mut self, now: Instant, packet: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if Fragment::parse(packet).is_none() {
            return Some(packet.into());
        }
        self.add_fragment(now, packet)
            .ok()
            .flatten()
            .map(Cow::Owned)
    }

    /// Takes a fragment. Returns the packet if it is complete, with the header of its first
    /// fragment. The checksum over its payload has not been checked.
    ///
    /// # Errors
    ///
    /// [`Inconsistent`], also if `packet` is not a fragment.
    pub fn add_fragment(
        &mut self,
        now: Instant,
        packet: &[u8],
    ) -> Result<Option<Vec<u8>>, Inconsistent> {
        let fragment = Fragment::parse(packet).ok_or(Inconsistent)?;
        let key = fragment.key;
        if !fragment.is_valid() {
            self.remove(key);
            return Err(Inconsistent);
        }
        let length = fragment.head.len() + fragment.bytes.len();
        self.make_room(now, length + 2 * OVERHEAD);
        let parts = self.incomplete.entry(key).or_insert_with(|| {
            self.begun += 1;
            self.cost += OVERHEAD;
            self.order.insert(self.begun, key);
            IncompletePacket::new(self.begun, now)
        });
        let before = parts.cost;
        let added = parts.add(&fragment);
        self.cost += parts.cost - before;
        if added.is_ok() && !parts.is_complete() {
            return Ok(None);
        }
        let parts = self.remove(key);
        added?;
        let packet = parts.and_then(|parts| parts.assemble(fragment.family));
        packet.ok_or(Inconsistent).map(Some)
    }

    /// Discards packets that are too old, and the oldest until there is room for `bytes`.
    fn make_room(&mut self, now: Instant, bytes: usize) {
        while let Some((_, &oldest)) = self.order.first_key_value()
            && let Some(parts) = self.incomplete.get(&oldest)
            && (self.cost + bytes > self.limit || now.since(parts.began) >= TIMEOUT)
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: Key) -> Option<IncompletePacket> {
        let parts = self.incomplete.remove(&key)?;
        self.order.remove(&parts.number);
        self.cost -= parts.cost;
        Some(parts)
    }
}

struct Fragment<'a> {
    key: Key,
    family: Family,
    head: &'a [u8],
    /// Position in the payload, in bytes.
    offset: usize,
    bytes: &'a [u8],
    is_last: bool,
    congested: bool,
}

impl<'a> Fragment<'a> {
    /// Parses a fragment. Returns `None` for any other packet.
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let packet = Packet::parse(packet).ok()?;
        let bytes = packet.bytes();
        let (offset, more, identification, header_len) = match packet.family() {
            Family::V4 => {
                let transport = packet.transport()?;
                let (offset, more) = (transport.fragment_offset, transport.more_fragments);
                if offset == 0 && !more {
                    return None;
                }
                (offset, more, transport.identification, transport.offset)
            }
            Family::V6 => {
                let at = fragment_header(bytes)?.at;
                let header = bytes.get(at..)?.first_chunk::<FRAGMENT_HEADER>()?;
                let word = u16::from_be_bytes([header[2], header[3]]);
                let identification = [header[4], header[5], header[6], header[7]];
                let identification = u32::from_be_bytes(identification);
                let behind = at + FRAGMENT_HEADER;
                (word & 0xfff8, word & 1 != 0, identification, behind)
            }
        };
        let (head, bytes) = bytes.split_at_checked(header_len)?;
        Some(Self {
            key: Key {
                source: packet.source(),
                destination: packet.destination(),
                identification,
                protocol: (packet.family() == Family::V4).then(|| packet.protocol()),
            },
            family: packet.family(),
            head,
            offset: offset.into(),
            bytes,
            is_last: !more,
            congested: packet.tos() & 3 == 3,
        })
    }

    /// Checks that the fragment can belong to a packet. All fragments except the last have a length
    /// that is a multiple of 8 bytes.
    fn is_valid(&self) -> bool {
        !self.bytes.is_empty()
            && (self.is_last || self.bytes.len().is_multiple_of(8))
            && self.end() <= LONGEST
    }

    fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

impl IncompletePacket {
    fn new(number: u64, began: Instant) -> Self {
        Self {
            number,
            began,
            head: None,
            pieces: BTreeMap::new(),
            len: None,
            cost: OVERHEAD,
            received: 0,
            congested: false,
        }
    }

    /// Adds a fragment. Ignores a duplicate, since a network may duplicate packets.
    fn add(&mut self, fragment: &Fragment<'_>) -> Result<(), Inconsistent> {
        let before = self.pieces.range(..fragment.end()).next_back();
        if let Some((&offset, bytes)) = before
            && offset + bytes.len() > fragment.offset
        {
            let is_again = offset == fragment.offset && bytes == fragment.bytes;
            return is_again.then_some(()).ok_or(Inconsistent);
        }
        let last = self.pieces.last_key_value();
        let known_end = last.map_or(0, |(offset, bytes)| offset + bytes.len());
        let is_beyond = match self.len {
            Some(len) => fragment.is_last || fragment.end() > len,
            None => fragment.is_last && known_end > fragment.end(),
        };
        if is_beyond {
            return Err(Inconsistent);
        }
        if fragment.is_last {
            self.len = Some(fragment.end());
        }
        if fragment.offset == 0 {
            self.head = Some(fragment.head.to_vec());
            self.cost += fragment.head.len();
        }
        self.congested |= fragment.congested;
        self.cost += fragment.bytes.len() + OVERHEAD;
        self.received += fragment.bytes.len();
        self.pieces.insert(fragment.offset, fragment.bytes.to_vec());
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.len == Some(self.received)
    }

    /// Builds the packet. Returns `None` if it would exceed the maximum length.
    fn assemble(self, family: Family) -> Option<Vec<u8>> {
        let mut packet = self.head?;
        if let Family::V6 = family {
            let header = fragment_header(&packet)?;
            packet[header.named_at] = packet[header.at];
            packet.drain(header.at..header.at + FRAGMENT_HEADER);
        }
        for piece in self.pieces.into_values() {
            packet.extend(piece);
        }
        match family {
            Family::V4 => {
                let len = u16::try_from(packet.len()).ok()?;
                let header_len = usize::from(packet[0] & 0xf) * 4;
                if self.congested && packet[1] & 3 != 0 {
                    packet[1] |= 3;
                }
                packet[2..4].copy_from_slice(&len.to_be_bytes());
                packet[6..8].fill(0);
                packet[10..12].fill(0);
                let sum = Sum::ZERO.bytes(packet.get(..header_len)?).checksum();
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            Family::V6 => {
                let len = u16::try_from(packet.len().checked_sub(V6_HEADER)?).ok()?;
                if self.congested && packet[1] & 0x30 != 0 {
                    packet[1] |= 0x30;
                }
                packet[4..6].copy_from_slice(&len.to_be_bytes());
            }
        }
        Some(packet)
    }
}

const FRAGMENT_HEADER: usize = 8;

/// Offsets of the IPv6 fragment header and of the next-header byte that announces it.
struct FragmentHeader {
    at: usize,
    named_at: usize,
}

/// Finds the fragment header. Only headers for routers come before it: hop-by-hop, routing and
/// destination options (RFC 8200 section 4.5).
fn fragment_header(packet: &[u8]) -> Option<FragmentHeader> {
    let (mut at, mut named_at) = (V6_HEADER, 6);
    loop {
        let header = packet.get(at..at + FRAGMENT_HEADER)?;
        match packet[named_at] {
            44 => return Some(FragmentHeader { at, named_at }),
            0 | 43 | 60 => (named_at, at) = (at, at + 8 + usize::from(header[1]) * 8),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests;
