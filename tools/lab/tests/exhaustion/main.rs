//! Full disks, read-only folders, and processes without descriptors or memory: a tunnel works or is
//! refused with its cause, nothing is left half made, and selected applications never bypass it.

mod descriptors;
mod disk;
mod memory;
mod room;
mod world;

use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};
use world::Kind;

fn main() {
    let long = Duration::from_secs(300);
    let mut tests = Vec::new();
    for kind in Kind::EACH {
        let named = |name: &str| format!("{name}_{kind}");
        tests.extend([
            // The longest tests start first.
            SystemTest::new(named("start_without_descriptors"), move || {
                descriptors::start(kind)
            })
            .limit(long),
            SystemTest::new(named("run_without_room"), move || {
                disk::run_without_room(kind)
            })
            .limit(long),
            SystemTest::new(named("start_without_memory"), move || memory::start(kind)).limit(long),
            SystemTest::new(named("no_descriptor_is_left"), move || {
                descriptors::run(kind)
            }),
            SystemTest::new(named("state_without_room"), move || {
                disk::state_without_room(kind)
            }),
            SystemTest::new(named("killed_for_memory"), move || memory::killed(kind)),
        ]);
    }
    tests.extend([
        SystemTest::new("doctor_without_descriptors", descriptors::doctor),
        SystemTest::new("changes_without_room", disk::changes_without_room),
        SystemTest::new("save_on_a_read_only_disk", disk::save_on_a_read_only_disk),
        SystemTest::new("pins_without_room", disk::pins_without_room),
    ]);
    Suite::new(tests)
        .prepare(|| Implementation::Taupe.install().map(drop))
        // The kernel's verifier occupies a processor.
        .parallel(3)
        .main()
}
