//! Faster recovery when several segments are lost.
//!
//! smoltcp's TCP retransmits the first missing segment after three duplicate acknowledgements
//! without data. It ignores selective acknowledgements (RFC 6675), partial acknowledgements
//! (RFC 6582 §3.2), and duplicates that carry data, so each further lost segment costs a
//! retransmission timeout of about a second. This module reads those signals and feeds the stack
//! three plain duplicate acknowledgements, which it understands. Example: segments 2 and 5 of 8 are
//! lost. The stack retransmits 2; the acknowledgement that then ends before 5 makes this module
//! report 5 at once.

use crate::packet::{bare_segment, tcp, tcp_packet};
use smoltcp::wire::{TcpRepr, TcpSeqNumber};

/// Loss-recovery state of a connection.
#[derive(Default)]
pub(crate) struct LossRecovery {
    /// Cumulative acknowledgement: everything before it has arrived.
    acknowledged: TcpSeqNumber,
    /// Repetitions of that acknowledgement with selective ranges behind it.
    duplicates: u8,
    /// True once this hole was reported to the stack.
    is_reported: bool,
    /// True from the first reported hole until an acknowledgement without a hole.
    is_recovering: bool,
}

impl LossRecovery {
    /// Duplicate acknowledgements that make the stack retransmit.
    pub(crate) const DUPLICATES: u8 = 3;

    /// Inspects a packet that the stack has processed. If it shows a loss that was not reported
    /// yet, returns a plain acknowledgement to feed to the stack [`Self::DUPLICATES`] times. `mss`
    /// is the length of a full segment, in bytes.
    pub(crate) fn inspect(&mut self, packet: &[u8], mss: usize) -> Option<Vec<u8>> {
        let (source, destination, tcp) = tcp(packet)?;
        if !tcp.ack() || tcp.syn() || tcp.rst() {
            return None;
        }
        let acknowledged = tcp.ack_number();
        let ranges = tcp.selective_ack_ranges().ok()?;
        let is_behind = |range: &(u32, u32)| TcpSeqNumber(range.0 as i32) > acknowledged;
        let behind = || ranges.iter().flatten().filter(|range| is_behind(range));
        if behind().next().is_none() {
            *self = Self {
                acknowledged,
                ..Self::default()
            };
            return None;
        }
        if acknowledged == self.acknowledged {
            self.duplicates = self.duplicates.saturating_add(1);
        } else {
            self.acknowledged = acknowledged;
            self.duplicates = 0;
            self.is_reported = false;
        }
        // One acknowledgement may cover many segments that were received together.
        let arrived: u64 = behind()
            .map(|range| u64::from(range.1.wrapping_sub(range.0)))
            .sum();
        let is_lost = self.is_recovering
            || self.duplicates >= Self::DUPLICATES
            || arrived > (u64::from(Self::DUPLICATES) - 1) * mss as u64;
        if self.is_reported || !is_lost || !tcp.verify_checksum(&source, &destination) {
            return None;
        }
        self.is_reported = true;
        self.is_recovering = true;
        let duplicate = TcpRepr {
            seq_number: tcp.seq_number() + tcp.segment_len(),
            ack_number: Some(acknowledged),
            window_len: tcp.window_len(),
            ..bare_segment(tcp.src_port(), tcp.dst_port())
        };
        Some(tcp_packet(source, destination, &duplicate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::{IpAddress, TcpControl};

    /// Returns a segment with data, a cumulative acknowledgement and a selective range.
    fn segment(acknowledged: i32, range: Option<(u32, u32)>) -> Vec<u8> {
        let addresses = ["192.0.2.1", "10.0.0.1"].map(|text| text.parse().unwrap());
        let [source, destination]: [IpAddress; 2] = addresses;
        let segment = TcpRepr {
            control: TcpControl::Psh,
            seq_number: TcpSeqNumber(7000),
            ack_number: Some(TcpSeqNumber(acknowledged)),
            window_len: 500,
            sack_ranges: [range, None, None],
            payload: b"data",
            ..bare_segment(80, 1000)
        };
        tcp_packet(source, destination, &segment)
    }

    /// Returns the acknowledgement and sequence number of the duplicate that is reported.
    fn reported(recovery: &mut LossRecovery, packet: &[u8]) -> Option<(i32, i32)> {
        let reported = recovery.inspect(packet, 1000)?;
        let (source, destination, tcp) = tcp(&reported).unwrap();
        assert!(tcp.verify_checksum(&source, &destination));
        assert!(tcp.payload().is_empty() && tcp.ack() && tcp.window_len() == 500);
        Some((tcp.ack_number().0, tcp.seq_number().0))
    }

    #[test]
    fn the_third_duplicate_reports_a_hole_and_a_partial_acknowledgement_the_next() {
        let mut recovery = LossRecovery::default();
        assert_eq!(reported(&mut recovery, &segment(100, None)), None);
        for time in 1..=5 {
            let expected = (time == 3).then_some((100, 7004));
            let hole = segment(100, Some((200, 200 + time)));
            assert_eq!(reported(&mut recovery, &hole), expected, "{time}");
        }
        let next = segment(300, Some((400, 500)));
        assert_eq!(reported(&mut recovery, &next), Some((300, 7004)));
        assert_eq!(reported(&mut recovery, &next), None, "told already");
        assert_eq!(reported(&mut recovery, &segment(500, None)), None);
        let later = segment(600, Some((700, 800)));
        assert_eq!(
            reported(&mut recovery, &later),
            None,
            "may have been overtaken"
        );
    }

    #[test]
    fn enough_data_behind_a_hole_reports_it_at_once() {
        for (end, expected) in [(2200, None), (2201, Some((100, 7004)))] {
            let mut recovery = LossRecovery::default();
            assert_eq!(
                reported(&mut recovery, &segment(100, Some((200, end)))),
                expected
            );
        }
    }

    #[test]
    fn invalid_selective_acknowledgements_report_no_hole() {
        let mut recovery = LossRecovery::default();
        for _ in 0..5 {
            assert_eq!(reported(&mut recovery, &segment(100, Some((50, 90)))), None);
        }
        let mut damaged = segment(100, Some((200, 300)));
        *damaged.last_mut().unwrap() ^= 1;
        for _ in 0..5 {
            assert_eq!(reported(&mut recovery, &damaged), None);
        }
        assert_eq!(recovery.inspect(&[], 1000), None);
        assert_eq!(recovery.inspect(&damaged[..30], 1000), None);
    }
}
