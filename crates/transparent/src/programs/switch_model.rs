//! Models of eBPF programs that read the state while the daemon changes it. loom tries every order
//! of the steps of the threads, and every value that a processor with weak memory order may read.
//!
//! A program is a thread that reads without barriers. The wait for programs is a lock that programs
//! share: as in the kernel (RCU), each program has ended before the wait ends, or begins after the
//! wait has begun.

use std::convert::Infallible;

use loom::sync::{Arc, RwLock};
use loom::thread;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering};
}

#[allow(clippy::duplicate_mod, reason = "this copy has loom's atomics")]
#[path = "switch.rs"]
mod switch;

use sync::{AtomicU32, Ordering};

const LOCK_SELECTED: u32 = 0;
const LOCK_OFF: u32 = 2;

struct Kernel {
    programs: RwLock<()>,
    generation: AtomicU32,
    /// The number of the generation whose rules are in each half of the maps.
    rules: [AtomicU32; 2],
    lock: AtomicU32,
    up: AtomicU32,
}

impl Kernel {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            programs: RwLock::new(()),
            generation: AtomicU32::new(2),
            rules: [AtomicU32::new(2), AtomicU32::new(1)],
            lock: AtomicU32::new(LOCK_OFF),
            up: AtomicU32::new(1),
        })
    }

    fn wait_for_programs(&self) -> Result<(), Infallible> {
        drop(self.programs.write().expect("no thread has panicked"));
        Ok(())
    }

    /// Runs a program beside `change`.
    fn beside(change: impl FnOnce(&Self) + 'static, program: impl FnOnce(&Self) + 'static) {
        let kernel = Self::new();
        let daemon = Arc::clone(&kernel);
        let daemon = thread::spawn(move || change(&daemon));
        {
            let _running = kernel.programs.read().expect("no thread has panicked");
            program(&kernel);
        }
        daemon.join().expect("no panic");
    }

    fn write_rules(&self) {
        self.rules[1].store(3, Ordering::Relaxed);
    }

    /// Decides by the rules of the generation in use.
    fn decide(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        let rules = self.rules[generation as usize & 1].load(Ordering::Relaxed);
        assert_eq!(rules, generation, "rules of another generation");
    }
}

#[test]
fn a_program_decides_by_the_rules_of_its_generation() {
    loom::model(|| {
        let replace = |kernel: &Kernel| {
            kernel.write_rules();
            let wait = || kernel.wait_for_programs();
            switch::switch(&kernel.generation, 3, wait).expect("infallible");
        };
        Kernel::beside(replace, Kernel::decide);
    });
}

/// The model sees what a processor with weak memory order does.
#[test]
#[should_panic(expected = "rules of another generation")]
fn without_a_wait_a_program_reads_rules_of_another_generation() {
    loom::model(|| {
        let replace = |kernel: &Kernel| {
            kernel.write_rules();
            kernel.generation.store(3, Ordering::Release);
        };
        Kernel::beside(replace, Kernel::decide);
    });
}

#[test]
fn nothing_bypasses_a_tunnel_that_goes_down_after_it_was_locked() {
    loom::model(|| {
        let end = |kernel: &Kernel| {
            let wait = || kernel.wait_for_programs();
            switch::set(&kernel.lock, LOCK_SELECTED, wait).expect("infallible");
            kernel.up.store(0, Ordering::Release);
        };
        // `may_bypass_tunnel` of `bpf/state.h`.
        let program = |kernel: &Kernel| {
            let is_off = kernel.lock.load(Ordering::Relaxed) == LOCK_OFF;
            let is_up = kernel.up.load(Ordering::Relaxed) != 0;
            assert!(!is_off || is_up, "a packet bypasses the tunnel");
        };
        Kernel::beside(end, program);
    });
}
