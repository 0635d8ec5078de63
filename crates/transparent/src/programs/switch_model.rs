//! Models of eBPF programs that read the state while the daemon changes it. loom tries the orders
//! of the steps of the threads, and the values that an atomic read may return.
//!
//! A program is a thread that reads without barriers. The wait for programs is a lock that programs
//! share: as in the kernel (RCU), each program has ended before the wait ends, or begins after the
//! wait has begun.

use std::convert::Infallible;

use loom::sync::{Arc, Mutex, RwLock};
use loom::thread;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering};
}

#[allow(clippy::duplicate_mod, reason = "this copy has loom's atomics")]
#[path = "switch.rs"]
mod switch;

use switch::MemoryOrder;
use sync::{AtomicU32, Ordering};

const LOCK_SELECTED: u32 = 0;
const LOCK_OFF: u32 = 2;

struct Kernel {
    programs: RwLock<()>,
    /// Held by the process that changes the state.
    changes: Mutex<()>,
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
            changes: Mutex::new(()),
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
    fn beside(change: impl FnOnce(&Arc<Self>) + 'static, program: impl FnOnce(&Self) + 'static) {
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
        let replace = |kernel: &Arc<Kernel>| {
            kernel.write_rules();
            let wait = || kernel.wait_for_programs();
            switch::switch(&kernel.generation, 3, MemoryOrder::Weak, wait).expect("infallible");
        };
        Kernel::beside(replace, Kernel::decide);
    });
}

/// loom's memory is weaker than that of any processor, so there is no model of [`MemoryOrder::Total`].
#[test]
fn only_x86_keeps_the_order_of_stores() {
    assert_eq!(MemoryOrder::of(b"x86_64"), MemoryOrder::Total);
    for machine in [&b"aarch64"[..], b"riscv64", b"armv7l", b"i686", b""] {
        assert_eq!(MemoryOrder::of(machine), MemoryOrder::Weak);
    }
}

/// The model sees what a processor with weak memory order does.
#[test]
#[should_panic(expected = "rules of another generation")]
fn without_a_wait_a_program_reads_rules_of_another_generation() {
    loom::model(|| {
        let replace = |kernel: &Arc<Kernel>| {
            kernel.write_rules();
            kernel.generation.store(3, Ordering::Release);
        };
        Kernel::beside(replace, Kernel::decide);
    });
}

/// `may_bypass_tunnel` of `bpf/state.h`.
fn send(kernel: &Kernel) {
    let is_off = kernel.lock.load(Ordering::Relaxed) == LOCK_OFF;
    let is_up = kernel.up.load(Ordering::Relaxed) != 0;
    assert!(!is_off || is_up, "a packet bypasses the tunnel");
}

/// The steps of `Programs::set_lock`.
fn set_lock(kernel: &Kernel) {
    let _change = kernel.changes.lock().expect("no thread has panicked");
    switch::set(&kernel.lock, LOCK_SELECTED, || kernel.wait_for_programs()).expect("infallible");
}

#[test]
fn nothing_bypasses_a_tunnel_that_goes_down_after_it_was_locked() {
    loom::model(|| {
        let end = |kernel: &Arc<Kernel>| {
            set_lock(kernel);
            kernel.up.store(0, Ordering::Release);
        };
        Kernel::beside(end, send);
    });
}

/// A reload sets the kill switch while another process ends the tunnel, and finds it set.
#[test]
fn nothing_bypasses_a_tunnel_that_another_process_locks() {
    loom::model(|| {
        let end = |kernel: &Arc<Kernel>| {
            let reload = Arc::clone(kernel);
            let reload = thread::spawn(move || set_lock(&reload));
            set_lock(kernel);
            kernel.up.store(0, Ordering::Release);
            reload.join().expect("no panic");
        };
        Kernel::beside(end, send);
    });
}

/// Without waiting for a kill switch that is set already.
#[test]
#[should_panic(expected = "a packet bypasses the tunnel")]
fn a_lock_that_is_not_waited_for_lets_a_packet_bypass_the_tunnel() {
    loom::model(|| {
        let end = |kernel: &Arc<Kernel>| {
            let reload = Arc::clone(kernel);
            let reload = thread::spawn(move || set_lock(&reload));
            if kernel.lock.load(Ordering::Relaxed) == LOCK_OFF {
                set_lock(kernel);
            }
            kernel.up.store(0, Ordering::Release);
            reload.join().expect("no panic");
        };
        Kernel::beside(end, send);
    });
}
