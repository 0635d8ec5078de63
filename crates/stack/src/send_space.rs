//! Sequence numbers that a connection has sent, and checks of ICMP errors against them (RFC 5927).
//!
//! smoltcp does not report its sequence numbers, so they are read from the packets. A host that does
//! not see the connection's packets can forge an ICMP error, but hardly guess a sequence number in
//! flight.
//!
//! An ICMP error may claim a path MTU below the size of a packet that the other side has acknowledged.
//! Such a claim is doubtful (RFC 5927 §7.2): it takes effect only if nothing is acknowledged until the stack retransmits.

use core::time::Duration;
use smoltcp::wire::{Ipv4Packet, TcpPacket, TcpSeqNumber};
use taupe_protocol::time::Instant;

/// Bytes of an IPv6 header.
const V6_HEADER: usize = 40;

/// The shortest time from a doubtful message to a retransmission that confirms it. Retransmissions
/// for duplicate acknowledgements come sooner, and those of the timer after a second.
const CONFIRMATION: Duration = Duration::from_millis(500);

/// State of a connection's sequence numbers (RFC 9293 §3.3.1) and of its path MTU.
#[derive(Default)]
pub(crate) struct SendSpace {
    sent: Option<Sent>,
    /// Lengths of packets, in bytes.
    longest_sent: usize,
    longest_acknowledged: usize,
    /// End and length of a packet in flight that is longer than every acknowledged one.
    longest_in_flight: Option<(TcpSeqNumber, usize)>,
    doubtful: Option<DoubtfulMtu>,
    confirmed_mtu: Option<usize>,
}

#[derive(Clone, Copy)]
struct Sent {
    /// The oldest unacknowledged sequence number (SND.UNA).
    unacknowledged: TcpSeqNumber,
    /// The sequence number after the newest sent (SND.NXT).
    next: TcpSeqNumber,
}

/// A path MTU that contradicts acknowledgements.
struct DoubtfulMtu {
    mtu: usize,
    since: Instant,
}

impl SendSpace {
    /// Records a packet that the stack sends.
    pub(crate) fn note_sent(&mut self, now: Instant, packet: &[u8]) {
        let Some(tcp) = written(packet) else {
            return;
        };
        let (start, length) = (tcp.seq_number(), tcp.segment_len());
        if length == 0 || tcp.rst() {
            return;
        }
        let end = start + length;
        let sent = self.sent.get_or_insert(Sent {
            unacknowledged: start,
            next: start,
        });
        // A keepalive probe repeats an acknowledged byte.
        if end <= sent.unacknowledged {
            return;
        }
        let is_retransmission = start == sent.unacknowledged && start < sent.next;
        if end > sent.next {
            sent.next = end;
        }
        self.longest_sent = self.longest_sent.max(packet.len());
        let least = self
            .longest_in_flight
            .map_or(self.longest_acknowledged, |(_, length)| length);
        if packet.len() > least {
            self.longest_in_flight = Some((end, packet.len()));
        }
        let is_confirmed = |doubtful: &mut DoubtfulMtu| {
            is_retransmission && now.since(doubtful.since) >= CONFIRMATION
        };
        if let Some(doubtful) = self.doubtful.take_if(is_confirmed) {
            self.confirmed_mtu = Some(doubtful.mtu);
        }
    }

    /// Records a received acknowledgement. Returns true if it is acceptable: SND.UNA ≤ SEG.ACK ≤ SND.NXT.
    pub(crate) fn note_acknowledgement(&mut self, number: TcpSeqNumber) -> bool {
        let Some(sent) = &mut self.sent else {
            return false;
        };
        if number < sent.unacknowledged || number > sent.next {
            return false;
        }
        if number > sent.unacknowledged {
            sent.unacknowledged = number;
            self.doubtful = None;
            if let Some((_, length)) = self.longest_in_flight.take_if(|(end, _)| *end <= number) {
                self.longest_acknowledged = self.longest_acknowledged.max(length);
            }
        }
        true
    }

    /// Returns the oldest unacknowledged sequence number.
    pub(crate) fn oldest(&self) -> Option<TcpSeqNumber> {
        self.sent.map(|sent| sent.unacknowledged)
    }

    /// Returns true if a sequence number was sent and is not acknowledged (RFC 5927 §4.1).
    pub(crate) fn is_in_flight(&self, number: TcpSeqNumber) -> bool {
        self.sent
            .is_some_and(|sent| sent.unacknowledged <= number && number < sent.next)
    }

    /// Judges a router's message that the path MTU is `mtu` bytes. Returns true if it takes effect
    /// at once.
    pub(crate) fn judge_mtu(&mut self, now: Instant, mtu: usize) -> bool {
        if mtu >= self.longest_sent {
            return false;
        }
        let is_plausible = mtu >= self.longest_acknowledged;
        if !is_plausible {
            let since = self
                .doubtful
                .as_ref()
                .map_or(now, |doubtful| doubtful.since);
            self.doubtful = Some(DoubtfulMtu { mtu, since });
        }
        is_plausible
    }

