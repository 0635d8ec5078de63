//! Flows: the hash that distinguishes them, and the table of those with packets in the queue.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::{codel::Codel, fifo::Fifo};
use crate::ip::{self, Family, Packet};

/// Computes a packet's flow from its addresses, protocol and ports, with a secret key: nobody else
/// can choose ports that share a bucket with another flow.
#[derive(Clone)]
pub struct FlowHasher(SipHasher13);

impl FlowHasher {
    /// Returns a hasher with a random key.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(key))
    }

    /// Returns the flow of a packet. Fragments, and packets of other protocols than TCP and UDP,
    /// have no ports: all of them between two hosts are one flow for each protocol.
    #[must_use]
    pub fn flow(&self, packet: &Packet<'_>) -> u64 {
        let mut hasher = self.0;
        let bytes = packet.bytes();
        let addresses = match packet.family() {
            Family::V4 => bytes.get(12..20),
            Family::V6 => bytes.get(8..40),
        };
        hasher.write(addresses.unwrap_or_default());
        match packet.transport() {
            Some(transport) => {
                hasher.write_u8(transport.protocol);
                let is_fragment = transport.more_fragments || transport.fragment_offset != 0;
                if matches!(transport.protocol, ip::TCP | ip::UDP) && !is_fragment {
                    let ports = bytes.get(transport.offset..transport.offset + 4);
                    hasher.write(ports.unwrap_or_default());
                }
            }
            None => hasher.write_u8(packet.protocol()),
        }
        hasher.finish()
    }
}

/// Buckets of the table. Flows with packets in the queue have a bucket each, as long as there are
/// not many more than half as many of them.
pub(super) const BUCKETS: usize = 512;

/// Buckets among which a flow chooses. With one, two of 20 flows would share a bucket in a third of
/// all cases; with eight, hardly ever (as in CAKE).
const SET: usize = 8;

/// The list of the scheduler that a flow is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// None: the flow has no packets, and its turn has passed.
    No,
    /// The flow had no packets a short time ago.
    New,
    /// The flow has had packets for a round at least.
    Old,
}

/// A bucket: the packets of one flow, or of several that share it.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// The flow that took the bucket.
    id: u64,
    /// Packets of other flows.
    foreign: usize,
    pub(super) fifo: Fifo,
    pub(super) packets: usize,
    pub(super) bytes: usize,
    /// Bytes that the flow may send before its turn ends; below zero after a packet longer than
    /// that.
    pub(super) credit: i64,
    pub(super) listed: Listed,
    pub(super) codel: Codel,
    /// The time of the last signal of congestion.
    pub(super) signalled_at: u64,
}

impl Flow {
    fn new(id: u64) -> Self {
        Self {
            id,
            foreign: 0,
            fifo: Fifo::default(),
            packets: 0,
            bytes: 0,
            credit: 0,
            listed: Listed::No,
            codel: Codel::default(),
            signalled_at: 0,
        }
    }

    /// Counts a packet of `flow` that comes to the end of the list.
    pub(super) fn add(&mut self, flow: u64, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes;
        self.foreign += usize::from(flow != self.id);
    }

    /// Counts a packet of `flow` that leaves with its last `bytes`.
    pub(super) fn remove(&mut self, flow: u64, bytes: usize) {
        self.packets -= 1;
        self.bytes -= bytes;
        self.foreign -= usize::from(flow != self.id);
    }
}

/// The buckets.
#[derive(Debug)]
pub(super) struct FlowTable(Box<[Flow]>);

impl FlowTable {
    pub(super) fn new() -> Self {
        Self(vec![Flow::new(0); BUCKETS].into())
    }

    /// Returns the bucket for a packet of `flow`: its own, else an unused one of its set, else one
    /// that it shares.
    pub(super) fn bucket(&mut self, flow: u64) -> u16 {
        let preferred = flow as usize % BUCKETS;
        let first = preferred - preferred % SET;
        let mut set = first..first + SET;
        let own = set.clone().find(|it| self.0[*it].id == flow);
        let bucket = own.unwrap_or_else(|| {
            // The flow may have packets in this bucket, which the next ones must not overtake.
            if self.0[preferred].foreign > 0 {
                return preferred;
            }
            let unused = set.find(|it| self.0[*it].listed == Listed::No);
            if let Some(unused) = unused {
                self.0[unused] = Flow::new(flow);
            }
            unused.unwrap_or(preferred)
        });
        bucket as u16
    }
}

