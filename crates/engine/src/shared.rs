//! What the threads of a device share, and how they reach the control loop.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, eventfd};
use taupe_config::uapi::Request;
use taupe_net::tun::Tun;
use taupe_net::udp::Socket;
use taupe_protocol::limits::{MAX_QUEUED_HANDSHAKES, UNDER_LOAD_BACKLOG};
use taupe_protocol::message::{Initiation, LONGEST_HANDSHAKE};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::{DataPath, Endpoint};
use zeroize::Zeroizing;

use crate::sockets::Sockets;
use crate::source::{self, Source, Sources};
use crate::tap::Tap;
use taupe_upkeep::names::Answer;
use taupe_upkeep::resolver::Resolver;

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
    pub(crate) handshakes: HandshakeQueue,
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
        self.sources.find(changes, boot_now(), remote, look_up)
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
    /// The look-up of an endpoint's name has ended.
    Resolved(Answer),
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
            handshakes: HandshakeQueue::default(),
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

    /// [`Shared::send`] for a thread that may outlive the device, which keeps
    /// nothing of it open.
    pub(crate) fn sender(&self) -> impl Fn(Command) + Send + Sync + 'static {
        let (commands, waker) = (self.commands.clone(), Arc::clone(&self.waker));
        move |command| {
            if commands.send(command).is_ok() {
                waker.wake();
            }
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

/// Handshake messages on their way to the control loop. Bounded: when it is full, the
/// oldest is dropped unread.
#[derive(Default)]
pub(crate) struct HandshakeQueue(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    messages: VecDeque<Message>,
    /// The control loop has been woken, or comes by itself.
    expected: bool,
}

/// A handshake message.
pub(crate) struct Message {
    pub(crate) from: Endpoint,
    bytes: MessageBytes,
}

/// Ordinary messages have places of the same size, so that a flood of them allocates
/// nothing; parts of hybrid ones are eight times as long.
enum MessageBytes {
    Ordinary([u8; size_of::<Initiation>()], usize),
    Part(Box<[u8]>),
}

impl Message {
    fn new(from: Endpoint, message: &[u8]) -> Self {
        let mut place = [0; size_of::<Initiation>()];
        let bytes = match place.get_mut(..message.len()) {
            Some(start) => {
                start.copy_from_slice(message);
                MessageBytes::Ordinary(place, message.len())
            }
            None => MessageBytes::Part(message.into()),
        };
        Self { from, bytes }
    }

    /// What tells the messages of one handshake from those of others: the sender and the index
    /// that it has chosen.
    fn handshake(&self) -> (SocketAddr, Option<[u8; 4]>) {
        let index = self.bytes().get(4..).and_then(|rest| rest.first_chunk());
        (self.from.remote, index.copied())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            MessageBytes::Ordinary(place, length) => place.get(..*length).unwrap_or_default(),
            MessageBytes::Part(bytes) => bytes,
        }
    }
}

/// Orders messages by the last one of their handshake, the latest first.
fn newest_first(messages: &mut [Message]) {
    let mut last = HashMap::new();
    for (place, message) in messages.iter().enumerate() {
        last.insert(message.handshake(), place);
    }
    messages.sort_by_cached_key(|message| Reverse(last.get(&message.handshake()).copied()));
}

/// What has become of messages that were handed to a queue.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Pushed {
    /// How many found no room.
    pub(crate) dropped: u64,
    /// Whether the control loop has to be woken.
    pub(crate) wake: bool,
}

impl HandshakeQueue {
    /// Places that an empty queue keeps at rest, about 100 KiB.
    const KEPT: usize = UNDER_LOAD_BACKLOG;