    /// Returns a path MTU that a retransmission has confirmed.
    pub(crate) fn take_confirmed_mtu(&mut self) -> Option<usize> {
        self.confirmed_mtu.take()
    }

    /// Records that packets have at most `mtu` bytes from now on.
    pub(crate) fn note_mtu(&mut self, mtu: usize) {
        self.longest_acknowledged = self.longest_acknowledged.min(mtu);
        // Its data will be sent again in shorter packets.
        self.longest_in_flight = None;
        self.doubtful = None;
    }
}

/// Returns the segment that the stack has written into a packet.
fn written(packet: &[u8]) -> Option<TcpPacket<&[u8]>> {
    let header = match packet.first()? >> 4 {
        4 => usize::from(Ipv4Packet::new_checked(packet).ok()?.header_len()),
        _ => V6_HEADER,
    };
    TcpPacket::new_checked(packet.get(header..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{bare_segment, tcp_packet};
    use smoltcp::wire::{IpAddress, TcpControl, TcpRepr};

    const NOW: Instant = Instant(5_000_000_000);

    /// Sequence numbers that wrap within the test.
    const START: TcpSeqNumber = TcpSeqNumber(i32::MAX - 1000);

    fn packet(at: usize, control: TcpControl, length: usize) -> Vec<u8> {
        let segment = TcpRepr {
            control,
            seq_number: START + at,
            ack_number: Some(TcpSeqNumber(9)),
            payload: &vec![7; length],
            ..bare_segment(1000, 80)
        };
        let addresses = ["10.0.0.1", "192.0.2.1"].map(|text| text.parse().unwrap());
        let [source, destination]: [IpAddress; 2] = addresses;
        tcp_packet(source, destination, &segment)
    }

    /// Returns the sequence numbers 0 to 3001 of a connection, of which those to 1001 are
    /// acknowledged.
    fn space() -> SendSpace {
        let mut space = SendSpace::default();
        assert!(!space.note_acknowledgement(START));
        assert!(!space.is_in_flight(START));
        space.note_sent(NOW, &packet(0, TcpControl::Syn, 0));
        assert!(space.is_in_flight(START) && !space.is_in_flight(START + 1));
        assert!(space.note_acknowledgement(START + 1));
        for at in [1, 1001, 2001] {
            space.note_sent(NOW, &packet(at, TcpControl::None, 1000));
        }
        assert!(space.note_acknowledgement(START + 1001));
        space
    }

    #[test]
    fn only_unacknowledged_numbers_are_in_flight() {
        let mut space = space();
        for (at, expected) in [
            (0, false),
            (1000, false),
            (1001, true),
            (3000, true),
            (3001, false),
        ] {
            assert_eq!(space.is_in_flight(START + at), expected, "{at}");
        }
        for (number, expected) in [
            (START + 1000, false),
            (START + 1001, true),
            (START + 3002, false),
            (START + 3001, true),
            (START + 1001, false),
        ] {
            assert_eq!(space.note_acknowledgement(number), expected, "{number}");
        }
        // An empty segment, a keepalive probe and a reset change nothing.
        space.note_sent(NOW, &packet(3001, TcpControl::None, 0));
        space.note_sent(NOW, &packet(3000, TcpControl::None, 1));
        space.note_sent(NOW, &packet(3001, TcpControl::Rst, 0));
        assert!(!space.is_in_flight(START + 3000) && !space.is_in_flight(START + 3001));
        space.note_sent(NOW, &packet(3001, TcpControl::Fin, 0));
        assert!(space.is_in_flight(START + 3001) && !space.is_in_flight(START + 3002));
    }

    #[test]
    fn a_longer_path_mtu_than_arrived_is_believed_at_once() {
        let mut space = space();
        // Packets of 1040 bytes have arrived, and one of 1400 is in flight.
        assert!(!space.judge_mtu(NOW, 1200), "no packet was longer");
        space.note_sent(NOW, &packet(3001, TcpControl::None, 1360));
        assert!(space.judge_mtu(NOW, 1200));
        assert!(!space.judge_mtu(NOW, 1400), "no packet was longer");
    }

    #[test]
    fn a_shorter_path_mtu_than_arrived_waits_for_a_retransmission() {
        let late = NOW + Duration::from_secs(1);
        for (has_progress, at, is_late, expected) in [
            (false, 1001, true, true),
            (false, 1001, false, false),
            (false, 2001, true, false),
            (true, 2001, true, false),
        ] {
            let mut space = space();
            assert!(!space.judge_mtu(NOW, 600));
            if has_progress {
                assert!(space.note_acknowledgement(START + 2001));
            }
            let again = if is_late { late } else { NOW };
            space.note_sent(again, &packet(at, TcpControl::None, 1000));
            assert_eq!(space.take_confirmed_mtu(), expected.then_some(600));
        }
        let mut space = space();
        space.note_mtu(600);
        space.note_sent(NOW, &packet(3001, TcpControl::None, 500));
        assert!(space.note_acknowledgement(START + 3501));
        assert!(space.judge_mtu(NOW, 600), "arrived before the path changed");
    }
}
