//! Cost of the fair queue per packet: its flow, and its way through the queue.

use divan::{Bencher, black_box};
use taupe_packet::{
    ip::Packet,
    queue::{FairQueue, FlowHasher, Shape},
};

const FLOWS: [u64; 4] = [1, 4, 100, 1000];

fn main() {
    divan::main();
}

/// Hashes the addresses, protocol and ports of a packet.
#[divan::bench(args = ["IPv4", "IPv6"])]
fn flow(bencher: Bencher<'_, '_>, family: &str) {
    let mut packet = vec![0; 100];
    match family {
        "IPv4" => {
            packet[..4].copy_from_slice(&[0x45, 0, 0, 100]);
            packet[9] = 6;
        }
        _ => {
            packet[..7].copy_from_slice(&[0x60, 0, 0, 0, 0, 60, 6]);
        }
    }
    let packet = Packet::parse(&packet).expect("a packet");
    let hasher = FlowHasher::new(&[7; 16]);
    bencher.bench_local(|| hasher.flow(black_box(&packet)));
}

/// A packet that finds the queue empty. Each comes from the next flow.
#[divan::bench(args = FLOWS)]
fn through_the_empty_queue(bencher: Bencher<'_, '_>, flows: u64) {
    let mut queue = FairQueue::new();
    let mut now = 1_000_000_000;
    bencher.bench_local(|| {
        now += 1000;
        enqueue(&mut queue, now, now / 1000 % flows, 1);
        dequeue(&mut queue, now)
    });
}

/// A super-packet that leaves a queue of 20 when another has come.
#[divan::bench(args = FLOWS)]
fn through_a_long_queue(bencher: Bencher<'_, '_>, flows: u64) {
    let mut queue = FairQueue::new();
    let mut now = 1_000_000_000;
    for i in 0..20 {
        enqueue(&mut queue, now, i % flows, 44);
    }
    let mut flow = 0;
    bencher.bench_local(|| {
        now += 1000;
        flow = (flow + 1) % flows;
        enqueue(&mut queue, now, flow, 44);
        dequeue(&mut queue, now)
    });
}

fn enqueue(queue: &mut FairQueue<u32>, now: u64, flow: u64, segments: usize) {
    // Spread over the buckets as by a hash.
    let flow = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
    let shape = Shape::new(flow, true, segments, 1420, 1420);
    queue.enqueue(now, 1, black_box(shape), &mut |_| ());
}

fn dequeue(queue: &mut FairQueue<u32>, now: u64) -> usize {
    let portion = queue.dequeue(now, usize::MAX, &mut |_| ());
    let bytes = portion.map_or(0, |portion| portion.bytes);
    queue.note_sent(now, bytes, true);
    bytes
}
