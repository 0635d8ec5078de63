//! State shared by the threads of a device, and their channels to the control loop: commands, and
//! a bounded queue of handshake messages.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use taupe_os_linux::netlink::NetworkReader;
use taupe_os_linux::udp::Socket;
use taupe_protocol::limits::{MAX_QUEUED_HANDSHAKES, UNDER_LOAD_BACKLOG};
use taupe_protocol::time::Instant;
use taupe_protocol::{
    DataPath, DropReason, Durations, Endpoint, HandshakeQueue, HandshakeResult, Histogram,
    TakenHandshakes, TokenBucket,
};
use taupe_runtime::clock;
use taupe_runtime::configuration_socket::{AnswerRequest, names_an_endpoint};
use taupe_uapi::{Counter, Request};
use zeroize::Zeroizing;

use crate::source;
use crate::underlay::{Changes, Source, Sources};
use taupe_packet::queue::QueueStats;
use taupe_packet::tap::Tap;
use taupe_runtime::resolver::Resolver;

/// A thread is busy if it waits for the next packet no longer than this. It then looks for several
/// packets at a time.
pub(crate) const BUSY: Duration = Duration::from_micros(20);

/// State shared by all threads and lanes of a device.
pub(crate) struct Shared {
    pub(crate) tap: Option<Arc<dyn Tap>>,
    pub(crate) path: Arc<DataPath>,
    /// The TUN's MTU in bytes.
    pub(crate) mtu: AtomicUsize,
    pub(crate) handshakes: Handshakes,
    pub(crate) queue_counters: QueueCounters,
    /// Times for which portions of packets have waited in the fair queues.
    pub(crate) queue_times: Histogram,
    pub(crate) underlay: UnderlayState,
    pub(crate) waker: Arc<Waker>,
    pub(crate) resolver: Arc<dyn Resolver>,
    pub(crate) icmp_errors: IcmpErrorLimit,
    commands: mpsc::Sender<Command>,
}

/// ICMP errors per second, at most, and the largest burst of them.
const ICMP_ERRORS_PER_SECOND: u64 = 100;

/// Limits the ICMP errors of all lanes (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).
#[derive(Default)]
pub(crate) struct IcmpErrorLimit(
    Mutex<TokenBucket<ICMP_ERRORS_PER_SECOND, ICMP_ERRORS_PER_SECOND>>,
);

impl IcmpErrorLimit {
    /// Returns true if an error may be sent now.
    pub(crate) fn admit(&self, now: Instant) -> bool {
        let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(now)
    }
}

/// The network that carries the device's datagrams.
pub(crate) struct UnderlayState {
    /// True if this network is not the network namespace of the process.
    pub(crate) is_other_namespace: bool,
    /// The name of the tunnel's interface, if it is in this network.
    interface: Option<String>,
    /// Opened when the device starts, because a confined process opens no socket.
    pub(crate) network: NetworkReader,
    pub(crate) changes: Changes,
    sources: Sources,
}

impl UnderlayState {
    pub(crate) fn new(
        is_other_namespace: bool,
        interface: Option<String>,
        network: NetworkReader,
    ) -> Self {
        Self {
            is_other_namespace,
            interface,
            network,
            changes: Changes::default(),
            sources: Sources::default(),
        }
    }

    /// Returns the source address for datagrams to a peer that has sent nothing yet.
    pub(crate) fn source(&self, remote: SocketAddr) -> Source {
        let Some(interface) = &self.interface else {
            return Source::Kernel;
        };
        let changes = self.changes.count();
        let mark = self.changes.mark();
        let look_up = || source::look_up(&self.network, interface, remote, mark);
        self.sources.find(changes, clock::boot(), remote, look_up)
    }

    /// Forgets the source for `remote`, so that the next send looks it up again.
    pub(crate) fn forget_source(&self, remote: SocketAddr) {
        self.sources.forget(remote);
    }
}

/// Counts of the fair queues of all lanes, in segments.
#[derive(Default)]
pub(crate) struct QueueCounters {
    marked: AtomicU64,
    dropped_as_signal: AtomicU64,
    dropped_over_limit: AtomicU64,
}

