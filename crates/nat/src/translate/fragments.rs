//! Outgoing fragments: finds the packet of a later fragment, and fragments packets that are too big
//! for the tunnel.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use taupe_packet::{
    checksum::Sum,
    ip::{Family, V4_HEADER},
};
use taupe_protocol::time::Instant;

use super::{rewrite::Rewrite, view::View};

/// Maximum number of packets whose later fragments are expected.
const CAPACITY: usize = 1024;
/// Time to wait for later fragments, as on Linux (`ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);

/// The fields that all fragments of a packet share (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    source: u128,
    destination: u128,
    identification: u32,
    /// `None` for IPv6, where it does not distinguish packets.
    protocol: Option<u8>,
}

impl Key {
    pub(super) fn of(view: &View) -> Option<Self> {
        Some(Self {
            source: view.source,
            destination: view.destination,
            identification: view.fragment?.identification,
            protocol: (view.version == Family::V4).then_some(view.protocol),
        })
    }
}

#[derive(Debug)]
struct Known {
    rewrite: Rewrite,
    at: Instant,
}

/// The rewrites of first fragments, for later ones. When it is full, the oldest is removed.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    known: HashMap<Key, Known>,
    /// Keys in the order of arrival. A key that arrives again has another entry.
    order: VecDeque<(Key, Instant)>,
}

impl Fragments {
    /// Records a first fragment. Ignores any other packet.
    pub(super) fn learn(&mut self, now: Instant, view: &View, rewrite: &Rewrite) {
        let Some(key) = Key::of(view) else {
            return;
        };
        while let Some(&(oldest, at)) = self.order.front()
            && (self.order.len() >= CAPACITY || now.since(at) >= TIMEOUT)
        {
            self.order.pop_front();
            if self.known.get(&oldest).is_some_and(|known| known.at == at) {
                self.known.remove(&oldest);
            }
        }
        let known = Known {
            rewrite: *rewrite,
            at: now,
        };
        self.known.insert(key, known);
        self.order.push_back((key, now));
    }

    pub(super) fn find(&self, now: Instant, view: &View) -> Option<Rewrite> {
        let known = self.known.get(&Key::of(view)?)?;
        (now.since(known.at) < TIMEOUT).then_some(known.rewrite)
    }
}

/// A sequence of packets in a reusable buffer.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// End of each packet in `bytes`.
    ends: Vec<usize>,
}

impl Buffer {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn push(&mut self, packet: &[u8]) {
        self.bytes.extend_from_slice(packet);
        self.ends.push(self.bytes.len());
    }

    /// Returns the packets in the order in which they were added.
    pub fn packets(&self) -> Packets<'_> {
        Packets {
            buffer: self,
            next: 0,
        }
    }

    /// Adds an IPv4 packet with complete checksums, in fragments of at most `mtu` bytes (RFC 791
    /// section 3.2). Adds nothing and returns `false` if a fragment has no room for 8 bytes of
    /// payload.
    pub fn push_fragments(&mut self, packet: &[u8], mtu: usize) -> bool {
        if packet.len() <= mtu {
            self.push(packet);
            return true;
        }
        let header_len = usize::from(packet.first().map_or(0, |byte| byte & 0xf)) * 4;
        let room = mtu.saturating_sub(header_len) & !7;
        if header_len < V4_HEADER || room == 0 || packet.len() < header_len {
            return false;
        }
        let (header, payload) = packet.split_at(header_len);
        let mut first = header;
        let later = without_options(header);
        let before = u16::from_be_bytes([header[6], header[7]]);
        let (mut offset, last) = (0, payload.len());
        while offset < last {
            let end = last.min(offset + room);
            let more = if end < last { MORE } else { before & MORE };
            let word = (before & !MORE).wrapping_add((offset / 8) as u16) | more;
            let start = self.bytes.len();
            self.bytes.extend_from_slice(first);
            self.bytes.extend_from_slice(&payload[offset..end]);
            let total = (self.bytes.len() - start) as u16;
            let header = &mut self.bytes[start..start + first.len()];
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[6..8].copy_from_slice(&word.to_be_bytes());
            header[10..12].fill(0);
            let sum = Sum::ZERO.bytes(header).checksum();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            self.ends.push(self.bytes.len());
            first = &later;
            offset = end;
        }
        true
    }
}

/// The "more fragments" bit of the word that contains the offset.
const MORE: u16 = 0x2000;

/// Returns the header for later fragments. Options that are not copied into these are replaced by
/// no-operation options, so that the header keeps its length (RFC 791 section 3.1).
fn without_options(header: &[u8]) -> Vec<u8> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const COPIED: u8 = 0x80;
    let mut header = header.to_vec();
    let mut at = V4_HEADER;
    while let Some(&kind) = header.get(at) {
        let length = match (kind, header.get(at + 1)) {
            (END, _) => break,
            (NOTHING, _) => 1,
            (_, Some(&length)) if length >= 2 => usize::from(length),
            _ => break,
        };
        if kind & COPIED == 0 {
            let end = header.len().min(at + length);
            header[at..end].fill(NOTHING);
        }
        at += length;
    }
    header
}

