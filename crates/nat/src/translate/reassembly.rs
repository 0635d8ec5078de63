//! Packets from the tunnel that come in fragments, put together.
//!
//! The kernel is given whole packets alone. It would put fragments together with any
//! that somebody on the uplink's link sends in the clear under the same number: all
//! there is to tell them apart are 16 bits.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use taupe_packet::{
    checksum::Sum,
    ip::{Family, V6_HEADER},
};
use taupe_protocol::time::Instant;

use super::{Reason, fragments::Key, view::View};

/// How long the rest is waited for, as Linux does (`ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of all fragments that wait, as Linux has it (`ipfrag_high_thresh`).
const MOST: usize = 4 << 20;
/// Bytes that a fragment, and a packet that waits, is taken for beside what is in it:
/// at least what keeping it takes.
const EACH: usize = 512;
/// Bytes of the longest packet, or of the payload of IPv6.
const LONGEST: usize = 65_535;

/// What of one packet is there.
#[derive(Debug)]
struct Parts {
    /// Its place in the order.
    number: u64,
    began: Instant,
    /// Everything before the payload, of the first.
    head: Option<Vec<u8>>,
    /// Pieces of the payload, by where they begin.
    pieces: BTreeMap<usize, Vec<u8>>,
    /// Bytes of the payload, as the last piece has told.
    len: Option<usize>,
    /// Bytes that are held, and those of the payload among them.
    cost: usize,
    held: usize,
    /// Congestion was met by one of them (RFC 3168 section 5.3).
    congested: bool,
}

/// Packets that are not whole yet. When there is too much, the oldest is given up.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    waiting: HashMap<Key, Parts>,
    /// In the order in which they began.
    order: BTreeMap<u64, Key>,
    begun: u64,
    cost: usize,
}

impl Reassembly {
    /// Takes a fragment. Returns the packet when it is whole, with its addresses as
    /// they came; a checksum over its payload has not been looked at.
    pub(super) fn take(
        &mut self,
        now: Instant,
        view: &View,
        packet: &[u8],
    ) -> Result<Option<Vec<u8>>, Reason> {
        let key = Key::of(view).ok_or(Reason::Malformed)?;
        let piece = Piece::of(view, packet).ok_or(Reason::Malformed)?;
        self.make_room(now, view.len + 2 * EACH);
        let parts = self.waiting.entry(key).or_insert_with(|| {
            self.begun += 1;
            self.cost += EACH;
            self.order.insert(self.begun, key);
            Parts::new(self.begun, now)
        });
        let before = parts.cost;
        let added = parts.add(&piece);
        self.cost += parts.cost - before;
        if added.is_ok() && !parts.is_whole() {
            return Ok(None);
        }
        let parts = self.remove(key);
        added?;
        let whole = parts.and_then(|parts| parts.join(view.version));
        whole.ok_or(Reason::Malformed).map(Some)
    }

    /// Gives up what has waited too long, and the oldest for what needs so many bytes.
    fn make_room(&mut self, now: Instant, bytes: usize) {
        while let Some((_, &oldest)) = self.order.first_key_value()
            && let Some(parts) = self.waiting.get(&oldest)
            && (self.cost + bytes > MOST || now.since(parts.began) >= TIMEOUT)
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, key: Key) -> Option<Parts> {
        let parts = self.waiting.remove(&key)?;
        self.order.remove(&parts.number);
        self.cost -= parts.cost;
        Some(parts)
    }
}

/// A fragment, taken apart.
struct Piece<'a> {
    head: &'a [u8],
    /// Where in the payload it begins.
    at: usize,
    bytes: &'a [u8],
    is_last: bool,
    congested: bool,
}

