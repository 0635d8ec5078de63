//! Queue of inner packets, written where they will be encrypted in place.

use taupe_protocol::crypto::TAG_LEN;
use taupe_protocol::message::DATA_HEADER_LEN;
use taupe_protocol::padded_len;

/// Packets in a full queue. Connections send no more until it is drained.
const FULL: usize = 128;

/// Packets beyond which even the stacks' replies to received segments are dropped.
const DROP_LIMIT: usize = 4 * FULL;

/// Queue of packets, each with room for WireGuard's header, padding and tag.
pub(crate) struct Outgoing {
    buffer: Vec<u8>,
    packets: Vec<Slot>,
    /// Buffer for packets that are dropped.
    overflow: Vec<u8>,
    mtu: usize,
}

/// Position of a message in the buffer, and the length of its packet.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    start: usize,
    end: usize,
    length: usize,
}

impl Outgoing {
    /// Creates a queue for a tunnel of this MTU, which bounds padding.
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            buffer: Vec::new(),
            packets: Vec::new(),
            overflow: Vec::new(),
            mtu,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.packets.len() < FULL
    }

    /// Appends a packet that `fill` writes.
    pub(crate) fn push<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        if self.packets.len() >= DROP_LIMIT {
            self.overflow.resize(length, 0);
            return fill(&mut self.overflow);
        }
        let start = self.buffer.len();
        let end = start + DATA_HEADER_LEN + padded_len(length, self.mtu) + TAG_LEN;
        self.buffer.resize(end, 0);
        self.packets.push(Slot { start, end, length });
        let packet = start + DATA_HEADER_LEN;
        fill(&mut self.buffer[packet..packet + length])
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.packets
    }

    /// Returns the packet of a slot. Valid only before it is sealed.
    pub(crate) fn packet(&self, slot: Slot) -> &[u8] {
        let start = slot.start + DATA_HEADER_LEN;
        &self.buffer[start..start + slot.length]
    }

    /// Returns the packet with its padding.
    pub(crate) fn padded(&self, slot: Slot) -> &[u8] {
        &self.buffer[slot.start + DATA_HEADER_LEN..slot.end - TAG_LEN]
    }

    /// Returns the messages of consecutive slots.
    pub(crate) fn messages(&mut self, slots: core::ops::Range<usize>) -> &mut [u8] {
        match (self.packets.get(slots.start), slots.end.checked_sub(1)) {
            (Some(first), Some(last)) if last >= slots.start => {
                let (start, end) = (first.start, self.packets[last].end);
                &mut self.buffer[start..end]
            }
            _ => &mut [],
        }
    }

    /// Removes the first packets.
    pub(crate) fn remove(&mut self, count: usize) {
        if count >= self.packets.len() {
            self.packets.clear();
            self.buffer.clear();
            return;
        }
        let gone = self.packets[count].start;
        self.buffer.drain(..gone);
        self.packets.drain(..count);
        for slot in &mut self.packets {
            slot.start -= gone;
            slot.end -= gone;
        }
    }
}

impl Slot {
    /// Returns the length of the message, in bytes.
    pub(crate) fn message(self) -> usize {
        self.end - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_stay_in_order_and_have_their_padding() {
        let mut outgoing = Outgoing::new(1420);
        for length in [20, 40, 1420] {
            outgoing.push(length, |packet| packet.fill(length as u8));
        }
        let slots = outgoing.slots().to_vec();
        let lengths: Vec<_> = slots.iter().map(|slot| slot.message()).collect();
        assert_eq!(lengths, [32 + 32, 48 + 32, 1420 + 32]);
        assert_eq!(outgoing.packet(slots[1]), [40; 40]);
        assert_eq!(outgoing.padded(slots[1])[40..], [0; 8]);
        assert_eq!(outgoing.messages(0..2).len(), 64 + 80);
        outgoing.remove(1);
        let slots = outgoing.slots().to_vec();
        assert_eq!(outgoing.packet(slots[0]), [40; 40]);
        assert_eq!(outgoing.packet(slots[1]), [140; 1420]);
        outgoing.remove(2);
        assert!(outgoing.slots().is_empty() && outgoing.buffer.is_empty());
    }

    #[test]
    fn the_outgoing_queue_is_bounded() {
        let mut outgoing = Outgoing::new(1420);
        for _ in 0..2 * DROP_LIMIT {
            outgoing.push(100, |packet| assert_eq!(packet.len(), 100));
        }
        assert!(!outgoing.has_room());
        assert_eq!(outgoing.slots().len(), DROP_LIMIT);
    }
}
