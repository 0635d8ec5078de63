//! Allowed IPs with 1 to 10^6 prefixes: `cargo bench -p taupe-protocol --bench allowed_ips`.
//!
//! `hosts` are consecutive single addresses, as a server assigns them to clients. `mixed` are
//! prefixes of all lengths from /12 to /32, or /32 to /128, spread over all addresses.

use std::hint::black_box;
use std::net::IpAddr;

use divan::Bencher;
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::testing::AllowedIps;

/// Number of different addresses looked up in turn: too many for the processor's caches to hold
/// all the nodes used.
const LOOKUPS: usize = 1 << 16;

const SIZES: [usize; 4] = [1, 1_000, 100_000, 1_000_000];

fn main() {
    divan::main();
}

#[derive(Clone, Copy)]
enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy)]
enum Shape {
    Hosts,
    Mixed,
}

use Family::{V4, V6};
use Shape::{Hosts, Mixed};

/// Returns the `index`th prefix.
fn prefix(family: Family, shape: Shape, index: usize) -> IpNet {
    let mixed = scramble(index as u64);
    let (address, length) = match (family, shape) {
        (V4, Hosts) => (v4(0x0a00_0000 + index as u32), 32),
        (V6, Hosts) => (v6((0xfd00_u128 << 112) + index as u128), 128),
        (V4, Mixed) => (v4(mixed as u32), 12 + (mixed >> 32) % 21),
        (V6, Mixed) => (v6(u128::from(mixed) << 64), 32 + (mixed >> 16) % 97),
    };
    IpNet::new(address, length as u8).expect("a length of the family")
}

fn v4(bits: u32) -> IpAddr {
    IpAddr::V4(bits.into())
}

fn v6(bits: u128) -> IpAddr {
    IpAddr::V6(bits.into())
}

/// The finaliser of `SplitMix64`, a bijection: different indices give different results.
fn scramble(index: u64) -> u64 {
    let x = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn table(family: Family, shape: Shape, size: usize) -> AllowedIps<u32> {
    let mut table = AllowedIps::default();
    for index in 0..size {
        table.insert(prefix(family, shape, index), index as u32);
    }
    table
}

fn look_up(bencher: Bencher<'_, '_>, family: Family, shape: Shape, size: usize, first: usize) {
    let table = table(family, shape, size);
    let addresses: Vec<IpAddr> = (0..LOOKUPS as u64)
        .map(|i| first + (scramble(i) % size as u64) as usize)
        .map(|index| prefix(family, shape, index).addr())
        .collect();
    let mut turn = 0;
    bencher.bench_local(|| {
        turn = (turn + 1) % LOOKUPS;
        black_box(table.lookup(black_box(addresses[turn])));
    });
}

macro_rules! benches {
    ($module:ident, $family:ident, $shape:ident) => {
        mod $module {
            use super::*;

            #[divan::bench(args = SIZES)]
            fn hit(bencher: Bencher<'_, '_>, size: usize) {
                look_up(bencher, $family, $shape, size, 0);
            }

            /// Looks up addresses that no prefix was made from. A few of the mixed ones are
            /// covered.
            #[divan::bench(args = SIZES)]
            fn miss(bencher: Bencher<'_, '_>, size: usize) {
                look_up(bencher, $family, $shape, size, size);
            }

            /// Adds one prefix to a copy, while readers hold the table.
            #[divan::bench(args = SIZES)]
            fn change(bencher: Bencher<'_, '_>, size: usize) {
                let table = table($family, $shape, size);
                let more = prefix($family, $shape, size + 7);
                bencher.bench_local(|| {
                    let mut changed = table.clone();
                    changed.insert(black_box(more), 0);
                    changed
                });
            }

            /// Builds the table.
            #[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
            fn build(size: usize) -> AllowedIps<u32> {
                table($family, $shape, size)
            }
        }
    };
}

benches!(hosts4, V4, Hosts);
benches!(hosts6, V6, Hosts);
benches!(mixed4, V4, Mixed);
benches!(mixed6, V6, Mixed);
