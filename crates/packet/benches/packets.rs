//! Cost per packet between the system calls: reading its header, checksums, splitting a
//! super-packet of 64 KiB, and merging its segments again.

use divan::{
    Bencher, black_box,
    counter::{BytesCount, ItemsCount},
};
use std::ops::Range;
use taupe_packet::{
    checksum::Sum,
    ip::Packet,
    merge::{Coalesce, Merger},
    split::Split,
    virtio::{self, VirtioHeader},
};

/// Payload of a segment through a TUN with an MTU of 1,420 bytes, with TCP timestamps.
const MSS: usize = 1368;

/// IPv4, TCP and TCP timestamps.
const HEADERS: usize = 20 + 32;

/// Segments of the largest super-packet.
const SEGMENTS: usize = (65_535 - HEADERS) / MSS;

fn main() {
    // The first sum detects the processor's features.
    black_box(Sum::ZERO.bytes(&[0; 64]));
    divan::main();
}

/// The lengths of headers, acknowledgements, and segments.
#[divan::bench(args = [20, 40, 52, 64, 100, 200, 576, 1400, 8900])]
fn checksum(bencher: Bencher<'_, '_>, len: usize) {
    let bytes = noise(len);
    bencher
        .counter(BytesCount::new(len))
        .bench_local(|| Sum::ZERO.bytes(black_box(&bytes)).folded());
}

/// Reads all fields that the outbound path needs of a packet's header.
#[divan::bench]
fn header(bencher: Bencher<'_, '_>) {
    let (_, packet) = super_packet();
    bencher.bench_local(|| {
        let packet = Packet::parse(black_box(&packet)).expect("a packet");
        let transport = packet.transport().map(|transport| transport.protocol);
        black_box((packet.destination(), packet.tos(), transport))
    });
}

/// Writes each segment to its place in the send buffer, behind the message header.
#[divan::bench]
fn split(bencher: Bencher<'_, '_>) {
    const STRIDE: usize = 16 + 1424 + 16;
    let (header, packet) = super_packet();
    let mut send = vec![0; SEGMENTS * STRIDE];
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        let split = Split::new(header, black_box(&packet)).expect("a super-packet");
        for (i, message) in send.chunks_mut(STRIDE).enumerate() {
            split.write(i, &mut message[16..]);
        }
    });
}

/// Merges the segments of one flow into one write.
#[divan::bench]
fn merge(bencher: Bencher<'_, '_>) {
    let (segments, ranges) = segments();
    let mut buffer = segments.clone();
    let mut merger = Merger::new();
    let coalesce = Coalesce {
        tcp: true,
        udp: true,
    };
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        // Merging edits the headers of the first segment.
        buffer[..HEADERS].copy_from_slice(&segments[..HEADERS]);
        let writes = merger.merge(black_box(&mut buffer), &ranges, coalesce);
        assert_eq!(writes.len(), 1);
    });
}

/// Returns the super-packet as the kernel delivers it.
fn super_packet() -> (VirtioHeader, Vec<u8>) {
    let len = HEADERS + SEGMENTS * MSS;
    let header = VirtioHeader {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_TCPV4,
        hdr_len: HEADERS as u16,
        gso_size: MSS as u16,
        csum_start: 20,
        csum_offset: 16,
    };
    let mut packet = noise(len);
    packet[..9].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 7, 0x40, 0, 64]);
    packet[9] = 6;
    // Data offset; ACK as the only flag; no urgent pointer.
    packet[32..34].copy_from_slice(&[0x80, 0x10]);
    packet[38..40].fill(0);
    let transport_len = (len - 20) as u16;
    let pseudo_header = Sum::ZERO.pseudo_header(&packet[12..20], 6, transport_len);
    packet[36..38].copy_from_slice(&pseudo_header.folded().to_be_bytes());
    (header, packet)
}

/// The segments of [`super_packet`], at the distances of received messages.
fn segments() -> (Vec<u8>, Vec<Range<usize>>) {
    let (header, packet) = super_packet();
    let split = Split::new(header, &packet).expect("a super-packet");
    let stride = split.segment_len() + 36;
    let mut buffer = vec![0; SEGMENTS * stride];
    let ranges = (0..SEGMENTS).map(|i| {
        let start = i * stride;
        start..start + split.write(i, &mut buffer[start..])
    });
    let ranges = ranges.collect();
    (buffer, ranges)
}

/// Pseudo-random bytes (Marsaglia's xorshift64).
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}