impl QueueCounters {
    /// Adds what a queue has counted since `before`.
    pub(crate) fn add(&self, before: QueueStats, now: QueueStats) {
        let add = |counter: &AtomicU64, before: u64, now: u64| {
            counter.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        };
        add(&self.marked, before.marked, now.marked);
        let signals = (before.dropped_as_signal, now.dropped_as_signal);
        add(&self.dropped_as_signal, signals.0, signals.1);
        let over_limit = (before.dropped_over_limit, now.dropped_over_limit);
        add(&self.dropped_over_limit, over_limit.0, over_limit.1);
    }

    pub(crate) fn stats(&self) -> QueueStats {
        QueueStats {
            marked: self.marked.load(Ordering::Relaxed),
            dropped_as_signal: self.dropped_as_signal.load(Ordering::Relaxed),
            dropped_over_limit: self.dropped_over_limit.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    /// Returns the counters of a device with some lanes.
    pub(crate) fn device_counters(&self, lanes: usize) -> Vec<Counter> {
        let counter = |group: &'static str, name: &'static str, count| Counter {
            group: group.into(),
            name: name.into(),
            count,
        };
        let counters = self.path.counters();
        let drops = DropReason::ALL.map(|it| counter("drop", it.code(), counters.count(it)));
        let handshakes =
            HandshakeResult::ALL.map(|it| counter("handshake", it.code(), counters.handshakes(it)));
        let QueueStats {
            marked,
            dropped_as_signal,
            dropped_over_limit,
        } = self.queue_counters.stats();
        let queue = [
            counter("queue", "marked", marked),
            counter("queue", "dropped-as-signal", dropped_as_signal),
            counter("queue", "dropped-over-limit", dropped_over_limit),
        ];
        let lanes = u64::try_from(lanes).unwrap_or(u64::MAX);
        let times = [
            (HANDSHAKE_TIMES, counters.handshake_times()),
            (QUEUE_TIMES, self.queue_times.durations()),
        ];
        let times = times
            .into_iter()
            .flat_map(|(group, times)| times_of(group, &times));
        let others = queue.into_iter().chain([counter("device", "lanes", lanes)]);
        drops
            .into_iter()
            .chain(handshakes)
            .chain(others)
            .chain(times)
            .collect()
    }
}

/// Groups of counters that are histograms, in microseconds.
const HANDSHAKE_TIMES: &str = "handshake-time";
const QUEUE_TIMES: &str = "queue-time";

/// Returns a histogram as counters: each range by its greatest duration in microseconds, the rest as
/// `more`, and the sum of the durations.
fn times_of(group: &'static str, times: &Durations) -> impl Iterator<Item = Counter> + use<> {
    let bounds = Durations::BOUNDS
        .iter()
        .map(|it| it.as_micros().to_string().into());
    let names: Vec<Cow<'static, str>> = bounds.chain(["more".into()]).collect();
    let ranges = names.into_iter().zip(times.counts());
    let sum = ("sum".into(), times.microseconds());
    ranges.chain([sum]).map(move |(name, count)| Counter {
        group: group.into(),
        name,
        count,
    })
}

/// Command from another thread to the control loop.
pub(crate) enum Command {
    /// A request on the configuration socket, and the channel for its answer.
    Uapi(Request, mpsc::SyncSender<Zeroizing<String>>),
    /// The configuration socket has been removed.
    SocketRemoved,
    /// This UDP socket no longer receives: bind the sockets again.
    SocketFailed(Weak<Socket>),
    TunDeleted,
    /// A thread cannot continue.
    Failed(String),
    /// The owner ends the device.
    Stop,
}

impl Shared {
    pub(crate) fn new(
        tap: Option<Arc<dyn Tap>>,
        path: Arc<DataPath>,
        waker: Arc<Waker>,
        resolver: Arc<dyn Resolver>,
        underlay: UnderlayState,
    ) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        let shared = Self {
            tap,
            path,
            mtu: AtomicUsize::new(0),
            handshakes: Handshakes::default(),
            queue_counters: QueueCounters::default(),
            queue_times: Histogram::default(),
            underlay,
            waker,
            resolver,
            icmp_errors: IcmpErrorLimit::default(),
            commands,
        };
        (shared, receiver)
    }

    /// Sends a command to the control loop. Does nothing if the loop has ended, because then the
    /// device is ending too.
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }
}

