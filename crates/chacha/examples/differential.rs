//! Random batches through the vector code and through AWS-LC, which must agree:
//! as many packets as the argument says, on all processors.
//!
//! `cargo run --release -p taupe-chacha --example differential 1000000000`

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/common/differential.rs"]
mod differential;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// From one line of progress to the next.
const PROGRESS: Duration = Duration::from_secs(60);

fn main() {
    if !common::is_supported() {
        println!("this processor has neither AVX2 with BMI2 nor NEON: nothing to compare");
        return;
    }
    let packets: u64 = match std::env::args().nth(1).map(|word| word.parse()) {
        None => 10_000_000,
        Some(Ok(packets)) => packets,
        Some(Err(error)) => panic!("the number of packets: {error}"),
    };
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    // Other batches each time; a batch that fails is named with its seed.
    let seed = SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(1, |since| since.as_nanos() as u64);
    let done = AtomicU64::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for number in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let (mut mine, mut told) = (0, Instant::now());
                differential::run(
                    seed.wrapping_add(number),
                    packets.div_ceil(threads),
                    |now| {
                        let all = done.fetch_add(now - mine, Ordering::Relaxed) + now - mine;
                        mine = now;
                        if number == 0 && told.elapsed() > PROGRESS {
                            told = Instant::now();
                            println!("{all} of {packets} packets, {:.0?}", began.elapsed());
                        }
                    },
                );
            });
        }
    });
    let done = done.into_inner();
    println!("{done} packets agree, {:.0?}", began.elapsed());
}
