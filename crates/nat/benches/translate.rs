//! Cost of translation: a super-packet on its way out, and packets of a full tunnel on their way
//! in, for one flow and for many in turn.

use std::net::Ipv4Addr;

use divan::{Bencher, black_box, counter::ItemsCount};
use taupe_nat::{
    flows,
    translate::{Outcome, Settings, Translator},
};
use taupe_packet::{
    checksum::Sum,
    virtio::{self, VirtioHeader},
};
use taupe_protocol::time::Instant;

const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 10);
const TUNNEL: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

const NOW: Instant = Instant(1_000_000_000_000);

/// Packets per batch.
const BATCH: usize = 64;

const FLOWS: [usize; 4] = [1, 4, 100, 10_000];

fn main() {
    // The first checksum detects the CPU's features.
    black_box(Sum::ZERO.bytes(&[0; 64]));
    divan::main();
}

/// 64 KiB per super-packet, as from the kernel. Each iteration takes the next flow.
#[divan::bench(args = FLOWS)]
fn super_packet_out(bencher: Bencher<'_, '_>, flows: usize) {
    let translator = translator();
    let mut outgoing = translator.outgoing();
    let header = VirtioHeader {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_TCPV4,
        gso_size: 1368,
        csum_start: 20,
        csum_offset: 16,
        ..VirtioHeader::default()
    };
    let mut packet = segment(LOCAL, SERVER, 65_483);
    let mut flow = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        packet[12..16].copy_from_slice(&LOCAL.octets());
        packet[20..22].copy_from_slice(&port(flow));
        flow = (flow + 1) % flows;
        let outcome = outgoing.translate(NOW, header, black_box(&mut packet));
        assert!(matches!(outcome, Outcome::Forward(_)));
    });
}

/// 1,420 bytes per packet, in batches. Each packet belongs to the next flow.
#[divan::bench(args = FLOWS)]
fn packets_in(bencher: Bencher<'_, '_>, flows: usize) {
    let translator = translator();
    let (mut outgoing, mut incoming) = (translator.outgoing(), translator.incoming());
    for flow in 0..flows {
        let mut packet = segment(LOCAL, SERVER, 0);
        packet[20..22].copy_from_slice(&port(flow));
        outgoing.translate(NOW, VirtioHeader::default(), &mut packet);
    }
    let mut packets = vec![segment(SERVER, TUNNEL, 1368); BATCH];
    let mut flow = 0;
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        let mut batch = incoming.batch(NOW);
        for packet in &mut packets {
            packet[16..20].copy_from_slice(&TUNNEL.octets());
            packet[22..24].copy_from_slice(&port(flow));
            flow = (flow + 1) % flows;
            assert!(batch.translate(black_box(packet)).is_ok());
        }
    });
}

/// Opening a flow, which displaces another once the table is full.
#[divan::bench]
fn connection(bencher: Bencher<'_, '_>) {
    let translator = translator();
    let mut outgoing = translator.outgoing();
    let mut packet = segment(LOCAL, SERVER, 0);
    packet[33] = 2;
    let mut next = 0u32;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        packet[12..16].copy_from_slice(&LOCAL.octets());
        packet[16..20].copy_from_slice(&next.wrapping_add(0x0100_0000).to_be_bytes());
        next = next.wrapping_add(1);
        let outcome = outgoing.translate(NOW, VirtioHeader::default(), black_box(&mut packet));
        assert!(matches!(outcome, Outcome::Forward(_)));
    });
}

fn translator() -> Translator {
    let translator = Translator::new(&Settings {
        v4: Some(TUNNEL),
        v6: None,
        mtu: 1420,
        dns: Vec::new(),
        capacity: flows::CAPACITY,
    });
    translator.set_main_uplink(Some(LOCAL), None);
    translator
}

fn port(flow: usize) -> [u8; 2] {
    (1024 + flow as u16).to_be_bytes()
}

/// Builds a TCP segment with timestamps and without valid checksums.
fn segment(from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> Vec<u8> {
    let total = 52 + payload;
    let mut packet = vec![0x45, 0];
    packet.extend((total as u16).to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend([
        1, 187, 1, 187, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x10, 2, 0, 0, 0, 0, 0,
    ]);
    packet.extend([1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet.resize(total, 0);
    packet
}
