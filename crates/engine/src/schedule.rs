//! Which thread waits for what.
//!
//! A [`Carrier`] takes packets from one source, the TUN or a socket, to where
//! they go. It has a thread of its own, which waits in the very call that reads:
//! nothing carries more. But while there is little to carry, what counts is how
//! soon a packet is on its way again, and then it is dear that two threads take
//! turns: each has gone to sleep, on a processor that is asleep too or that
//! another program has by now. So a thread whose carrier has little to do
//! hands it over to one common thread. That waits for the sources of all with
//! `poll`, one system call more for each packet, and carries both ways. When it
//! gets much to do, it gives every carrier back.
//!
//! Even one thread that sleeps between a question and its answer costs more than
//! all it does for them: its processor halts, and has to be woken. While short
//! packets go to and fro at once, it looks a while before it sleeps.
//!
//! A carrier is moved, from thread to thread and through channels, so that no
//! two threads can ever read one source, and nothing is carried by the next
//! thread before all that the last one has read is on its way. What arrives
//! meanwhile waits in the kernel. A carrier whose source has ended is dropped,
//! wherever it is; its thread ends with it.

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
use busy_poll::Conversation;
use load::{Load, Meter, Round};

mod bulk;
mod busy_poll;
pub(crate) mod load;

/// How long all have had little to do before one thread carries everything
/// again: longer than a stream takes breath.
const LULL: Duration = Duration::from_millis(50);

/// Percent of its time at which a common thread is not enough. A packet that goes
/// to and fro between two programs of one machine takes less, even when all share
/// one processor: there is another device, and there are the programs.
const TOO_BUSY: u64 = 75;

/// Percent of its time that a thread may take and yet share one with another.
const IDLE: u64 = 33;

/// Carries what comes from one source.
pub(crate) trait Carrier: Send {
    /// What becomes readable when there is something to carry.
    fn source(&self) -> BorrowedFd<'_>;

    /// Carries what is there; waits for it first, or has been told that there
    /// is something. Breaks when the source has ended.
    fn round(&mut self, waits: bool) -> ControlFlow<(), Round>;
}

/// What the threads that carry packets have in common.
pub(crate) struct Common {
    arrivals: mpsc::Sender<Guest>,
    /// Wakes the common thread for those who arrive.
    waker: Waker,
    /// When a thread last had much to do, in nanoseconds of the boot clock.
    busy_at: AtomicU64,
    ended: AtomicBool,
}

/// A carrier on its way to the common thread and back.
pub(crate) struct Guest {
    carrier: Box<dyn Carrier>,
    /// Its own thread, which waits for it as long as this exists.
    home: mpsc::Sender<Self>,
}

impl Common {
    /// What is returned beside it is for [`together`].
    ///
    /// # Errors
    ///
    /// The system's, when it has no more descriptors.
    pub(crate) fn new() -> Result<(Arc<Self>, mpsc::Receiver<Guest>), Errno> {
        let (arrivals, guests) = mpsc::channel();
        let common = Self {
            arrivals,
            waker: Waker::new()?,
            busy_at: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        Ok((Arc::new(common), guests))
    }

    /// Ends the common thread, and with it whatever it carries.
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

/// A carrier's own thread: carries while any has much to do, and leaves it to
/// the common thread otherwise. Returns when the source has ended.
pub(crate) fn alone(common: &Common, carrier: Box<dyn Carrier>) {
    let (home, returns) = mpsc::channel();
    let mut guest = Guest { carrier, home };
    let (mut meter, mut bulk) = (Meter::default(), Bulk::default());
    loop {
        let ControlFlow::Continue(round) = guest.carrier.round(true) else {
            return;
        };
        let Some(load) = meter.note(&round, clock::thread) else {
            continue;
        };
        bulk.follow(load);
        if !has_little(load) {
            common.note_busy(round.ended);
        }
        if common.is_busy(round.ended) {
            continue;
        }
        if common.arrivals.send(guest).is_err() {
            return;
        }
        common.waker.wake();
        let Ok(returned) = returns.recv() else {
            return;
        };
        guest = returned;
    }
}

/// The common thread.
pub(crate) fn together(common: &Common, arrivals: &mpsc::Receiver<Guest>) {
    let mut guests: Vec<Guest> = Vec::new();
    let mut meter = Meter::default();
    let mut talk = Conversation::new();
    while !common.ended.load(Ordering::Relaxed) {
        let mut window = None;
        match wait(common, &guests, &mut talk) {
            Ok(Ready { arrived, sources }) => {
                let mut sources = sources.into_iter().enumerate();
                guests.retain_mut(|guest| {
                    let Some((source, true)) = sources.next() else {
                        return true;
                    };
                    let ControlFlow::Continue(round) = guest.carrier.round(false) else {
                        return false;
                    };
                    talk.note(source, &round);
                    if let Some(load) = meter.note(&round, clock::thread) {
                        window = Some((load, round.ended));
                    }
                    true
                });
                if arrived {
                    common.waker.reset();
                    guests.extend(arrivals.try_iter());
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                // Each can wait for itself.
                trace!(%error, "waiting for packets");
                let now = clock::boot();
                common.note_busy(now);
                window = Some((Load::default(), now));
            }
        }
        let Some((load, now)) = window else {
            continue;
        };
        if has_much(load) {
            common.note_busy(now);
        }
        if common.is_busy(now) {
            for guest in guests.drain(..) {
                let home = guest.home.clone();
                let _ = home.send(guest);
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

/// What the common thread was woken by.
struct Ready {
    arrived: bool,
    /// For each guest, whether there is something to carry.
    sources: Vec<bool>,
}

fn wait(common: &Common, guests: &[Guest], talk: &mut Conversation) -> Result<Ready, Errno> {
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = Vec::with_capacity(guests.len() + 1);
    fds.extend(guests.iter().map(|guest| watch(guest.carrier.source())));
    fds.push(watch(common.waker.fd()));
    if !talk.is_answered(&mut fds)? {
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
