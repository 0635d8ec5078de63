//! Taupe on 64-bit ARM, in a virtual machine with Debian's kernel for it.
//!
//! Some tests are those of other suites, built for 64-bit ARM and run inside. In
//! `peers_of_this_machine`, Taupe inside has a tunnel with programs of this machine, over a TAP
//! interface. With `ARM64=whole` in the environment, as in the long tests, more of them run, on three
//! kernels, and other builds of the command are tried. `ARM64` may also have the
//! names of tests that run inside on these kernels, such as `exec/hybrid_peer,quick/hooks_in_order`.

mod builds;
mod cross;
mod inside;
mod outside;

use std::time::Duration;

use taupe_lab::guest::{self, Kernel};
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

/// For a guest's boot and its tests, on an emulated processor that shares the real ones with other
/// tests.
const LIMIT: Duration = Duration::from_secs(1800);

fn main() {
    let mut tests = vec![
        SystemTest::new("debian_12", || inside::run(Kernel::Arm64)),
        SystemTest::new("peers_of_this_machine", outside::peers_of_this_machine),
    ];
    let mut kernels = vec![Kernel::Arm64];
    if inside::is_more() {
        tests.extend([
            SystemTest::new("backports", || inside::run(Kernel::Arm64Backports)),
            SystemTest::new("pages_of_16_kib", || inside::run(Kernel::Arm64Backports16K)),
        ]);
        kernels.extend([Kernel::Arm64Backports, Kernel::Arm64Backports16K]);
    }
    if inside::is_whole() {
        tests.extend([
            SystemTest::new(
                "static_program_in_empty_root",
                builds::static_program_in_empty_root,
            ),
            SystemTest::new("program_of_32_bits", builds::program_of_32_bits),
        ]);
    }
    let limit = guest::BOOT + LIMIT * if inside::is_more() { 6 } else { 1 };
    let tests = tests.into_iter().map(|test| test.limit(limit));
    let suite = Suite::new(tests.collect())
        .parallel(1)
        .prepare(|| cross::build(&inside::programs()?))
        .prepare(|| inside::install_peer().map(drop))
        .prepare(|| Implementation::Taupe.install().map(drop));
    let peers = outside::PEERS.into_iter().filter(|_| inside::is_whole());
    let mut suite = peers.fold(suite, |suite, peer| {
        suite.prepare(move || peer.install().map(drop))
    });
    if inside::is_whole() {
        suite = suite.prepare(cross::build_others);
    }
    kernels
        .into_iter()
        .fold(suite, |suite, kernel| {
            suite.prepare(move || kernel.install().map(drop))
        })
        .main()
}
