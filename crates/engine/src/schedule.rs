//! The threads that carry packets: which thread waits for which source.
//!
//! A [`PacketPath`] carries packets from one source, the TUN or a socket, to their destination. It
//! is in one of two states:
//!
//! ```text
//!          its lane has little to do for 50 ms
//!            ┌───────────────────────────────────┐
//!            │                                   ▼
//!   dedicated: a thread of its own      shared: one thread for all light paths
//!   waits in the call that reads        waits in poll, may poll busily
//!            ▲                                   │
//!            └───────────────────────────────────┘
//!               1.6 Gbit/s, or 75 % of the thread's time
//! ```
//!
//! Dedicated threads give the highest throughput: each waits in the call that reads, so a batch
//! costs no other system call. While traffic is light, latency counts instead. A request then
//! wakes one thread and its answer wakes another, perhaps on a processor that is asleep or that
//! another program uses. So paths with little to do migrate to the shared thread, which waits for
//! all sources with `poll`. This costs one more system call per packet. When the shared thread has
//! much to do, the paths of every lane that it has carried migrate back.
//!
//! Even one thread is slow if it sleeps between a request and its answer, because its idle
//! processor halts and has to be woken. While short packets go back and forth, the shared thread
//! may busy-poll before it sleeps (`busy_poll.rs`). All of this depends on the measured load
//! (`load.rs`).
//!
//! A path moves between threads through channels, as a value. So two threads can never read one
//! source, and packets stay in order: a thread sends everything it has read before it passes the
//! path on. Packets that arrive meanwhile wait in the kernel. When a source ends, its path is
//! dropped and its dedicated thread ends.
//!
//! All lanes of a device ([`crate::lane`]) have one shared thread. The paths of a lane leave it and
//! come back together, depending on the load of this lane ([`LaneLoad`]). So there are as many
//! dedicated threads as the busy lanes need, and one thread carries the rest.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use taupe_packet::ip::Family;
use taupe_protocol::LaneId;
use taupe_runtime::clock;
use taupe_runtime::system::thread_cpu_time;
use tracing::trace;

use crate::options::Offloads;
use crate::shared::Waker;
use busy_poll::BusyPoll;
use lane_load::{Carried, SharedLoad};
use load::{Load, Meter, Turn};

pub(crate) use lane_load::LaneLoad;

mod busy_poll;
mod lane_load;
pub(crate) mod load;

/// All threads of a lane must have had little to do for this long before its paths migrate to the
/// shared thread. The time is longer than the pauses within a stream.
const LIGHT_TIME: Duration = Duration::from_millis(50);

/// Bytes in 10 ms from which traffic is heavy: 1.6 Gbit/s.
const HEAVY_BYTES: u64 = 2_000_000;

/// Bytes in 10 ms below which traffic is light: 0.8 Gbit/s.
const LIGHT_BYTES: u64 = 1_000_000;

/// The shared thread is overloaded if it is busy for this percentage of the time. Two programs of
/// one machine that exchange single packets stay below it, even if everything runs on one
/// processor, because the programs and the other device take their share.
const OVERLOADED: u64 = 75;

/// A path may migrate to the shared thread if its own thread is busy for less than this percentage
/// of the time.
const LIGHT_BUSY: u64 = 33;

/// Carries packets from one source.
pub(crate) trait PacketPath: Send {
    /// The descriptor that becomes readable when there are packets.
    fn source(&self) -> BorrowedFd<'_>;

    /// Carries the packets that wait in the source. If `waits` is true, blocks until there is one;
    /// otherwise the source must be readable, or the path has a backlog. Breaks if the source has
    /// ended.
    fn turn(&mut self, waits: bool) -> ControlFlow<(), Turn>;

    /// Returns the time after which packets that wait in the path itself can be sent. `None` if there
    /// are none; only then may the path block or migrate to the shared thread.
    fn backlog(&self) -> Option<Duration> {
        None
    }
}

/// A path of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PathId {
    pub(crate) lane: LaneId,
    pub(crate) direction: Direction,
}

