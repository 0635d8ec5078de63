//! The threads that carry packets: which thread waits for which source.
//!
//! A [`PacketPath`] carries packets from one source, the TUN or a socket, to their destination. It
//! is in one of two states:
//!
//! ```text
//!               all have little to do for 50 ms
//!            ┌───────────────────────────────────┐
//!            │                                   ▼
//!   dedicated: a thread of its own      shared: one thread for all paths
//!   waits in the call that reads        waits in poll, may poll busily
//!            ▲                                   │
//!            └───────────────────────────────────┘
//!               1.6 Gbit/s, or 75 % of the thread's time
//! ```
//!
//! A dedicated thread carries the most, because it waits in the very call that reads. While there
//! are few packets, latency counts instead, and two threads that take turns are slow: each must be
//! woken, perhaps on a processor that is asleep or that another program uses. So a path with little
//! to do migrates to the shared thread. That thread waits for all sources with `poll`, at the cost
//! of one system call for each packet. When it has much to do, every path migrates back.
//!
//! Even one thread that sleeps between a question and its answer is slow: its processor halts and
//! has to be woken. While short packets go to and fro, the shared thread polls busily for a while
//! before it sleeps (`busy_poll.rs`). A dedicated thread that carries bulk asks the scheduler not
//! to preempt others (`bulk.rs`). Both rest on the measured load (`load.rs`).
//!
//! A path is moved through channels, so that no two threads can read one source, and the next
//! thread carries nothing before all that the last one has read is sent. Packets that arrive
//! meanwhile wait in the kernel. A path whose source has ended is dropped, and its thread ends.
//!
//! A device has one lane today: one TUN queue, a socket for each family, and their counters. A lane
//! is the set of paths that share one [`SharedThread`], so several lanes are several of these.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use taupe_protocol::time::Instant;
use taupe_runtime::clock;
use tracing::trace;

use crate::shared::Waker;
use bulk::{BEGINS, Bulk, ENDS};
use busy_poll::BusyPoll;
use load::{Load, Meter, Turn};

mod bulk;
mod busy_poll;
pub(crate) mod load;

/// Time for which all threads must have had little to do before paths migrate to the shared
/// thread. It is longer than the pauses of a stream.
const LULL: Duration = Duration::from_millis(50);

/// Percent of its time at which the shared thread is not enough. A packet that goes
/// to and fro between two programs of one machine takes less, even when all share
/// one processor: there is another device, and there are the programs.
const TOO_BUSY: u64 = 75;

/// Percent of its time that a thread may take and yet share one with another.
const IDLE: u64 = 33;

/// Carries packets from one source.
pub(crate) trait PacketPath: Send {
    /// The descriptor that becomes readable when there are packets.
    fn source(&self) -> BorrowedFd<'_>;

    /// Carries the packets that are there. If it `waits`, it waits for the first; otherwise the
    /// source is readable. Breaks when the source has ended.
    fn turn(&mut self, waits: bool) -> ControlFlow<(), Turn>;
}

/// The shared thread, as the dedicated threads reach it.
pub(crate) struct SharedThread {
    arrivals: mpsc::Sender<Migrating>,
    /// Wakes the shared thread for paths that arrive.
    waker: Waker,
    /// The time at which a thread last had much to do, in nanoseconds of the boot clock.
    busy_at: AtomicU64,
    ended: AtomicBool,
}

/// A path on its way to the shared thread and back.
pub(crate) struct Migrating {
    path: Box<dyn PacketPath>,
    /// Its dedicated thread, which waits for it as long as this exists.
    own_thread: mpsc::Sender<Self>,
}

impl SharedThread {
    /// The receiver is for [`run_shared`].
    ///
    /// # Errors
    ///
    /// The system's, when it has no more descriptors.
    pub(crate) fn new() -> Result<(Arc<Self>, mpsc::Receiver<Migrating>), Errno> {
        let (arrivals, receiver) = mpsc::channel();
        let shared_thread = Self {
            arrivals,
            waker: Waker::new()?,
            busy_at: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        Ok((Arc::new(shared_thread), receiver))
    }

    /// Ends the shared thread, and with it the paths that it carries.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    fn note_busy(&self, now: Instant) {
        self.busy_at.store(now.0, Ordering::Relaxed);
    }