/// The packets to carry instead of one.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    buffer: &'a Buffer,
    next: usize,
}

impl<'a> Iterator for Packets<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = *self.buffer.ends.get(self.next)?;
        let start = match self.next.checked_sub(1) {
            Some(previous) => self.buffer.ends[previous],
            None => 0,
        };
        self.next += 1;
        Some(&self.buffer.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{flows::End, translate::view::View};

    fn fragment(identification: u16, offset: u16, more: bool) -> View {
        let word = (offset / 8) | if more { MORE } else { 0 };
        let mut packet = vec![0x45, 0, 0, 28];
        packet.extend(identification.to_be_bytes());
        packet.extend(word.to_be_bytes());
        packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        View::parse(&packet).unwrap()
    }

    fn rewrite() -> Rewrite {
        let end = End { ip: 1, port: 0 };
        Rewrite::new((end, end), (end, end))
    }

    #[test]
    fn known_for_thirty_seconds_after_the_first() {
        let mut fragments = Fragments::default();
        let (rewrite, start) = (rewrite(), Instant(1_000_000_000));
        fragments.learn(start, &fragment(1, 0, true), &rewrite);
        let later = fragment(1, 8, false);
        let end = start + TIMEOUT;
        let just_before = end - Duration::from_nanos(1);
        assert!(fragments.find(just_before, &later).is_some());
        assert!(fragments.find(end, &later).is_none());
        assert!(fragments.find(start, &fragment(2, 8, false)).is_none());
        let mut of_another_protocol = later;
        of_another_protocol.protocol = 6;
        assert!(fragments.find(start, &of_another_protocol).is_none());
        // A key that arrives again has a new lifetime.
        fragments.learn(just_before, &fragment(1, 0, true), &rewrite);
        fragments.learn(end, &fragment(3, 0, true), &rewrite);
        assert!(fragments.find(end, &later).is_some());
        assert_eq!(fragments.known.len(), 2);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut fragments = Fragments::default();
        let rewrite = rewrite();
        for id in 0..3 * CAPACITY as u16 {
            fragments.learn(Instant(id.into()), &fragment(id, 0, true), &rewrite);
            assert!(fragments.known.len() <= CAPACITY && fragments.order.len() <= CAPACITY);
        }
        let now = Instant(0);
        assert!(
            fragments
                .find(now, &fragment(2 * CAPACITY as u16 - 1, 8, false))
                .is_none()
        );
        assert!(
            fragments
                .find(now, &fragment(2 * CAPACITY as u16, 8, false))
                .is_some()
        );
    }

    #[test]
    fn later_fragments_carry_only_options_that_are_copied() {
        let mut header = vec![0x47; V4_HEADER];
        // Record route (not copied), no operation, router alert (copied), end.
        header.extend([7, 3, 4, 1, 0x94, 4, 0, 0]);
        let later = without_options(&header);
        assert_eq!(later[V4_HEADER..], [1, 1, 1, 1, 0x94, 4, 0, 0]);
    }

    proptest! {
        #[test]
        fn fragments_are_the_packet(
            payload in prop::collection::vec(any::<u8>(), 0..5000),
            options in 0usize..=10,
            mtu in 68usize..1500,
            before in 0u16..100,
            more: bool,
        ) {
            let header_len = V4_HEADER + options * 4;
            let mut packet = vec![0x40 | (header_len / 4) as u8, 0];
            packet.extend(((header_len + payload.len()) as u16).to_be_bytes());
            packet.extend([0x12, 0x34]);
            packet.extend((before | if more { MORE } else { 0 }).to_be_bytes());
            packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            packet.extend(vec![1; options * 4]);
            packet.extend(&payload);
            let mut buffer = Buffer::default();
            prop_assert_eq!(buffer.push_fragments(&packet, mtu), true);
            let count = buffer.packets().count();
            let mut together = Vec::<u8>::new();
            for (i, fragment) in buffer.packets().enumerate() {
                prop_assert!(fragment.len() <= mtu);
                if packet.len() > mtu {
                    prop_assert_eq!(Sum::ZERO.bytes(&fragment[..header_len]).folded(), 0xffff);
                }
                let word = u16::from_be_bytes([fragment[6], fragment[7]]);
                prop_assert_eq!(usize::from(word & 0x1fff), usize::from(before) + together.len() / 8);
                prop_assert_eq!(word & MORE != 0, more || i + 1 < count);
                prop_assert_eq!(fragment.len(), usize::from(u16::from_be_bytes([fragment[2], fragment[3]])));
                together.extend(&fragment[header_len..]);
            }
            prop_assert_eq!(together, payload);
        }
    }
}
