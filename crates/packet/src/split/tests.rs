use proptest::prelude::*;

use super::*;
use crate::testing::{ACK, CWR, FIN, PSH, Spec, any_spec};

fn written(split: &Split<'_>) -> Vec<Vec<u8>> {
    (0..split.count())
        .map(|i| {
            let mut dst = vec![0xaa; split.segment_len()];
            let length = split.write(i, &mut dst);
            let last = i + 1 == split.count();
            let expected = if last {
                split.last_len()
            } else {
                split.segment_len()
            };
            assert_eq!(length, expected);
            dst.truncate(length);
            dst
        })
        .collect()
}

/// Everything that `Split::new` accepts can be written within bounds.
fn survives(header: VirtioHeader, packet: &[u8]) -> Result<(), SplitError> {
    let split = Split::new(header, packet)?;
    assert!(split.count() >= 1);
    assert!(split.last_len() <= split.segment_len());
    let mut dst = vec![0; split.segment_len()];
    for i in (0..split.count()).take(3).chain([split.count() - 1]) {
        split.write(i, &mut dst);
    }
    Ok(())
}

fn all_kinds() -> impl Iterator<Item = Spec> {
    [(false, false), (false, true), (true, false), (true, true)]
        .map(|(v6, tcp)| Spec {
            v6,
            tcp,
            options: if tcp { vec![1; 12] } else { Vec::new() },
            payload: (0..1000).map(|i| i as u8).collect(),
            ..Spec::default()
        })
        .into_iter()
}

proptest! {
    #[test]
    fn segments_are_what_the_oracle_builds(spec in any_spec(4000), size in 1u16..2000) {
        let (header, packet) = spec.super_packet(size);
        let split = Split::new(header, &packet).unwrap();
        let expected: Vec<_> = spec.segments(size.into()).iter().map(Spec::bytes).collect();
        prop_assert_eq!(written(&split), expected);
    }

    #[test]
    fn checksums_alone_are_completed(spec in any_spec(2000)) {
        let (mut header, packet) = spec.super_packet(1);
        header.gso_type = 0;
        header.gso_size = 0;
        let split = Split::new(header, &packet).unwrap();
        prop_assert_eq!(split.count(), 1);
        let mut expected = spec.bytes();
        let at = usize::from(header.csum_start + header.csum_offset);
        if expected[at..at + 2] == [0, 0] {
            // The other representation of zero.
            expected[at..at + 2].fill(0xff);
        }
        prop_assert_eq!(written(&split), vec![expected]);
    }

    #[test]
    fn anything_is_taken_or_refused(
        header: [u8; VirtioHeader::LEN],
        packet in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let header = zerocopy::transmute!(header);
        let _ = survives(header, &packet);
    }
}

#[test]
fn a_plain_packet_is_one_unchanged_segment() {
    let packet = Spec::default().bytes();
    let split = Split::new(VirtioHeader::default(), &packet).unwrap();
    assert_eq!((split.count(), split.segment_len()), (1, packet.len()));
    assert_eq!(written(&split), [packet.as_slice()]);
}

#[test]
fn an_empty_read_is_one_empty_segment() {
    let split = Split::new(VirtioHeader::default(), &[]).unwrap();
    assert_eq!(written(&split), [b""]);
}

#[test]
fn sizes_around_a_whole_number_of_segments() {
    for spec in all_kinds() {
        for (size, count, last) in [
            (500, 2, 500),
            (499, 3, 2),
            (501, 2, 499),
            (1000, 1, 1000),
            (1001, 1, 1000),
        ] {
            let (header, packet) = spec.super_packet(size);
            let split = Split::new(header, &packet).unwrap();
            assert_eq!(split.count(), count, "{size}");
            assert_eq!(split.last_len(), spec.header_len() + last);
        }
    }
}

#[test]
fn the_largest_packet_in_the_smallest_segments() {
    let spec = Spec {
        payload: vec![1; 65_535 - 40],
        ..Spec::default()
    };
    let (header, packet) = spec.super_packet(1);
    let split = Split::new(header, &packet).unwrap();
    assert_eq!(split.count(), 65_495);
    let mut dst = [0; 41];
    assert_eq!(split.write(65_494, &mut dst), 41);
    assert_eq!(dst.as_slice(), spec.segments(1)[65_494].bytes());
}

#[test]
fn flags_go_to_the_segment_they_belong_to() {
    let spec = Spec {
        flags: ACK | CWR | PSH | FIN,
        ..Spec::default()
    };
    let (mut header, packet) = spec.super_packet(40);
    header.gso_type |= virtio::GSO_ECN;
    let split = Split::new(header, &packet).unwrap();
    let flags: Vec<_> = written(&split).iter().map(|segment| segment[33]).collect();
    assert_eq!(flags, [ACK | CWR, ACK, ACK | PSH | FIN]);
}