    fn is_busy(&self, now: Instant) -> bool {
        now.since(Instant(self.busy_at.load(Ordering::Relaxed))) < LULL
    }
}

/// Runs the dedicated thread of a path. It carries while any path has much to do, and leaves its
/// path to the shared thread otherwise. Returns when the source has ended.
pub(crate) fn run_dedicated(shared_thread: &SharedThread, path: Box<dyn PacketPath>) {
    let (own_thread, returns) = mpsc::channel();
    let mut migrating = Migrating { path, own_thread };
    let (mut meter, mut bulk) = (Meter::default(), Bulk::default());
    loop {
        let ControlFlow::Continue(turn) = migrating.path.turn(true) else {
            return;
        };
        let Some(load) = meter.note(&turn, clock::thread) else {
            continue;
        };
        bulk.follow(load);
        if !has_little(load) {
            shared_thread.note_busy(turn.ended);
        }
        if shared_thread.is_busy(turn.ended) {
            continue;
        }
        if shared_thread.arrivals.send(migrating).is_err() {
            return;
        }
        shared_thread.waker.wake();
        let Ok(returned) = returns.recv() else {
            return;
        };
        migrating = returned;
    }
}

/// Runs the shared thread.
pub(crate) fn run_shared(shared_thread: &SharedThread, arrivals: &mpsc::Receiver<Migrating>) {
    let mut paths: Vec<Migrating> = Vec::new();
    let mut meter = Meter::default();
    let mut busy_poll = BusyPoll::new();
    while !shared_thread.ended.load(Ordering::Relaxed) {
        let mut window = None;
        match wait(shared_thread, &paths, &mut busy_poll) {
            Ok(Ready { arrived, sources }) => {
                let mut sources = sources.into_iter().enumerate();
                paths.retain_mut(|it| {
                    let Some((source, true)) = sources.next() else {
                        return true;
                    };
                    let ControlFlow::Continue(turn) = it.path.turn(false) else {
                        return false;
                    };
                    busy_poll.note(source, &turn);
                    if let Some(load) = meter.note(&turn, clock::thread) {
                        window = Some((load, turn.ended));
                    }
                    true
                });
                if arrived {
                    shared_thread.waker.reset();
                    paths.extend(arrivals.try_iter());
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                // Each can wait for itself.
                trace!(%error, "waiting for packets");
                let now = clock::boot();
                shared_thread.note_busy(now);
                window = Some((Load::default(), now));
            }
        }
        let Some((load, now)) = window else {
            continue;
        };
        if has_much(load) {
            shared_thread.note_busy(now);
        }
        if shared_thread.is_busy(now) {
            for path in paths.drain(..) {
                let own_thread = path.own_thread.clone();
                let _ = own_thread.send(path);
            }
        }
    }
}

fn has_much(load: Load) -> bool {
    load.bytes >= BEGINS || load.busy >= TOO_BUSY
}

fn has_little(load: Load) -> bool {
    load.bytes < ENDS && load.busy < IDLE
}

/// The events that have woken the shared thread.
struct Ready {
    arrived: bool,
    /// For each path, a flag that its source is readable.
    sources: Vec<bool>,
}

fn wait(
    shared_thread: &SharedThread,
    paths: &[Migrating],
    busy_poll: &mut BusyPoll,
) -> Result<Ready, Errno> {
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = Vec::with_capacity(paths.len() + 1);
    fds.extend(paths.iter().map(|it| watch(it.path.source())));
    fds.push(watch(shared_thread.waker.fd()));
    if !busy_poll.is_answered(&mut fds)? {
        poll(&mut fds, None)?;
    }
    let mut sources: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    Ok(Ready {
        arrived: sources.pop() == Some(true),
        sources,
    })
}

#[cfg(test)]
mod tests;
