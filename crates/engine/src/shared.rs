//! What the threads of a device share, and how they reach the control loop.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, eventfd};
use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::Socket;
use taupe_protocol::limits::{MAX_QUEUED_HANDSHAKES, UNDER_LOAD_BACKLOG};
use taupe_protocol::{DataPath, Endpoint, HandshakeQueue, TakenHandshakes};
use taupe_runtime::clock;
use taupe_uapi::Request;
use zeroize::Zeroizing;

use crate::sockets::Sockets;
use crate::source::{self, Source, Sources};
use taupe_packet::tap::Tap;
use taupe_runtime::resolver::Resolver;

/// Who waits for a packet no longer than this will probably find more than one.
pub(crate) const BUSY: Duration = Duration::from_micros(20);

/// What every thread of a device can reach.
pub(crate) struct Shared {
    pub(crate) tun: Tun,
    /// What stands between the TUN and the tunnel.
    pub(crate) tap: Option<Arc<dyn Tap>>,
    pub(crate) path: Arc<DataPath>,
    pub(crate) sockets: ArcSwap<Sockets>,
    /// The TUN's MTU in bytes.
    pub(crate) mtu: AtomicUsize,
    pub(crate) handshakes: Handshakes,
    pub(crate) surroundings: Surroundings,
    pub(crate) waker: Arc<Waker>,
    pub(crate) resolver: Arc<dyn Resolver>,
    commands: mpsc::Sender<Command>,
}

/// The network that datagrams leave by, as the control loop knows it.
#[derive(Default)]
pub(crate) struct Surroundings {
    /// The network is not the network namespace of this process.
    pub(crate) is_elsewhere: bool,
    /// The name of the tunnel's interface, if it is in this network.
    interface: Option<String>,
    /// The mark of the device's datagrams.
    pub(crate) mark: AtomicU32,
    /// Counts changes of routes, addresses and the mark.
    changes: AtomicU64,
    sources: Sources,
}

impl Surroundings {
    pub(crate) fn new(is_elsewhere: bool, interface: Option<String>) -> Self {
        Self {
            is_elsewhere,
            interface,
            ..Self::default()
        }
    }

    /// Counts a change of routes, addresses or the mark.
    pub(crate) fn change(&self) {
        // A thread that sees the number sees what has changed.
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the source of datagrams to a peer that has not been heard of.
    pub(crate) fn source(&self, remote: SocketAddr) -> Source {
        let Some(interface) = &self.interface else {
            return Source::Kernel;
        };
        let changes = self.changes();
        let mark = self.mark.load(Ordering::Relaxed);
        let look_up = || source::look_up(interface, remote, mark);
        self.sources.find(changes, clock::boot(), remote, look_up)
    }

    /// Has the source for `remote` looked up anew.
    pub(crate) fn forget_source(&self, remote: SocketAddr) {
        self.sources.forget(remote);
    }
}

/// What other threads ask of the control loop.
pub(crate) enum Command {
    /// A request on the configuration socket, and where its answer goes.
    Uapi(Request, mpsc::SyncSender<Zeroizing<String>>),
    /// The configuration socket has been removed.
    SocketRemoved,
    /// This UDP socket does not receive any more: bind it anew.
    SocketFailed(Weak<Socket>),
    /// The TUN is gone.
    TunDeleted,
    /// A thread cannot go on.
    Failed(String),
    /// The owner wants the device to end.
    Stop,
}

impl Shared {
    pub(crate) fn new(
        tun: Tun,
        tap: Option<Arc<dyn Tap>>,
        path: Arc<DataPath>,
        waker: Arc<Waker>,
        resolver: Arc<dyn Resolver>,
        surroundings: Surroundings,
    ) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        let shared = Self {
            tun,
            tap,
            path,
            sockets: ArcSwap::default(),
            mtu: AtomicUsize::new(0),
            handshakes: Handshakes::default(),
            surroundings,
            waker,
            resolver,
            commands,
        };
        (shared, receiver)
    }

    /// Hands a command to the control loop. One that has ended takes none; the
    /// device is about to end then.
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }
}

/// Wakes the control loop out of its wait: an eventfd, so that a wake-up between
/// two waits is kept.
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    pub(crate) fn wake(&self) {
        // Fails only when it has been woken 2^64 - 2 times and has not looked.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Begins a round: whatever is asked from now on wakes the next one.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

/// Handshake messages on their way to the control loop.
#[derive(Default)]
pub(crate) struct Handshakes(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    messages: HandshakeQueue,
    /// The control loop has been woken, or comes by itself.
    expected: bool,
}

/// Result of [`Handshakes::push`].
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Pushed {
    /// The number of messages for which there was no room.
    pub(crate) dropped: u64,
    /// The control loop has to be woken.
    pub(crate) wake: bool,
}

impl Handshakes {
    /// Places that an empty queue keeps at rest, about 100 KiB.
    const KEPT: usize = UNDER_LOAD_BACKLOG;

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

    /// Whether there is room for more, of which the control loop need not be told: it is the
    /// one that looks for them.
    pub(crate) fn expects_more(&self) -> bool {
        let mut queued = self.lock();
        queued.expected = true;
        queued.messages.len() < MAX_QUEUED_HANDSHAKES
    }

    /// Has the next message wake the control loop, unless there is one.
    /// Whether there is none.
    pub(crate) fn rest(&self) -> bool {
        let mut queued = self.lock();
        let empty = queued.messages.is_empty();
        if empty {
            queued.expected = false;
            queued.messages.shrink_to(Self::KEPT);
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
    fn the_control_loop_is_woken_once_until_it_rests() {
        let queue = Handshakes::default();
        let message: &[u8] = &[1; 148];
        assert!(push(&queue, &[message]).wake);
        assert!(!push(&queue, &[message]).wake);
        assert!(!queue.rest(), "something is there");
        queue.take(2, &mut TakenHandshakes::default());
        assert!(!push(&queue, &[message]).wake, "it comes by itself");
        queue.take(1, &mut TakenHandshakes::default());
        assert!(queue.rest());
        assert!(push(&queue, &[message]).wake);
    }
}
