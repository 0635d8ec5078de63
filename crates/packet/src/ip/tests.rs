use etherparse::{Ipv6RawExtHeader, PacketBuilder};
use proptest::prelude::*;

use super::*;

/// Fields parsed from a packet.
#[derive(Debug, PartialEq, Eq)]
struct Inner {
    source: IpAddr,
    destination: IpAddr,
    length: usize,
}

fn inner(packet: &[u8]) -> Result<Inner, Malformed> {
    let packet = Packet::parse(packet)?;
    Ok(Inner {
        source: packet.source(),
        destination: packet.destination(),
        length: packet.bytes().len(),
    })
}

fn v4() -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4([10, 1, 2, 3], [10, 4, 5, 6], 64)
        .udp(1, 2)
        .write(&mut packet, b"payload")
        .unwrap();
    packet
}

fn v6() -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv6([0xfd; 16], [0xfe; 16], 64)
        .udp(1, 2)
        .write(&mut packet, b"payload")
        .unwrap();
    packet
}

#[test]
fn addresses_and_true_length_are_found_before_padding() {
    for (packet, source, destination) in [
        (v4(), "10.1.2.3", "10.4.5.6"),
        (
            v6(),
            "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd",
            "fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe",
        ),
    ] {
        let length = packet.len();
        for padding in [0, 1, 15] {
            let mut packet = packet.clone();
            packet.resize(length + padding, 0);
            let expected = Inner {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                length,
            };
            assert_eq!(inner(&packet), Ok(expected));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for packet in [v4(), v6()] {
        for length in 0..packet.len() {
            let error = inner(&packet[..length]).unwrap_err();
            assert!(matches!(error, Malformed::Truncated { .. }), "{error}");
        }
    }
}

#[test]
fn only_versions_4_and_6_are_packets() {
    for version in (0..16).filter(|version| ![4, 6].contains(version)) {
        let mut packet = v4();
        packet[0] = version << 4 | 5;
        assert_eq!(inner(&packet), Err(Malformed::Version(version)));
    }
}

#[test]
fn ipv4_lengths_at_their_edges() {
    let mut packet = v4();
    let mut said = |total: u16| {
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        inner(&packet).map(|inner| inner.length)
    };
    assert_eq!(said(35), Ok(35));
    assert_eq!(said(20), Ok(20));
    let short = |total| Err(Malformed::TotalLength { total, header: 20 });
    assert_eq!(said(19), short(19));
    assert_eq!(said(0), short(0));
    let long = |needed| {
        Err(Malformed::Truncated {
            needed,
            available: 35,
        })
    };
    assert_eq!(said(36), long(36));
    assert_eq!(said(65_535), long(65_535));

    packet = v4();
    packet[0] = 0x44;
    assert_eq!(inner(&packet), Err(Malformed::HeaderLength(16)));
    packet[0] = 0x48;
    assert_eq!(inner(&packet).unwrap().length, 35);
    packet[0] = 0x49;
    assert_eq!(
        inner(&packet),
        Err(Malformed::TotalLength {
            total: 35,
            header: 36
        })
    );
}

#[test]
fn ipv6_lengths_do_not_wrap() {
    let mut packet = v6();
    packet.resize(60_000, 0);
    for payload in [65_495u16, 65_496, 65_534, 65_535] {
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        let error = Malformed::Truncated {
            needed: usize::from(payload) + 40,
            available: 60_000,
        };
        assert_eq!(inner(&packet), Err(error));
    }
    packet.resize(65_575, 0);
    assert_eq!(inner(&packet).unwrap().length, 65_575);
    packet[4..6].fill(0);
    assert_eq!(inner(&packet).unwrap().length, 40);
}

#[test]
fn fields_lie_where_an_independent_builder_puts_them() {
    let mut packet = v4();
    packet[1] = 0xb9;
    let view = Packet::parse(&packet).unwrap();
    assert_eq!(
        (view.family(), view.protocol(), view.tos()),
        (Family::V4, UDP, 0xb9)
    );
    let mut packet = v6();
    packet[0] = 0x6b;
    packet[1] = 0x90;
    let view = Packet::parse(&packet).unwrap();
    assert_eq!(
        (view.family(), view.protocol(), view.tos()),
        (Family::V6, UDP, 0xb9)
    );
}

#[test]
fn fragments_are_recognised() {
    let mut packet = v4();
    packet[4..6].copy_from_slice(&[0x12, 0x34]);
    let mut transport = |word: u16| {
        packet[6..8].copy_from_slice(&word.to_be_bytes());
        let transport = Packet::parse(&packet).unwrap().transport().unwrap();
        assert_eq!(transport.identification, 0x1234);
        (transport.fragment_offset, transport.more_fragments)
    };
    assert_eq!(transport(0x4000), (0, false));
    assert_eq!(transport(0x2000), (0, true));
    assert_eq!(transport(0x0001), (8, false));
    assert_eq!(transport(0x3fff), (65_528, true));
}

#[test]
fn extension_headers_are_followed() {
    let mut packet = Vec::new();
    let options = Ipv6RawExtHeader::new_raw(0.into(), &[0; 14]).unwrap();
    let header = etherparse::Ipv6Header::default();
    let extensions = etherparse::Ipv6Extensions {
        hop_by_hop_options: Some(options.clone()),
        destination_options: Some(options),
        fragment: Some(etherparse::Ipv6FragmentHeader::new(
            UDP.into(),
            3.try_into().unwrap(),
            true,
            0x89ab_cdef,
        )),
        ..Default::default()
    };
    PacketBuilder::ip(etherparse::IpHeaders::Ipv6(header, extensions))
        .write(&mut packet, UDP.into(), b"the middle of a datagram")
        .unwrap();
    let view = Packet::parse(&packet).unwrap();
    assert_eq!(
        view.transport(),
        Some(Transport {
            protocol: UDP,
            offset: 40 + 16 + 16 + 8,
            fragment_offset: 24,
            more_fragments: true,
            identification: 0x89ab_cdef,
        })
    );
    // Truncated anywhere inside the extension headers.
    for length in 41..80 {
        let mut packet = packet[..length].to_vec();
        packet[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        let view = Packet::parse(&packet).unwrap();
        assert!(
            view.transport()
                .is_none_or(|transport| transport.protocol != UDP),
            "{length}"
        );
    }
}

#[test]
fn quoted_packets_may_be_cut_behind_their_header() {
    let mut options = v4();
    options[0] = 0x46;
    for (packet, header_len) in [(v4(), 20), (options, 24), (v6(), 40)] {
        for len in 0..=packet.len() {
            let quoted = Packet::parse_quoted(&packet[..len]);
            if len < header_len {
                assert!(quoted.is_err(), "{len} of {header_len}");
            } else {
                let quoted = quoted.unwrap();
                assert_eq!(quoted.bytes(), &packet[..len]);
                assert_eq!(quoted.header_len(), header_len);
            }
        }
        let padded = [&packet[..], &[0; 3]].concat();
        assert_eq!(Packet::parse_quoted(&padded).unwrap().bytes(), packet);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(packet.bytes().len() >= packet.header_len());
            prop_assert_eq!(inner(&bytes).unwrap().length, packet.bytes().len());
            packet.transport();
        }
        if let Ok(packet) = Packet::parse_quoted(&bytes) {
            prop_assert!(packet.bytes().len() >= packet.header_len());
            packet.transport();
        }
    }

    #[test]
    fn any_chain_of_extension_headers_ends(mut bytes in prop::collection::vec(prop::sample::select(vec![0u8, 43, 44, 51, 60, 135]), 40..400)) {
        let length = (bytes.len() - 40) as u16;
        bytes[0] = 0x60;
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        Packet::parse(&bytes).unwrap().transport();
    }
}
