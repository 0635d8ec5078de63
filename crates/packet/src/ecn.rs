//! Explicit congestion notification across the tunnel (RFC 6040).

use crate::{
    checksum,
    ip::{Family, Packet},
};

/// Treatment of a decrypted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Deliver the packet.
    Deliver,
    /// Drop the packet: the network marked congestion, but the sender does not support ECN, so that
    /// only loss can signal it.
    Drop,
}

const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

/// Returns the outer ECN field (0 to 3) for an inner TOS or traffic class byte (RFC 6040 section
/// 4.1, normal mode). The DSCP is not copied, so that it is not visible outside the tunnel.
pub fn encapsulate(inner_tos: u8) -> u8 {
    inner_tos & CE
}

/// Marks a packet, which should have passed [`crate::ip::Packet::parse`], with congestion (CE).
/// Returns false and leaves it unchanged if its sender does not support ECN.
pub fn mark(packet: &mut [u8]) -> bool {
    let Ok(view) = Packet::parse(packet) else {
        return false;
    };
    let (family, tos) = (view.family(), view.tos());
    if is_capable(tos) {
        set_ecn(packet, family, tos, CE);
    }
    is_capable(tos)
}

/// Returns true if the sender of a packet with this TOS or traffic class supports ECN.
pub(crate) fn is_capable(tos: u8) -> bool {
    tos & CE != NOT_ECT
}

/// Applies the outer ECN field to a decrypted packet (RFC 6040 section 4.2).
///
/// `packet` should have passed [`crate::ip::Packet::parse`]; other data is delivered unchanged.
pub fn decapsulate(outer_ecn: u8, packet: &mut [u8]) -> Verdict {
    // The common case: these fields never change the packet.
    if matches!(outer_ecn & CE, NOT_ECT | ECT_0) {
        return Verdict::Deliver;
    }
    let Ok(view) = Packet::parse(packet) else {
        return Verdict::Deliver;
    };
    let family = view.family();
    let tos = view.tos();
    // RFC 6040, figure 4; the columns Not-ECT and ECT(0) were handled above.
    let ecn = match (tos & CE, outer_ecn & CE) {
        (NOT_ECT, CE) => return Verdict::Drop,
        (NOT_ECT, _) => NOT_ECT,
        (CE, _) | (_, CE) => CE,
        (_, _) => ECT_1,
    };
    set_ecn(packet, family, tos, ecn);
    Verdict::Deliver
}

/// Sets the ECN field of a valid packet whose TOS or traffic class is `tos`.
fn set_ecn(packet: &mut [u8], family: Family, tos: u8, ecn: u8) {
    let marked = tos & !CE | ecn;
    if marked == tos {
        return;
    }
    match family {
        Family::V4 => {
            let word = |tos| u16::from_be_bytes([packet[0], tos]);
            let old = u16::from_be_bytes([packet[10], packet[11]]);
            let new = checksum::update(old, word(tos), word(marked));
            packet[1] = marked;
            packet[10..12].copy_from_slice(&new.to_be_bytes());
        }
        Family::V6 => packet[1] = packet[1] & 0x0f | marked << 4,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder};

    use super::*;

    const DSCP: u8 = 46 << 2;

    fn v4(tos: u8) -> Vec<u8> {
        let mut header =
            Ipv4Header::new(8, 64, IpNumber::UDP, [10, 0, 0, 1], [10, 0, 0, 2]).unwrap();
        header.dscp = (tos >> 2).try_into().unwrap();
        header.ecn = (tos & 3).try_into().unwrap();
        header.header_checksum = header.calc_header_checksum();
        build(IpHeaders::Ipv4(header, Default::default()))
    }

    fn v6(tos: u8) -> Vec<u8> {
        let header = Ipv6Header {
            traffic_class: tos,
            flow_label: Ipv6FlowLabel::try_new(0xabcde).unwrap(),
            hop_limit: 64,
            ..Default::default()
        };
        build(IpHeaders::Ipv6(header, Default::default()))
    }

    fn build(ip: IpHeaders) -> Vec<u8> {
        let mut packet = Vec::new();
        PacketBuilder::ip(ip)
            .udp(1, 2)
            .write(&mut packet, b"")
            .unwrap();
        packet
    }

    #[test]
    fn outer_field_is_the_inner_one_without_dscp() {
        for ecn in 0..4 {
            assert_eq!(encapsulate(DSCP | ecn), ecn);
        }
    }

    /// RFC 6040, figure 4: rows are inner fields, columns outer fields.
    #[test]
    fn every_cell_of_figure_4() {
        let table = [
            (
                NOT_ECT,
                [(NOT_ECT, NOT_ECT), (ECT_0, NOT_ECT), (ECT_1, NOT_ECT)].as_slice(),
            ),
            (
                ECT_0,
                &[(NOT_ECT, ECT_0), (ECT_0, ECT_0), (ECT_1, ECT_1), (CE, CE)],
            ),
            (
                ECT_1,
                &[(NOT_ECT, ECT_1), (ECT_0, ECT_1), (ECT_1, ECT_1), (CE, CE)],
            ),
            (CE, &[(NOT_ECT, CE), (ECT_0, CE), (ECT_1, CE), (CE, CE)]),
        ];
        for build in [v4, v6] {
            for (inner, cells) in table {
                for &(outer, result) in cells {
                    let mut packet = build(DSCP | inner);
                    assert_eq!(decapsulate(outer, &mut packet), Verdict::Deliver);
                    // All other bits, including the IPv4 checksum, equal those of a packet built
                    // with this field.
                    assert_eq!(packet, build(DSCP | result), "{inner:02b} {outer:02b}");
                }
            }
            let mut packet = build(DSCP | NOT_ECT);
            assert_eq!(decapsulate(CE, &mut packet), Verdict::Drop);
        }
    }

    #[test]
    fn packets_of_capable_senders_are_marked() {
        for build in [v4, v6] {
            for ecn in [ECT_0, ECT_1, CE] {
                let mut packet = build(DSCP | ecn);
                assert!(mark(&mut packet));
                assert_eq!(packet, build(DSCP | CE));
            }
            let mut packet = build(DSCP | NOT_ECT);
            assert!(!mark(&mut packet));
            assert_eq!(packet, build(DSCP | NOT_ECT));
        }
    }

    #[test]
    fn what_is_no_packet_is_left_alone() {
        for length in 0..20 {
            let mut packet = v4(0)[..length].to_vec();
            let before = packet.clone();
            assert_eq!(decapsulate(CE, &mut packet), Verdict::Deliver);
            assert!(!mark(&mut packet));
            assert_eq!(packet, before);
        }
    }
}
