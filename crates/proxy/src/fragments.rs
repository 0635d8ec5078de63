//! Packets from the tunnel that arrive in fragments, reassembled.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6FragmentHeader, Ipv6Packet};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use taupe_protocol::time::Instant;

/// From the first fragment of a packet to the last, at most, as on Linux (`ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes that all incomplete packets may take.
const MAX_BYTES: usize = 1 << 20;

/// Bytes that a fragment, and a packet, counts for besides its payload: at least what storing
/// it takes.
const OVERHEAD: usize = 512;

/// The longest packet of IPv4, and payload of IPv6, in bytes.
const LONGEST: usize = 65_535;

/// The header of IPv4 without options, in bytes.
const V4_HEADER: usize = 20;

/// The fields that all fragments of a packet share (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    source: IpAddress,
    destination: IpAddress,
    identification: u32,
    /// The protocol of an IPv4 payload. `None` for IPv6, whose later fragments may name another
    /// one than the first.
    protocol: Option<IpProtocol>,
}

/// A fragment, parsed.
struct Fragment<'a> {
    key: Key,
    protocol: IpProtocol,
    offset: usize,
    bytes: &'a [u8],
    is_last: bool,
}

/// A packet of which fragments are missing.
struct Partial {
    key: Key,
    began: Instant,
    /// The protocol that the first fragment names.
    protocol: Option<IpProtocol>,
    /// The payload, by offsets. No two pieces overlap.
    pieces: BTreeMap<usize, Vec<u8>>,
    /// The length of the payload, which the last fragment tells.
    length: Option<usize>,
    received: usize,
}

/// Incomplete packets, the oldest first. When they take too much memory, the oldest are dropped.
#[derive(Default)]
pub(crate) struct Reassembly {
    partial: VecDeque<Partial>,
}

impl Reassembly {
    /// Returns a packet that is not a fragment as it is, and a reassembled one when `packet` is
    /// the fragment that was missing.
    pub(crate) fn whole<'a>(&mut self, now: Instant, packet: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let Some(fragment) = Fragment::parse(packet) else {
            return Some(packet.into());
        };
        self.make_room(now, fragment.bytes.len() + 2 * OVERHEAD);
        let known = self.partial.iter().position(|one| one.key == fragment.key);
        let at = known.unwrap_or_else(|| {
            self.partial.push_back(Partial::new(now, fragment.key));
            self.partial.len() - 1
        });
        let partial = self.partial.get_mut(at)?;
        let is_consistent = partial.add(&fragment);
        if is_consistent && partial.length != Some(partial.received) {
            return None;
        }
        let complete = self.partial.remove(at).filter(|_| is_consistent)?;
        complete.join().map(Cow::Owned)
    }

    fn make_room(&mut self, now: Instant, bytes: usize) {
        let is_old = |one: &Partial| now.since(one.began) >= TIMEOUT;
        while self.partial.front().is_some_and(is_old) || self.cost() + bytes > MAX_BYTES {
            if self.partial.pop_front().is_none() {
                return;
            }
        }
    }

    fn cost(&self) -> usize {
        self.partial.iter().map(Partial::cost).sum()
    }
}

impl<'a> Fragment<'a> {
    /// Parses a fragment. `None` for any other packet.
    fn parse(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let ip = Ipv4Packet::new_checked(packet).ok()?;
                let is_fragment = ip.more_frags() || ip.frag_offset() != 0;
                is_fragment.then(|| Self {
                    key: Key {
                        source: ip.src_addr().into(),
                        destination: ip.dst_addr().into(),
                        identification: ip.ident().into(),
                        protocol: Some(ip.next_header()),
                    },
                    protocol: ip.next_header(),
                    offset: ip.frag_offset().into(),
                    bytes: ip.payload(),
                    is_last: !ip.more_frags(),
                })
            }
            6 => {
                let ip = Ipv6Packet::new_checked(packet).ok()?;
                if ip.next_header() != IpProtocol::Ipv6Frag {
                    return None;
                }
                let (names, rest) = ip.payload().split_at_checked(2)?;
                // It leaves out the two bytes before it.
                let header = Ipv6FragmentHeader::new_checked(rest).ok()?;
                Some(Self {
                    key: Key {
                        source: ip.src_addr().into(),
                        destination: ip.dst_addr().into(),
                        identification: header.ident(),
                        protocol: None,
                    },
                    protocol: names.first().copied()?.into(),
                    offset: usize::from(header.frag_offset()) * 8,
                    bytes: rest.get(6..)?,
                    is_last: !header.more_frags(),
                })
            }
            _ => None,
        }
    }

    fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }
}

impl Partial {
    fn new(began: Instant, key: Key) -> Self {
        Self {
            key,
            began,
            protocol: None,
            pieces: BTreeMap::new(),
            length: None,
            received: 0,
        }
    }

    fn cost(&self) -> usize {
        self.received + OVERHEAD * (1 + self.pieces.len())
    }

    /// Adds a fragment. Returns whether it agrees with the others: if two overlap or disagree
    /// about the length, the packet is dropped (RFC 5722).
    fn add(&mut self, fragment: &Fragment<'_>) -> bool {
        // All but the last have a multiple of 8 bytes, as offsets have.
        let is_valid = !fragment.bytes.is_empty()
            && (fragment.is_last || fragment.bytes.len().is_multiple_of(8))
            && fragment.end() <= LONGEST;
        let before = self.pieces.range(..fragment.end()).next_back();
        if let Some((offset, bytes)) = before
            && offset + bytes.len() > fragment.offset
        {
            // A network may duplicate packets.
            return *offset == fragment.offset && bytes == fragment.bytes;
        }
        let last = self.pieces.last_key_value();
        let known_end = last.map_or(0, |(offset, bytes)| offset + bytes.len());
        let is_beyond = match self.length {
            Some(length) => fragment.is_last || fragment.end() > length,
            None => fragment.is_last && known_end > fragment.end(),
        };
        if !is_valid || is_beyond {
            return false;
        }
        if fragment.is_last {
            self.length = Some(fragment.end());
        }
        if fragment.offset == 0 {
            self.protocol = Some(fragment.protocol);
        }
        self.received += fragment.bytes.len();
        self.pieces.insert(fragment.offset, fragment.bytes.to_vec());
        true
    }

    /// Builds the packet, without options. `None` if it would be longer than packets are.
    fn join(self) -> Option<Vec<u8>> {
        let Key {
            source,
            destination,
            ..
        } = self.key;
        let is_v4 = matches!(source, IpAddress::Ipv4(_));
        let longest = if is_v4 { LONGEST - V4_HEADER } else { LONGEST };
        let length = self.length.filter(|length| *length <= longest)?;
        let ip = IpRepr::new(source, destination, self.protocol?, length, 64);
        let mut packet = vec![0; ip.header_len()];
        packet.reserve_exact(length);
        ip.emit(&mut packet, &ChecksumCapabilities::default());
        self.pieces.values().for_each(|piece| packet.extend(piece));
        Some(packet)
    }
}

#[cfg(test)]
mod tests;