impl std::ops::Index<u16> for FlowTable {
    type Output = Flow;

    fn index(&self, bucket: u16) -> &Flow {
        &self.0[usize::from(bucket)]
    }
}

impl std::ops::IndexMut<u16> for FlowTable {
    fn index_mut(&mut self, bucket: u16) -> &mut Flow {
        &mut self.0[usize::from(bucket)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Spec;

    fn hash(packet: &[u8]) -> u64 {
        let hasher = FlowHasher::new(&[7; 16]);
        hasher.flow(&Packet::parse(packet).expect("a packet"))
    }

    #[test]
    fn a_flow_is_addresses_protocol_and_ports() {
        for v6 in [false, true] {
            let spec = Spec {
                v6,
                ..Spec::default()
            };
            let flow = hash(&spec.bytes());
            let same = Spec {
                sequence: 5,
                tos: 3,
                ttl: 9,
                payload: vec![1; 7],
                ..spec.clone()
            };
            assert_eq!(hash(&same.bytes()), flow);
            let different = [
                Spec {
                    source: 2,
                    ..spec.clone()
                },
                Spec {
                    ports: (443, 50_001),
                    ..spec.clone()
                },
                Spec {
                    tcp: false,
                    ..spec.clone()
                },
            ];
            for other in different {
                assert_ne!(hash(&other.bytes()), flow);
            }
            let other_key = FlowHasher::new(&[8; 16]);
            let packet = spec.bytes();
            assert_ne!(other_key.flow(&Packet::parse(&packet).unwrap()), flow);
        }
    }

    #[test]
    fn fragments_of_a_datagram_are_one_flow() {
        let mut first = Spec {
            tcp: false,
            dont_fragment: false,
            ..Spec::default()
        }
        .bytes();
        first[6] = 0x20;
        let mut second = first.clone();
        second[6..8].copy_from_slice(&[0, 185]);
        // Payload stands where the ports would be.
        second[20..24].fill(0xaa);
        assert_eq!(hash(&first), hash(&second));
    }

    #[test]
    fn truncated_transport_headers_are_hashed() {
        for length in 20..28 {
            let mut packet = Spec::default().bytes();
            packet.truncate(length);
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            hash(&packet);
        }
    }

    /// Takes a bucket and puts a packet into it.
    fn add(table: &mut FlowTable, flow: u64) -> u16 {
        let bucket = table.bucket(flow);
        table[bucket].add(flow, 1);
        table[bucket].listed = Listed::New;
        bucket
    }

    #[test]
    fn flows_of_one_set_have_a_bucket_each() {
        let mut table = FlowTable::new();
        let flows = (0..SET as u64).map(|i| 3 + (i + 1) * BUCKETS as u64);
        let mut buckets: Vec<_> = flows.clone().map(|flow| add(&mut table, flow)).collect();
        for (flow, bucket) in flows.zip(&buckets) {
            assert_eq!(add(&mut table, flow), *bucket);
        }
        buckets.sort_unstable();
        assert_eq!(buckets, (0..SET as u16).collect::<Vec<_>>());
    }

    #[test]
    fn a_flow_stays_where_its_packets_are() {
        let mut table = FlowTable::new();
        for i in 1..=SET as u64 {
            add(&mut table, i * BUCKETS as u64);
        }
        // No bucket is left in the set: bucket 5 is shared.
        let flow = 5 + 100 * BUCKETS as u64;
        assert_eq!(add(&mut table, flow), 5);
        table[2].listed = Listed::No;
        assert_eq!(add(&mut table, flow), 5, "packets wait there");
        for _ in 0..2 {
            table[5].remove(flow, 1);
        }
        assert_eq!(add(&mut table, flow), 2);
    }
}
