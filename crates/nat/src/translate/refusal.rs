//! Refusals, sent into the tunnel, of packets for which no application waits.

use taupe_packet::{
    checksum::Sum,
    icmp,
    ip::{self, Family, V4_HEADER, V6_HEADER},
};
use taupe_protocol::TokenBucket;

use super::view::{Content, TCP_HEADER, View};
use crate::tcp;

const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

/// Returns the refusal of `packet`, which is as its sender sent it: a reset, port unreachable, or
/// none. `mtu` limits its length in bytes.
pub(super) fn refusal(packet: &[u8], view: &View, mtu: usize) -> Option<Vec<u8>> {
    match view.content {
        Content::Tcp { flags, .. } if view.fragment.is_none() => reset(packet, view, flags),
        Content::Udp { .. } => icmp::error(icmp::Error::PortUnreachable, packet, mtu, None),
        _ => None,
    }
}

/// Builds the reset of a closed port (RFC 9293 section 3.10.7.1).
fn reset(packet: &[u8], view: &View, flags: u8) -> Option<Vec<u8>> {
    if flags & tcp::RST != 0 || !is_one_host(view.family, view.source) {
        return None;
    }
    let header = packet.get(view.at..view.at + TCP_HEADER)?;
    let word = |at: usize| {
        let word = header.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*word))
    };
    let (sequence, acknowledgement) = (word(4)?, word(8)?);
    let header_len = usize::from(header[12] >> 4) * 4;
    let payload = view.len.checked_sub(view.at + header_len)?;
    let controls = u32::from(flags & tcp::SYN != 0) + u32::from(flags & tcp::FIN != 0);
    let (sequence, acknowledgement, flags) = if flags & tcp::ACK != 0 {
        (acknowledgement, 0, tcp::RST)
    } else {
        let end = sequence.wrapping_add(payload as u32).wrapping_add(controls);
        (0, end, tcp::RST | tcp::ACK)
    };
    let mut segment = [0; TCP_HEADER];
    segment[..2].copy_from_slice(&header[2..4]);
    segment[2..4].copy_from_slice(&header[..2]);
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    segment[12] = (TCP_HEADER / 4 * 16) as u8;
    segment[tcp::FLAGS] = flags;

    let mut answer = Vec::with_capacity(V6_HEADER + TCP_HEADER);
    let addresses = match view.family {
        Family::V4 => {
            answer.extend([0x45, 0, 0, (V4_HEADER + TCP_HEADER) as u8]);
            answer.extend([0, 0, DONT_FRAGMENT, 0, HOP_LIMIT, ip::TCP, 0, 0]);
            answer.extend((view.destination as u32).to_be_bytes());
            answer.extend((view.source as u32).to_be_bytes());
            let sum = Sum::ZERO.bytes(&answer).checksum();
            answer[10..12].copy_from_slice(&sum.to_be_bytes());
            &answer[12..20]
        }
        Family::V6 => {
            answer.extend([0x60, 0, 0, 0, 0, TCP_HEADER as u8, ip::TCP, HOP_LIMIT]);
            answer.extend(view.destination.to_be_bytes());
            answer.extend(view.source.to_be_bytes());
            &answer[8..40]
        }
    };
    let sum = Sum::ZERO.pseudo_header(addresses, ip::TCP, TCP_HEADER as u16);
    let sum = sum.bytes(&segment).checksum();
    segment[tcp::CHECKSUM..tcp::CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    answer.extend(segment);
    Some(answer)
}

/// Returns true unless the address is unspecified, multicast or broadcast.
fn is_one_host(family: Family, ip: u128) -> bool {
    match family {
        Family::V4 => ip != 0 && ip < 0xe000_0000,
        Family::V6 => ip != 0 && ip >> 120 != 0xff,
    }
}

/// Limit of refusals: 100 per second, and 100 at once.
pub(super) type RefusalLimit = TokenBucket<100, 100>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use taupe_protocol::time::Instant;

    use super::*;

    #[test]
    fn a_hundred_at_once_and_one_each_hundredth() {
        let mut limit = RefusalLimit::default();
        let start = Instant(10_000_000_000);
        assert_eq!((0..200).filter(|_| limit.take(start)).count(), 100);
        let next = start + Duration::from_millis(10);
        assert!(!limit.take(next - Duration::from_nanos(1)));
        assert!(limit.take(next));
        assert!(!limit.take(next));
    }
}