/// Direction of a path, and the address family of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Outbound,
    Inbound(Family),
}

/// A descriptor that the shared thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    /// The waker: a path has arrived, or the thread has to end.
    Waker,
    Source(PathId),
}

/// Handle to the shared thread of a device, for the dedicated threads.
pub(crate) struct SharedThread {
    pub(crate) offloads: Offloads,
    arrivals: mpsc::Sender<Migrating>,
    /// Wakes the shared thread when a path arrives.
    waker: Waker,
    load: SharedLoad,
    ended: AtomicBool,
}

/// A path that migrates to the shared thread and back.
pub(crate) struct Migrating {
    id: PathId,
    path: Box<dyn PacketPath>,
    /// The load of its lane.
    load: Arc<LaneLoad>,
    /// Set until the end of the shared thread's window in which it has arrived.
    has_arrived: bool,
    /// The channel back to the dedicated thread. That thread waits for the path and ends if the
    /// channel is dropped.
    own_thread: mpsc::Sender<Self>,
}

impl SharedThread {
    /// Returns the handle, and the receiver for [`run_shared`].
    ///
    /// # Errors
    ///
    /// The system's error if no descriptor is left.
    pub(crate) fn new(offloads: Offloads) -> Result<(Self, mpsc::Receiver<Migrating>), Errno> {
        let (arrivals, receiver) = mpsc::channel();
        let shared_thread = Self {
            offloads,
            arrivals,
            waker: Waker::new()?,
            load: SharedLoad::default(),
            ended: AtomicBool::new(false),
        };
        Ok((shared_thread, receiver))
    }

