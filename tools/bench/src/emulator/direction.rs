//! One direction of an emulated link. The caller passes the time.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use taupe_packet::ip::Packet;

/// Denominator of the shares in [`Conditions`].
pub const MILLION: u32 = 1_000_000;

/// Largest number of packets under way in a direction, whatever its queue: 24 MB with 1,500 bytes
/// each. Packets beyond it are dropped.
pub const MAX_PACKETS: usize = 16_384;

/// Default length of the queue: the bytes that the bottleneck sends in this time,
const QUEUE_TIME: Duration = Duration::from_millis(100);

/// but at least this number of bytes.
const QUEUE_BYTES: usize = 64 * 1024;

/// Conditions for the packets from one side; see [`Profile`](super::Profile).
#[derive(Debug, Clone)]
pub struct Conditions {
    /// Rate in bit/s.
    pub rate: Option<NonZeroU64>,
    /// Queue in bytes.
    pub queue: Option<usize>,
    /// Delay behind the bottleneck.
    pub delay: Duration,
    /// Jitter; at most the delay.
    pub jitter: Duration,
    /// Lost packets per million.
    pub loss: u32,
    /// Reordered packets per million.
    pub reorder: u32,
    /// Duplicated packets per million.
    pub duplicate: u32,
    /// Corrupted packets per million.
    pub corrupt: u32,
}

impl Conditions {
    /// Returns the time that the bottleneck needs for `bytes`, rounded up.
    fn transmission(&self, bytes: usize) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let bits = bytes as u64 * 8;
        Duration::from_nanos(bits.saturating_mul(1_000_000_000).div_ceil(rate.get()))
    }

    /// Returns the largest number of bytes at the bottleneck.
    fn queue_bytes(&self) -> usize {
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

/// Counters of packets.
///
/// At any time, `offered + duplicated = delivered + lost + dropped + under_way`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent into this direction.
    pub offered: u64,
    /// Bytes of these packets.
    pub offered_bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped at a full queue.
    pub dropped: u64,
    /// Packets that overtook others.
    pub reordered: u64,
    /// Copies made.
    pub duplicated: u64,
    /// Packets with a flipped bit, without their copies.
    pub corrupted: u64,
    /// Packets and copies handed to the other machine.
    pub delivered: u64,
    /// Bytes of these packets.
    pub delivered_bytes: u64,
    /// Packets and copies still to be delivered.
    pub under_way: u64,
}

/// One direction of a link.
#[derive(Debug)]
pub struct LinkDirection {
    conditions: Conditions,
    random: fastrand::Rng,
    /// Packets at the bottleneck: the time at which each has been sent, and its length. Includes
    /// packets that will be lost behind it.
    waiting: VecDeque<(Instant, usize)>,
    waiting_bytes: usize,
    /// Packets behind the bottleneck, by due time and number.
    under_way: BTreeMap<(Instant, u64), Vec<u8>>,
    /// Due time of the packet that arrives last so far.
    latest: Option<Instant>,
    number: u64,
    counters: Counters,
}

/// Random decisions for a packet.
struct Outcome {
    lost: bool,
    overtakes: bool,
    duplicated: bool,
    corrupted: bool,
    /// The bit to flip, counted from the end of the IP header.
    bit: usize,
    delay: Duration,
}

impl LinkDirection {
    /// Creates a direction without packets.
    pub fn new(conditions: Conditions, random: fastrand::Rng) -> Self {
        Self {
            conditions,
            random,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            under_way: BTreeMap::new(),
            latest: None,
            number: 0,
            counters: Counters::default(),
        }
    }

    /// Applies other conditions to later packets.
    pub fn change(&mut self, conditions: Conditions) {
        self.conditions = conditions;
    }

    /// Accepts a packet that is sent now. `now` must not decrease from call to call.
    pub fn offer(&mut self, now: Instant, mut packet: Vec<u8>) {
        self.counters.offered += 1;
        self.counters.offered_bytes += packet.len() as u64;
        let bits = bits_behind_header(&packet);
        // Drawn for every packet, so that the outcome of one packet does not change the random
        // numbers of the next.
        let outcome = self.draw(bits.len());
        let Some(sent) = self.transmit(now, packet.len()) else {
            self.counters.dropped += 1;
            return;
        };
        if outcome.lost {
            self.counters.lost += 1;
            return;
        }
        let bit = bits.start + outcome.bit;
        if outcome.corrupted
            && !bits.is_empty()
            && let Some(byte) = packet.get_mut(bit / 8)
        {
            *byte ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
        let due = self.schedule(sent, &outcome);
        if outcome.duplicated {
            self.counters.duplicated += 1;
            self.put(due, packet.clone());
        }
        self.put(due, packet);
    }

    /// Returns the time at which the next packet is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.under_way.first_key_value().map(|((due, _), _)| *due)
    }

    /// Returns the next packet if it is due.
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

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        Counters {
            under_way: self.under_way.len() as u64,
            ..self.counters
        }
    }

    fn draw(&mut self, bits: usize) -> Outcome {
        let Conditions { delay, jitter, .. } = self.conditions;
        let mut happens = |share| self.random.u32(..MILLION) < share;
        let lost = happens(self.conditions.loss);
        let overtakes = happens(self.conditions.reorder);
        let duplicated = happens(self.conditions.duplicate);
        let corrupted = happens(self.conditions.corrupt);
        let range = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX);
        let more = Duration::from_nanos(self.random.u64(..=range));
        Outcome {
            lost,
            overtakes,
            duplicated,
            corrupted,
            bit: self.random.usize(..bits.max(1)),
            delay: delay.saturating_sub(jitter) + more,
        }
    }

    /// Appends a packet to the queue; returns the time at which it will have been sent, or `None`
    /// if the queue is full.
    fn transmit(&mut self, now: Instant, length: usize) -> Option<Instant> {
        while let Some(&(sent, length)) = self.waiting.front()
            && sent <= now
        {
            self.waiting.pop_front();
            self.waiting_bytes -= length;
        }
        // A packet longer than the queue passes if the queue is empty.
        let full = self.waiting_bytes.saturating_add(length) > self.conditions.queue_bytes();
        if full && !self.waiting.is_empty() {
            return None;
        }
        // Space for the packet and its copy.
        if self.waiting.len() >= MAX_PACKETS || self.under_way.len() + 2 > MAX_PACKETS {
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

    /// Returns the due time of a packet that leaves the bottleneck at `sent`.
    fn schedule(&mut self, sent: Instant, outcome: &Outcome) -> Instant {
        let latest = self.latest.unwrap_or(sent);
        let due = if outcome.overtakes {
            sent
        } else {
            latest.max(sent + outcome.delay)
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

/// Returns the range of bits behind the IP header; empty if this is no IP packet.
fn bits_behind_header(packet: &[u8]) -> std::ops::Range<usize> {
    Packet::parse(packet).map_or(0..0, |ip| ip.header_len() * 8..ip.bytes().len() * 8)
}

#[cfg(test)]
mod tests;
