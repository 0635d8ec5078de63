//! One direction of an emulated link, without a clock: it is told the time.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use taupe_packet::ip::Packet;

/// What shares are of.
pub const MILLION: u32 = 1_000_000;

/// How many packets may be on a line, whatever its queue: no more than 24 MB of 1,500
/// bytes each. What comes when it is full is dropped.
pub const ROOM: usize = 16_384;

/// The length of the queue unless it is given: as long as that takes at the bottleneck,
const QUEUE_TIME: Duration = Duration::from_millis(100);

/// or that many bytes if they are more.
const QUEUE_BYTES: usize = 64 * 1024;

/// What happens to the packets that one side sends; see
/// [`Profile`](super::Profile).
#[derive(Debug, Clone)]
pub struct Conditions {
    /// In bit/s.
    pub rate: Option<NonZeroU64>,
    /// In bytes.
    pub queue: Option<usize>,
    /// Behind the bottleneck.
    pub delay: Duration,
    /// No more than the delay.
    pub jitter: Duration,
    /// Of a million.
    pub loss: u32,
    /// Of a million.
    pub reorder: u32,
    /// Of a million.
    pub duplicate: u32,
    /// Of a million.
    pub corrupt: u32,
}

impl Conditions {
    /// How long the bottleneck takes to send that many bytes, rounded up.
    fn transmission(&self, bytes: usize) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let bits = bytes as u64 * 8;
        Duration::from_nanos(bits.saturating_mul(1_000_000_000).div_ceil(rate.get()))
    }

    /// How many bytes may be at the bottleneck.
    fn room(&self) -> usize {
        let Some(rate) = self.rate else {
            return usize::MAX;
        };
        self.queue.unwrap_or_else(|| {
            let bytes = u128::from(rate.get()) * QUEUE_TIME.as_millis() / 8000;
            usize::try_from(bytes)
                .unwrap_or(usize::MAX)
                .max(QUEUE_BYTES)
        })
    }
}

/// What has become of packets.
///
/// `offered + duplicated = delivered + lost + dropped + under_way`, at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent into the line.
    pub offered: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Packets for which the queue had no room.
    pub dropped: u64,
    /// Packets that were made to overtake others, and did.
    pub reordered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets of which a bit was flipped, not counting copies of them.
    pub corrupted: u64,
    /// Packets, copies among them, handed to the other machine.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Packets, copies among them, that are to be delivered.
    pub under_way: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Line {
    conditions: Conditions,
    chance: fastrand::Rng,
    /// When each packet at the bottleneck will have been sent, and its length; those among
    /// them that chance will lose.
    waiting: VecDeque<(Instant, usize)>,
    waiting_bytes: usize,
    /// By when each is due, and their order.
    under_way: BTreeMap<(Instant, u64), Vec<u8>>,
    /// When the packet is due that comes last of all so far.
    latest: Option<Instant>,
    number: u64,
    counters: Counters,
}

/// What chance has in store for a packet.
struct Fate {
    lost: bool,
    overtakes: bool,
    duplicated: bool,
    corrupted: bool,
    /// Which bit, counted from the end of the IP header.
    bit: usize,
    delay: Duration,
}

impl Line {
    /// An empty line.
    pub fn new(conditions: Conditions, chance: fastrand::Rng) -> Self {
        Self {
            conditions,
            chance,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            under_way: BTreeMap::new(),
            latest: None,
            number: 0,
            counters: Counters::default(),
        }
    }

    /// Does that to packets from now on.
    pub fn change(&mut self, conditions: Conditions) {
        self.conditions = conditions;
    }

    /// Takes a packet that is sent now. Time must not go back from one call to the next.
    pub fn offer(&mut self, now: Instant, mut packet: Vec<u8>) {
        self.counters.offered += 1;
        self.counters.offered_bytes += packet.len() as u64;
        let bits = bits_behind_header(&packet);
        // Drawn whether it is needed or not, so that no packet changes the next one's fate.
        let fate = self.draw(bits.len());
        let Some(sent) = self.transmit(now, packet.len()) else {
            self.counters.dropped += 1;
            return;
        };
        if fate.lost {
            self.counters.lost += 1;
            return;
        }
        let bit = bits.start + fate.bit;
        if fate.corrupted
            && !bits.is_empty()
            && let Some(byte) = packet.get_mut(bit / 8)
        {
            *byte ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
        let due = self.schedule(sent, &fate);
        if fate.duplicated {
            self.counters.duplicated += 1;
            self.put(due, packet.clone());
        }
        self.put(due, packet);
    }

    /// When the next packet is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((due, _), _)| *due)
    }

    /// The next packet if it is due.
    pub fn take(&mut self, now: Instant) -> Option<Vec<u8>> {
        let entry = self.under_way.first_entry()?;
        let (due, _) = *entry.key();
        if due > now {
            return None;
        }
        let packet = entry.remove();
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.len() as u64;
        Some(packet)
    }

    /// What has become of packets so far.
    pub fn counters(&self) -> Counters {
        Counters {
            under_way: self.under_way.len() as u64,
            ..self.counters
        }
    }

    fn draw(&mut self, bits: usize) -> Fate {
        let Conditions { delay, jitter, .. } = self.conditions;
        let mut happens = |share| self.chance.u32(..MILLION) < share;
        let lost = happens(self.conditions.loss);
        let overtakes = happens(self.conditions.reorder);
        let duplicated = happens(self.conditions.duplicate);
        let corrupted = happens(self.conditions.corrupt);
        let range = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX);
        let more = Duration::from_nanos(self.chance.u64(..=range));
        Fate {
            lost,
            overtakes,
            duplicated,
            corrupted,
            bit: self.chance.usize(..bits.max(1)),
            delay: delay.saturating_sub(jitter) + more,
        }
    }

    /// Puts a packet to the end of the queue; tells when it will have been sent, if there
    /// is room.
    fn transmit(&mut self, now: Instant, length: usize) -> Option<Instant> {
        while let Some(&(sent, length)) = self.waiting.front()
            && sent <= now
        {
            self.waiting.pop_front();
            self.waiting_bytes -= length;
        }
        // A packet longer than the queue passes when it is alone.
        let full = self.waiting_bytes.saturating_add(length) > self.conditions.room();
        if full && !self.waiting.is_empty() {
            return None;
        }
        // Room for it and its copy.
        if self.waiting.len() >= ROOM || self.under_way.len() + 2 > ROOM {
            return None;
        }
        let begin = self.waiting.back().map_or(now, |(sent, _)| *sent);
        let sent = begin + self.conditions.transmission(length);
        if sent > now {
            self.waiting.push_back((sent, length));
            self.waiting_bytes += length;
        }
        Some(sent)
    }

    /// When a packet is due that the bottleneck has sent then.
    fn schedule(&mut self, sent: Instant, fate: &Fate) -> Instant {
        let latest = self.latest.unwrap_or(sent);
        let due = if fate.overtakes {
            sent
        } else {
            latest.max(sent + fate.delay)
        };
        if due < latest {
            self.counters.reordered += 1;
        } else {
            self.latest = Some(due);
        }
        due
    }

    fn put(&mut self, due: Instant, packet: Vec<u8>) {
        self.under_way.insert((due, self.number), packet);
        self.number += 1;
    }
}

/// The bits of a packet, numbered from its beginning, that are not its IP header; none
/// of what is no IP packet.
fn bits_behind_header(packet: &[u8]) -> std::ops::Range<usize> {
    Packet::parse(packet).map_or(0..0, |ip| ip.header_len() * 8..ip.bytes().len() * 8)
}

#[cfg(test)]
mod tests;
