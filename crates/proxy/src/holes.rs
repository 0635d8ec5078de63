//! Segments that were lost, one after the other.
//!
//! The library's stack sends the first segment again after three acknowledgements that say the
//! same and hold no data. What it does not look at is what selective acknowledgements say
//! (RFC 6675), that an acknowledgement which ends before another hole tells of that
//! (RFC 6582 §3.2), and those that come with data: it waits a second each time. So what they
//! say is said to the stack in the way that it understands.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpAddress, IpProtocol, IpRepr, Ipv4Packet, Ipv6Packet, TcpControl, TcpPacket, TcpRepr,
    TcpSeqNumber,
};

/// What is known of a connection's holes.
#[derive(Default)]
pub(crate) struct Holes {
    /// Up to where everything has arrived.
    acknowledged: TcpSeqNumber,
    /// How often that has been said while something behind it had arrived.
    repeated: u8,
    /// The stack has been told of this hole.
    is_told: bool,
    /// The stack has been told of a hole, and not all are closed.
    is_closing: bool,
}

impl Holes {
    /// How many duplicates the stack takes for a loss.
    pub(crate) const DUPLICATES: u8 = 3;

    /// Looks at a packet that the stack has taken. If it tells of a hole that the stack has
    /// not been told of, an acknowledgement that says so when it comes
    /// [`Self::DUPLICATES`] times.
    /// `mss` is the length of a full segment, in bytes.
    pub(crate) fn look(&mut self, packet: &[u8], mss: usize) -> Option<Vec<u8>> {
        let (source, destination, payload): (IpAddress, IpAddress, _) = match packet.first()? >> 4 {
            4 => {
                let ip = Ipv4Packet::new_checked(packet).ok()?;
                (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
            }
            _ => {
                let ip = Ipv6Packet::new_checked(packet).ok()?;
                (ip.src_addr().into(), ip.dst_addr().into(), ip.payload())
            }
        };
        let tcp = TcpPacket::new_checked(payload).ok()?;
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
            self.repeated = self.repeated.saturating_add(1);
        } else {
            self.acknowledged = acknowledged;
            self.repeated = 0;
            self.is_told = false;
        }
        // One acknowledgement may stand for many segments that were received together.
        let arrived: usize = behind()
            .map(|range| range.1.wrapping_sub(range.0) as usize)
            .sum();
        let is_lost = self.is_closing
            || self.repeated >= Self::DUPLICATES
            || arrived > (usize::from(Self::DUPLICATES) - 1) * mss;
        if self.is_told || !is_lost || !tcp.verify_checksum(&source, &destination) {
            return None;
        }
        self.is_told = true;
        self.is_closing = true;
        let repeated = TcpRepr {
            src_port: tcp.src_port(),
            dst_port: tcp.dst_port(),
            control: TcpControl::None,
            seq_number: tcp.seq_number() + tcp.segment_len(),
            ack_number: Some(acknowledged),
            window_len: tcp.window_len(),
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let length = repeated.buffer_len();
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, length, 64);
        let mut packet = vec![0; ip.header_len() + length];
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut packet, &checksums);
        let mut segment = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
        repeated.emit(&mut segment, &source, &destination, &checksums);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment with data that says up to where all has arrived, and what behind it.
    fn segment(acknowledged: i32, range: Option<(u32, u32)>) -> Vec<u8> {
        let addresses = ["192.0.2.1", "10.0.0.1"].map(|text| text.parse().unwrap());
        let [source, destination]: [IpAddress; 2] = addresses;
        let tcp = TcpRepr {
            src_port: 80,
            dst_port: 1000,
            control: TcpControl::Psh,
            seq_number: TcpSeqNumber(7000),
            ack_number: Some(TcpSeqNumber(acknowledged)),
            window_len: 500,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [range, None, None],
            timestamp: None,
            payload: b"data",
        };
        let length = tcp.buffer_len();
        let ip = IpRepr::new(source, destination, IpProtocol::Tcp, length, 64);
        let mut packet = vec![0; ip.header_len() + length];
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut packet, &checksums);
        let mut segment = TcpPacket::new_unchecked(&mut packet[ip.header_len()..]);
        tcp.emit(&mut segment, &source, &destination, &checksums);
        packet
    }

    /// What the stack is told: up to where all has arrived, and from where data goes on.
    fn told(holes: &mut Holes, packet: &[u8]) -> Option<(i32, i32)> {
        let told = holes.look(packet, 1000)?;
        let ip = Ipv4Packet::new_checked(&*told).unwrap();
        let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
        assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
        assert!(tcp.payload().is_empty() && tcp.ack() && tcp.window_len() == 500);
        Some((tcp.ack_number().0, tcp.seq_number().0))
    }

    #[test]
    fn the_third_word_tells_of_a_hole_and_the_next_hole_at_once() {
        let mut holes = Holes::default();
        assert_eq!(told(&mut holes, &segment(100, None)), None);
        for time in 1..=5 {
            let expected = (time == 3).then_some((100, 7004));
            let hole = segment(100, Some((200, 200 + time)));
            assert_eq!(told(&mut holes, &hole), expected, "{time}");
        }
        let next = segment(300, Some((400, 500)));
        assert_eq!(told(&mut holes, &next), Some((300, 7004)));
        assert_eq!(told(&mut holes, &next), None, "told already");
        assert_eq!(told(&mut holes, &segment(500, None)), None);
        let later = segment(600, Some((700, 800)));
        assert_eq!(told(&mut holes, &later), None, "may have been overtaken");
    }

    #[test]
    fn enough_that_has_arrived_behind_it_tells_of_a_hole_at_once() {
        for (end, expected) in [(2200, None), (2201, Some((100, 7004)))] {
            let mut holes = Holes::default();
            assert_eq!(told(&mut holes, &segment(100, Some((200, end)))), expected);
        }
    }

    #[test]
    fn what_is_not_behind_or_not_intact_tells_of_nothing() {
        let mut holes = Holes::default();
        for _ in 0..5 {
            assert_eq!(told(&mut holes, &segment(100, Some((50, 90)))), None);
        }
        let mut damaged = segment(100, Some((200, 300)));
        *damaged.last_mut().unwrap() ^= 1;
        for _ in 0..5 {
            assert_eq!(told(&mut holes, &damaged), None);
        }
        assert_eq!(holes.look(&[], 1000), None);
        assert_eq!(holes.look(&damaged[..30], 1000), None);
    }
}
