//! Model of the note about pending work. loom tries the orders of the steps of the threads. The lock
//! of the queue orders memory too.

use loom::sync::{Arc, Mutex};
use loom::thread;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
}

#[allow(clippy::duplicate_mod, reason = "this copy has loom's atomics")]
#[path = "pending_work.rs"]
mod pending_work;

use pending_work::PendingWork;

/// [`super::Tunnel`], reduced to the queue, the note, and the work done.
struct Tunnel {
    queue: Mutex<u32>,
    pending_work: PendingWork,
    control: Mutex<u32>,
}

impl Tunnel {
    /// Queues work, as `WorkQueue::post` of `taupe-protocol` does.
    fn post(&self) {
        *self.queue.lock().expect("no thread has panicked") += 1;
        self.pending_work.note();
    }

    /// As `Tunnel::run_pending_work`.
    fn run_pending_work(&self) {
        if !self.pending_work.is_noted() {
            return;
        }
        let mut done = self.control.lock().expect("no thread has panicked");
        if self.pending_work.take() {
            let mut queue = self.queue.lock().expect("no thread has panicked");
            *done += std::mem::take(&mut *queue);
        }
    }
}

#[test]
fn no_work_is_left_without_a_note() {
    loom::model(|| {
        let tunnel = Arc::new(Tunnel {
            queue: Mutex::new(0),
            pending_work: PendingWork::new(),
            control: Mutex::new(0),
        });
        let threads = [0, 1].map(|_| {
            let tunnel = Arc::clone(&tunnel);
            thread::spawn(move || {
                tunnel.post();
                tunnel.run_pending_work();
            })
        });
        for thread in threads {
            thread.join().expect("no panic");
        }
        // The next call of any function does what is left.
        tunnel.run_pending_work();
        assert_eq!(*tunnel.control.lock().expect("no thread has panicked"), 2);
    });
}