impl<'a> Piece<'a> {
    fn of(view: &View, packet: &'a [u8]) -> Option<Self> {
        let fragment = view.fragment?;
        let payload = match view.version {
            Family::V4 => usize::from(packet.first()? & 0xf) * 4,
            Family::V6 => fragment_header(packet)?.at + FRAGMENT_HEADER,
        };
        let (head, bytes) = packet.get(..view.len)?.split_at_checked(payload)?;
        let at = usize::from(fragment.offset);
        let is_last = !fragment.more;
        // All but the last are of a multiple of 8 bytes, as offsets are.
        if bytes.is_empty() || !is_last && bytes.len() % 8 != 0 || at + bytes.len() > LONGEST {
            return None;
        }
        let ecn = match view.version {
            Family::V4 => packet[1],
            Family::V6 => packet[1] >> 4,
        };
        let congested = ecn & 3 == 3;
        Some(Self {
            head,
            at,
            bytes,
            is_last,
            congested,
        })
    }

    fn end(&self) -> usize {
        self.at + self.bytes.len()
    }
}

impl Parts {
    fn new(number: u64, began: Instant) -> Self {
        Self {
            number,
            began,
            head: None,
            pieces: BTreeMap::new(),
            len: None,
            cost: EACH,
            held: 0,
            congested: false,
        }
    }

    /// Adds a piece. Where two overlap or disagree about the end, the packet as a
    /// whole is given up (RFC 5722): which of them is right nobody can tell.
    fn add(&mut self, piece: &Piece<'_>) -> Result<(), Reason> {
        let before = self.pieces.range(..piece.end()).next_back();
        if let Some((&at, bytes)) = before
            && at + bytes.len() > piece.at
        {
            // The same again is what a network may do.
            let is_again = at == piece.at && bytes == piece.bytes;
            return is_again.then_some(()).ok_or(Reason::Malformed);
        }
        let known_end = self
            .pieces
            .last_key_value()
            .map_or(0, |(&at, bytes)| at + bytes.len());
        let beyond = self
            .len
            .is_some_and(|len| piece.end() > len || piece.is_last);
        if beyond || piece.is_last && known_end > piece.end() {
            return Err(Reason::Malformed);
        }
        if piece.is_last {
            self.len = Some(piece.end());
        }
        if piece.at == 0 {
            self.head = Some(piece.head.to_vec());
            self.cost += piece.head.len();
        }
        self.congested |= piece.congested;
        self.cost += piece.bytes.len() + EACH;
        self.held += piece.bytes.len();
        self.pieces.insert(piece.at, piece.bytes.to_vec());
        Ok(())
    }

    /// No two overlap, so it is as long as it should be when nothing is missing.
    fn is_whole(&self) -> bool {
        self.len == Some(self.held)
    }

    /// The packet; `None` when it would be longer than packets are.
    fn join(self, version: Family) -> Option<Vec<u8>> {
        let mut packet = self.head?;
        if let Family::V6 = version {
            let header = fragment_header(&packet)?;
            packet[header.named_at] = packet[header.at];
            packet.drain(header.at..header.at + FRAGMENT_HEADER);
        }
        for piece in self.pieces.into_values() {
            packet.extend(piece);
        }
        match version {
            Family::V4 => {
                let len = u16::try_from(packet.len()).ok()?;
                let header_len = usize::from(packet[0] & 0xf) * 4;
                packet[1] |= if self.congested && packet[1] & 3 != 0 {
                    3
                } else {
                    0
                };
                packet[2..4].copy_from_slice(&len.to_be_bytes());
                packet[6..8].fill(0);
                packet[10..12].fill(0);
                let sum = Sum::ZERO.bytes(packet.get(..header_len)?).checksum();
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            Family::V6 => {
                let len = u16::try_from(packet.len().checked_sub(V6_HEADER)?).ok()?;
                packet[1] |= if self.congested && packet[1] & 0x30 != 0 {
                    0x30
                } else {
                    0
                };
                packet[4..6].copy_from_slice(&len.to_be_bytes());
            }
        }
        Some(packet)
    }
}

const FRAGMENT_HEADER: usize = 8;

/// Where IPv6's fragment header is, and the byte before that says so.
struct FragmentHeader {
    at: usize,
    named_at: usize,
}

/// What comes before it concerns routers: hop-by-hop, routing and destination options
/// (RFC 8200 section 4.5).
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