impl AnswerRequest for Shared {
    fn answer(&self, request: Request) -> Option<Zeroizing<String>> {
        if names_an_endpoint(&request) {
            self.resolver.prepare();
        }
        let (sender, answer) = mpsc::sync_channel(1);
        self.send(Command::Uapi(request, sender));
        answer.recv().ok()
    }

    fn interface_index(&self, name: &str) -> Option<u32> {
        let link = self.underlay.network.link(name).ok().flatten();
        link.map(|link| link.index)
    }

    fn client_left(&self) {
        // Requests and answers take much more memory than the state they leave, and peers may have
        // been removed.
        taupe_os_linux::memory::release();
    }
}

/// Wakes the control loop from `poll`. An eventfd, so that a wake-up between two waits is not lost.
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    pub(crate) fn wake(&self) {
        // Fails only after 2^64 - 2 wake-ups without a reset; the eventfd is readable then anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Clears earlier wake-ups. Call it before the work is done: a later wake-up then ends the
    /// next wait.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

/// Queue of handshake messages from the packet threads to the control loop.
#[derive(Default)]
pub(crate) struct Handshakes(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    messages: HandshakeQueue,
    /// Set while the control loop need not be woken for new messages.
    expected: bool,
}

/// Result of [`Handshakes::push`].
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Pushed {
    /// The number of messages that the full queue dropped.
    pub(crate) dropped: u64,
    /// True if the caller must wake the control loop.
    pub(crate) wake: bool,
}

impl Handshakes {
    /// Capacity of the empty queue while the control loop sleeps: about 100 KiB.
    const IDLE_CAPACITY: usize = UNDER_LOAD_BACKLOG;

    /// Adds messages from one sender.
    pub(crate) fn push<'a>(
        &self,
        from: Endpoint,
        messages: impl Iterator<Item = &'a [u8]>,
    ) -> Pushed {
        let mut queued = self.lock();
        let dropped = messages.map(|message| queued.messages.push(from, message));
        let dropped = dropped.sum();
        let wake = !std::mem::replace(&mut queued.expected, true);
        Pushed { dropped, wake }
    }

    /// Takes the newest messages ([`HandshakeQueue::take`]).
    pub(crate) fn take(&self, count: usize, taken: &mut TakenHandshakes) -> usize {
        self.lock().messages.take(count, taken)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().messages.is_empty()
    }

    /// Returns true if there is room for more messages. The control loop calls this while it reads
    /// the handshake sockets itself, so new messages do not wake it.
    pub(crate) fn expects_more(&self) -> bool {
        let mut queued = self.lock();
        queued.expected = true;
        queued.messages.len() < MAX_QUEUED_HANDSHAKES
    }

    /// Returns true if the queue is empty. The next message then wakes the control loop.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let mut queued = self.lock();
        let empty = queued.messages.is_empty();
        if empty {
            queued.expected = false;
            queued.messages.shrink_to(Self::IDLE_CAPACITY);
        }
        empty
    }

    fn lock(&self) -> MutexGuard<'_, Queued> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn from() -> Endpoint {
        SocketAddr::from(([192, 0, 2, 1], 51_820)).into()
    }

    fn push(queue: &Handshakes, messages: &[&[u8]]) -> Pushed {
        queue.push(from(), messages.iter().copied())
    }

    #[test]
    fn icmp_errors_are_limited_to_100_a_second() {
        let limit = IcmpErrorLimit::default();
        let start = Instant(10_000_000_000);
        assert_eq!((0..200).filter(|_| limit.admit(start)).count(), 100);
        let next = start + Duration::from_millis(10);
        assert!(!limit.admit(next - Duration::from_nanos(1)));
        assert!(limit.admit(next));
        assert!(!limit.admit(next));
    }

    #[test]
    fn the_control_loop_is_woken_once_until_it_sleeps() {
        let queue = Handshakes::default();
        let message: &[u8] = &[1; 148];
        assert!(push(&queue, &[message]).wake);
        assert!(!push(&queue, &[message]).wake);
        assert!(!queue.prepare_sleep(), "something is there");
        queue.take(2, &mut TakenHandshakes::default());
        assert!(!push(&queue, &[message]).wake, "it comes by itself");
        queue.take(1, &mut TakenHandshakes::default());
        assert!(queue.prepare_sleep());
        assert!(push(&queue, &[message]).wake);
    }
}