    /// Adds messages from one sender.
    pub(crate) fn push<'a>(
        &self,
        from: Endpoint,
        messages: impl Iterator<Item = &'a [u8]>,
    ) -> Pushed {
        let mut queued = self.lock();
        let mut dropped = 0;
        for message in messages {
            let fits = message.len() <= LONGEST_HANDSHAKE;
            if !fits {
                dropped += 1;
                continue;
            }
            if queued.messages.len() >= MAX_QUEUED_HANDSHAKES {
                queued.messages.pop_front();
                dropped += 1;
            }
            queued.messages.push_back(Message::new(from, message));
        }
        let wake = !std::mem::replace(&mut queued.expected, true);
        Pushed { dropped, wake }
    }

    /// Moves the newest messages, at most so many, to `taken`, the newest handshake first; the
    /// parts of one stay in their order. Returns how many stay.
    ///
    /// After a pause of this process the queue has every try of a peer, and the peer waits for
    /// the answer to the last alone.
    pub(crate) fn take(&self, count: usize, taken: &mut Vec<Message>) -> usize {
        let mut queued = self.lock();
        let left = queued.messages.len().saturating_sub(count);
        taken.extend(queued.messages.drain(left..));
        drop(queued);
        newest_first(taken);
        left
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

/// The clocks, for the control loop.
pub(crate) fn now() -> Now {
    let (boot, wall) = taupe_sys::clock::now();
    Now {
        boot: Instant(boot),
        wall,
    }
}

/// The boot clock, for the way of a packet.
pub(crate) fn boot_now() -> Instant {
    Instant(taupe_sys::clock::boot())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn from() -> Endpoint {
        SocketAddr::from(([192, 0, 2, 1], 51_820)).into()
    }

    fn push(queue: &HandshakeQueue, messages: &[&[u8]]) -> Pushed {
        queue.push(from(), messages.iter().copied())
    }

    /// A message of a handshake, of `length` bytes.
    fn message(index: u8, length: usize) -> Vec<u8> {
        let mut message = vec![0xff; length];
        message[4..8].copy_from_slice(&[index, 0, 0, 0]);
        message
    }

    /// What the queue gives at most `count` of, as index and length, and how many stay.
    fn take(queue: &HandshakeQueue, count: usize) -> (Vec<(u8, usize)>, usize) {
        let mut taken = Vec::new();
        let left = queue.take(count, &mut taken);
        let bytes = taken.iter().map(Message::bytes);
        (bytes.map(|bytes| (bytes[4], bytes.len())).collect(), left)
    }

    #[test]
    fn the_newest_handshake_comes_first_and_its_parts_in_order() {
        let queue = HandshakeQueue::default();
        push(&queue, &[&message(1, 148), &message(2, 92)]);
        push(&queue, &[&message(3, 1232), &message(3, 149)]);
        push(&queue, &[&message(4, 64), &message(3, 148)]);
        assert_eq!(
            take(&queue, 4),
            (vec![(3, 1232), (3, 149), (3, 148), (4, 64)], 2)
        );
        assert_eq!(take(&queue, 4), (vec![(2, 92), (1, 148)], 0));
    }

    #[test]
    fn handshakes_of_two_senders_are_two_though_they_have_one_index() {
        let queue = HandshakeQueue::default();
        let other = SocketAddr::from(([192, 0, 2, 2], 51_820)).into();
        push(&queue, &[&message(1, 148)]);
        queue.push(other, [&*message(1, 92)].into_iter());
        assert_eq!(take(&queue, 2), (vec![(1, 92), (1, 148)], 0));
    }

    #[test]
    fn a_full_queue_drops_and_counts_the_oldest() {
        let queue = HandshakeQueue::default();
        let old: &[u8] = &message(1, 148);
        let new: &[u8] = &message(2, 148);
        let many = vec![old; MAX_QUEUED_HANDSHAKES];
        assert_eq!(push(&queue, &many).dropped, 0);
        assert_eq!(push(&queue, &[new; 3]).dropped, 3);
        let (taken, left) = take(&queue, 4);
        assert_eq!(left, MAX_QUEUED_HANDSHAKES - 4);
        assert_eq!(taken, [(2, 148), (2, 148), (2, 148), (1, 148)]);
        assert_eq!(push(&queue, &[new; 3]).dropped, 0);
        let too_long: &[u8] = &[1; 1233];
        assert_eq!(push(&HandshakeQueue::default(), &[too_long]).dropped, 1);
    }

    #[test]
    fn the_control_loop_is_woken_once_until_it_rests() {
        let queue = HandshakeQueue::default();
        let message: &[u8] = &[1; 148];
        assert!(push(&queue, &[message]).wake);
        assert!(!push(&queue, &[message]).wake);
        assert!(!queue.rest(), "something is there");
        queue.take(2, &mut Vec::new());
        assert!(!push(&queue, &[message]).wake, "it comes by itself");
        queue.take(1, &mut Vec::new());
        assert!(queue.rest());
        assert!(push(&queue, &[message]).wake);
    }
}