    /// Ends the shared thread and drops the paths that it holds.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// Runs the dedicated thread of a path. The thread carries packets while its lane is busy.
/// Otherwise it passes the path to the shared thread and waits until the path comes back. Returns
/// when the source has ended. `id` is unique among the paths of the device at any time.
pub(crate) fn run_dedicated(
    shared_thread: &SharedThread,
    load: &Arc<LaneLoad>,
    id: PathId,
    path: Box<dyn PacketPath>,
) {
    let (own_thread, returns) = mpsc::channel();
    let mut migrating = Migrating {
        id,
        path,
        load: Arc::clone(load),
        has_arrived: true,
        own_thread,
    };
    let mut meter = Meter::default();
    loop {
        let may_block = wait_for_backlog(&*migrating.path);
        let ControlFlow::Continue(turn) = migrating.path.turn(may_block) else {
            return;
        };
        let Some(window) = meter.note(&turn, thread_cpu_time) else {
            continue;
        };
        // With the load of other lanes, or all lanes with little traffic would come at once, overload
        // the shared thread, and leave again.
        if !is_light(window.and(load.others_on(&shared_thread.load))) {
            load.note_busy(turn.ended);
        }
        if load.is_busy(turn.ended) || migrating.path.backlog().is_some() {
            continue;
        }
        load.arrive_on(&shared_thread.load, window);
        if shared_thread.arrivals.send(migrating).is_err() {
            return;
        }
        shared_thread.waker.wake();
        let Ok(returned) = returns.recv() else {
            return;
        };
        migrating = returned;
        migrating.has_arrived = true;
    }
}

/// Waits until a path can send its backlog or its source is readable. Returns true at once if it
/// has no backlog, so that it may block in its source.
fn wait_for_backlog(path: &dyn PacketPath) -> bool {
    let Some(delay) = path.backlog() else {
        return true;
    };
    if let Some(delay) = timespec(delay) {
        let mut fds = [PollFd::from_borrowed_fd(path.source(), PollFlags::IN)];
        // After an error the path looks by itself.
        let _ = poll(&mut fds, Some(&delay));
    }
    false
}

/// Returns `None` for no time.
fn timespec(delay: Duration) -> Option<Timespec> {
    let delay = (!delay.is_zero()).then_some(delay)?;
    Timespec::try_from(delay).ok()
}

/// Runs the shared thread. It carries the packets of the paths that have arrived. It sends the paths
/// of a lane back if a dedicated thread of this lane is busy, or if the shared thread is overloaded
/// and the lane has had packets.
pub(crate) fn run_shared(shared_thread: &SharedThread, arrivals: &mpsc::Receiver<Migrating>) {
    let mut paths: Vec<Migrating> = Vec::new();
    let mut ready = Vec::new();
    let mut meter = Meter::default();
    let mut busy_poll = BusyPoll::new(shared_thread.offloads.busy_poll);
    let mut carried = Carried::default();
    while !shared_thread.ended.load(Ordering::Relaxed) {
        let mut window = None;
        match wait(shared_thread, &paths, &mut busy_poll, &mut ready) {
            Ok(()) => {
                paths.retain_mut(|it| {
                    if !ready.contains(&Token::Source(it.id)) {
                        return true;
                    }
                    let ControlFlow::Continue(turn) = it.path.turn(false) else {
                        return false;
                    };
                    busy_poll.note(it.id.direction, &turn);
                    carried.note(&it.load, &turn);
                    if let Some(load) = meter.note(&turn, thread_cpu_time) {
                        // One pass may end several windows: the heaviest counts.
                        let heaviest = window.map_or(load, |(before, _)| load.max(before));
                        window = Some((heaviest, turn.ended));
                    }
                    true
                });
                if ready.contains(&Token::Waker) {
                    shared_thread.waker.reset();
                    paths.extend(arrivals.try_iter());
                }
            }
            Err(Errno::INTR) => {}
            Err(error) => {
                // Dedicated threads need no poll: send every path back.
                trace!(%error, "waiting for packets");
                let now = clock::boot();
                paths.iter().for_each(|it| it.load.note_busy(now));
                window = Some((Load::default(), now));
            }
        }
        let Some((load, now)) = window else {
            continue;
        };
        let parts = carried.parts(load);
        if is_heavy(load) {
            parts.iter().for_each(|(lane, _)| lane.note_busy(now));
        }
        for path in paths.extract_if(.., |it| it.load.is_busy(now)) {
            path.load.leave();
            let own_thread = path.own_thread.clone();
            let _ = own_thread.send(path);
        }
        let stays = paths.iter_mut().map(|it| {
            let has_arrived = std::mem::take(&mut it.has_arrived);
            (&it.load, has_arrived)
        });
        shared_thread.load.divide(stays, &parts);
    }
}

fn is_heavy(load: Load) -> bool {
    load.bytes >= HEAVY_BYTES || load.busy >= OVERLOADED
}

fn is_light(load: Load) -> bool {
    load.bytes < LIGHT_BYTES && load.busy < LIGHT_BUSY
}

/// Waits until a source is readable or a path arrives. Puts the tokens of the readable descriptors
/// into `ready`.
fn wait(
    shared_thread: &SharedThread,
    paths: &[Migrating],
    busy_poll: &mut BusyPoll,
    ready: &mut Vec<Token>,
) -> Result<(), Errno> {
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let sources = paths.iter().map(|it| Token::Source(it.id));
    let tokens = sources.chain([Token::Waker]);
    let mut fds = Vec::with_capacity(paths.len() + 1);
    fds.extend(paths.iter().map(|it| watch(it.path.source())));
    fds.push(watch(shared_thread.waker.fd()));
    let backlogs = paths.iter().filter_map(|it| it.path.backlog());
    match backlogs.min() {
        Some(delay) => {
            poll(&mut fds, Some(&timespec(delay).unwrap_or_default()))?;
        }
        None if busy_poll.poll_briefly(&mut fds)? => {}
        None => {
            poll(&mut fds, None)?;
        }
    }
    ready.clear();
    let readable = tokens.zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
    ready.extend(readable.map(|(token, _)| token));
    let backlogs = paths.iter().filter(|it| it.path.backlog().is_some());
    ready.extend(backlogs.map(|it| Token::Source(it.id)));
    Ok(())
}

#[cfg(test)]
mod tests;