#[test]
fn headers_behind_ipv4_options_and_ipv6_extensions_are_found() {
    // Four bytes of options (no operation).
    let spec = Spec::default();
    let (mut header, mut packet) = spec.super_packet(50);
    packet.splice(20..20, [1; 4]);
    packet[0] = 0x46;
    let length = packet.len() as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    header.csum_start += 4;
    let segments = written(&Split::new(header, &packet).unwrap());
    for (segment, expected) in segments.iter().zip(spec.segments(50)) {
        assert_eq!(segment[24..], expected.bytes()[20..]);
        assert_eq!(Sum::ZERO.bytes(&segment[..24]).folded(), 0xffff);
    }

    // A destination options header of 8 bytes.
    let spec = Spec {
        v6: true,
        ..Spec::default()
    };
    let (mut header, mut packet) = spec.super_packet(50);
    packet.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
    packet[6] = 60;
    let length = (packet.len() - 40) as u16;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    header.csum_start += 8;
    let segments = written(&Split::new(header, &packet).unwrap());
    assert_eq!(segments.len(), 2);
    for (segment, expected) in segments.iter().zip(spec.segments(50)) {
        assert_eq!(segment[48..], expected.bytes()[40..]);
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    for spec in all_kinds() {
        let (header, packet) = spec.super_packet(100);
        let refused = |header, packet: &[u8]| Split::new(header, packet).unwrap_err();
        let with = |edit: fn(&mut VirtioHeader)| {
            let mut header = header;
            edit(&mut header);
            header
        };
        assert_eq!(
            refused(with(|h| h.gso_size = 0), &packet),
            SplitError::GsoSize
        );
        assert_eq!(
            refused(with(|h| h.flags = 0), &packet),
            SplitError::ChecksumMissing
        );
        // Fragmentation offload of old kernels, and an unknown type.
        assert_eq!(
            refused(with(|h| h.gso_type = 3), &packet),
            SplitError::GsoType(3)
        );
        assert_eq!(
            refused(with(|h| h.gso_type = 2), &packet),
            SplitError::GsoType(2)
        );
        assert_eq!(
            refused(with(|h| h.csum_start += 1), &packet),
            SplitError::IpHeader
        );
        assert_eq!(
            refused(with(|h| h.csum_start = 0), &packet),
            SplitError::IpHeader
        );
        assert_eq!(
            refused(with(|h| h.csum_start = u16::MAX), &packet),
            SplitError::IpHeader
        );
        let wrong_offset = refused(with(|h| h.csum_offset += 2), &packet);
        assert!(matches!(wrong_offset, SplitError::ChecksumPlace { .. }));
        let other_version = with(|h| h.gso_type = if h.csum_start == 20 { 4 } else { 1 });
        assert_eq!(refused(other_version, &packet), SplitError::IpHeader);
        let mut longer = packet.clone();
        longer.push(0);
        assert!(matches!(
            refused(header, &longer),
            SplitError::IpLength { .. }
        ));
        let mut other_protocol = packet.clone();
        other_protocol[if spec.v6 { 6 } else { 9 }] = 50;
        assert_eq!(refused(header, &other_protocol), SplitError::IpHeader);
        for length in 0..packet.len() {
            refused(header, &packet[..length]);
        }
    }
}

#[test]
fn fragments_are_refused() {
    let (header, mut packet) = Spec::default().super_packet(10);
    packet[6] |= 0x20;
    assert_eq!(
        Split::new(header, &packet).unwrap_err(),
        SplitError::Fragment
    );
    packet[6] = 0;
    packet[7] = 1;
    assert_eq!(
        Split::new(header, &packet).unwrap_err(),
        SplitError::Fragment
    );
}

#[test]
fn tcp_headers_must_fit() {
    let spec = Spec {
        payload: vec![1; 8],
        ..Spec::default()
    };
    let (header, mut packet) = spec.super_packet(4);
    for offset in 0..16usize {
        packet[32] = (offset as u8) << 4;
        let fits = (20..=28).contains(&(offset * 4));
        assert_eq!(Split::new(header, &packet).is_ok(), fits, "{offset}");
    }
}

#[test]
fn checksums_must_lie_inside() {
    let packet = [0; 30];
    let at = |csum_start, csum_offset| {
        let header = VirtioHeader {
            flags: virtio::NEEDS_CSUM,
            csum_start,
            csum_offset,
            ..VirtioHeader::default()
        };
        Split::new(header, &packet).map(|split| split.count())
    };
    assert_eq!(at(20, 8), Ok(1));
    assert!(at(20, 9).is_err());
    assert!(at(29, 0).is_err());
    assert!(at(u16::MAX, u16::MAX).is_err());
}

#[test]
fn no_flipped_bit_panics() {
    for spec in all_kinds() {
        let (header, mut packet) = spec.super_packet(100);
        for bit in 0..spec.header_len() * 8 {
            packet[bit / 8] ^= 1 << (bit % 8);
            let _ = survives(header, &packet);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..VirtioHeader::LEN * 8 {
            let mut bytes: [u8; VirtioHeader::LEN] = zerocopy::transmute!(header);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = survives(zerocopy::transmute!(bytes), &packet);
        }
    }
}
