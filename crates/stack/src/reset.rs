//! Resets that answer segments without a connection.

use crate::outgoing::Outgoing;
use crate::packet::{bare_segment, tcp, tcp_packet};
use smoltcp::wire::{TcpControl, TcpRepr, TcpSeqNumber};
use std::hash::{BuildHasher as _, RandomState};
use taupe_protocol::TokenBucket;
use taupe_protocol::time::Instant;

/// Resets per second, and at once. Segments without a connection are rare, unless a host scans ports
/// or forges addresses. A sender without an answer retransmits.
const PER_SECOND: u64 = 200;

/// Resets per second, and at once, to one address. One host that scans ports so leaves most resets to
/// the others. A host that forges addresses is bounded only by [`PER_SECOND`].
const PER_SECOND_TO_ONE: u64 = 20;

/// Buckets for addresses. Addresses with the same one share its resets.
const BUCKETS: usize = 1024;

/// Answers to segments without a connection, with their rate limits.
pub(crate) struct Resets {
    limit: TokenBucket<PER_SECOND, PER_SECOND>,
    /// Limits of addresses, by a hash with a random key: nobody knows which addresses share a bucket.
    to_one: Box<[TokenBucket<PER_SECOND_TO_ONE, PER_SECOND_TO_ONE>]>,
    hasher: RandomState,
}

impl Default for Resets {
    fn default() -> Self {
        Self {
            limit: TokenBucket::default(),
            to_one: (0..BUCKETS).map(|_| TokenBucket::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Resets {
    /// Answers a segment with a reset (RFC 9293 §3.10.7.1), as far as the limits allow. Ignores
    /// resets and damaged segments.
    pub(crate) fn answer(&mut self, now: Instant, packet: &[u8], outgoing: &mut Outgoing) {
        let Some((source, destination, tcp)) = tcp(packet) else {
            return;
        };
        let bucket = self.hasher.hash_one(source) % BUCKETS as u64;
        let to_one = &mut self.to_one[bucket as usize];
        // The checksum is last, because it takes longest.
        let is_answered = !tcp.rst()
            && to_one.has_any(now)
            && self.limit.has_any(now)
            && tcp.verify_checksum(&source, &destination)
            && to_one.take(now)
            && self.limit.take(now);
        if !is_answered {
            return;
        }
        let (seq_number, ack_number) = match tcp.ack() {
            true => (tcp.ack_number(), None),
            false => {
                let end = tcp.seq_number() + tcp.segment_len();
                (TcpSeqNumber(0), Some(end))
            }
        };
        let reset = TcpRepr {
            control: TcpControl::Rst,
            seq_number,
            ack_number,
            ..bare_segment(tcp.dst_port(), tcp.src_port())
        };
        let reset = tcp_packet(destination, source, &reset);
        outgoing.push(reset.len(), |packet| packet.copy_from_slice(&reset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use smoltcp::wire::IpAddress;

    const NOW: Instant = Instant(5_000_000_000);

    fn segment(control: TcpControl, acknowledged: Option<i32>, payload: &[u8]) -> Vec<u8> {
        segment_from("192.0.2.1", control, acknowledged, payload)
    }

    fn segment_from(
        source: &str,
        control: TcpControl,
        acknowledged: Option<i32>,
        payload: &[u8],
    ) -> Vec<u8> {
        let segment = TcpRepr {
            control,
            seq_number: TcpSeqNumber(7000),
            ack_number: acknowledged.map(TcpSeqNumber),
            payload,
            ..bare_segment(1000, 80)
        };
        let addresses = [source, "10.0.0.1"].map(|text| text.parse().unwrap());
        let [source, destination]: [IpAddress; 2] = addresses;
        tcp_packet(source, destination, &segment)
    }

    /// Returns sequence number and acknowledgement of the reset that answers a segment.
    fn answer(packet: &[u8]) -> Option<(i32, Option<i32>)> {
        let mut outgoing = Outgoing::new(1420);
        Resets::default().answer(NOW, packet, &mut outgoing);
        let reset = outgoing.packet(*outgoing.slots().first()?);
        let (source, destination, tcp) = tcp(reset).unwrap();
        assert!(tcp.verify_checksum(&source, &destination) && tcp.rst());
        assert_eq!((tcp.src_port(), tcp.dst_port()), (80, 1000));
        assert_eq!(source.to_string(), "10.0.0.1");
        assert_eq!(destination.to_string(), "192.0.2.1");
        let acknowledged = tcp.ack().then(|| tcp.ack_number().0);
        Some((tcp.seq_number().0, acknowledged))
    }

    #[test]
    fn a_reset_is_acceptable_to_the_sender() {
        for (packet, expected) in [
            (segment(TcpControl::Syn, None, b""), Some((0, Some(7001)))),
            (segment(TcpControl::Fin, None, b"ab"), Some((0, Some(7003)))),
            (segment(TcpControl::Syn, Some(9), b""), Some((9, None))),
            (segment(TcpControl::None, Some(9), b"abc"), Some((9, None))),
            (segment(TcpControl::Rst, Some(9), b""), None),
            (segment(TcpControl::Rst, None, b""), None),
        ] {
            assert_eq!(answer(&packet), expected);
            let mut damaged = packet;
            *damaged.last_mut().unwrap() ^= 1;
            assert_eq!(answer(&damaged), None);
        }
        assert_eq!(answer(b""), None);
    }

    /// Returns the number of resets that answer so many segments of each host.
    fn resets(resets: &mut Resets, now: Instant, hosts: u8, segments: u64) -> u64 {
        let (mut outgoing, mut count) = (Outgoing::new(1420), 0);
        for host in 1..=hosts {
            let source = format!("192.0.2.{host}");
            let stray = segment_from(&source, TcpControl::None, Some(9), b"abc");
            for _ in 0..segments {
                resets.answer(now, &stray, &mut outgoing);
                count += outgoing.slots().len();
                outgoing.remove(1);
            }
        }
        count as u64
    }

    #[test]
    fn resets_are_limited_per_second() {
        let mut limited = Resets::default();
        assert_eq!(resets(&mut limited, NOW, 250, PER_SECOND), PER_SECOND);
        let later = NOW + Duration::from_millis(100);
        let count = resets(&mut limited, later, 250, PER_SECOND);
        assert_eq!(count, PER_SECOND / 10);
    }

    #[test]
    fn one_host_leaves_most_resets_to_the_others() {
        let mut limited = Resets::default();
        let count = resets(&mut limited, NOW, 1, 10 * PER_SECOND);
        assert_eq!(count, PER_SECOND_TO_ONE);
        // One segment of each host: the first host's is not answered, nor are those in its bucket.
        let count = resets(&mut limited, NOW, 100, 1);
        assert!((80..=99).contains(&count), "{count} resets");
        let later = NOW + Duration::from_millis(100);
        let count = resets(&mut limited, later, 1, PER_SECOND);
        assert_eq!(count, PER_SECOND_TO_ONE / 10);
    }
}
