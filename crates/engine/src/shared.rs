//! What the threads of a device share, and how they reach the control loop.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, eventfd};
use taupe_config::uapi::Request;
use taupe_net::tun::Tun;
use taupe_protocol::limits::MAX_QUEUED_HANDSHAKES;
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::{DataPath, Endpoint};
use zeroize::Zeroizing;

use crate::names::Answer;
use crate::resolver::Resolver;
use crate::sockets::Sockets;

/// What every thread of a device can reach.
pub(crate) struct Shared {
    pub(crate) tun: Tun,
    pub(crate) path: Arc<DataPath>,
    pub(crate) sockets: ArcSwap<Sockets>,
    /// The TUN's MTU in bytes.
    pub(crate) mtu: AtomicUsize,
    pub(crate) handshakes: HandshakeQueue,
    pub(crate) waker: Arc<Waker>,
    pub(crate) resolver: Arc<dyn Resolver>,
    commands: mpsc::Sender<Command>,
}

/// What other threads ask of the control loop.
pub(crate) enum Command {
    /// A request on the configuration socket, and where its answer goes.
    Uapi(Request, mpsc::SyncSender<Zeroizing<String>>),
    /// The configuration socket has been removed.
    SocketRemoved,
    /// A UDP socket does not receive any more: bind it anew.
    SocketFailed,
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
        path: Arc<DataPath>,
        waker: Arc<Waker>,
        resolver: Arc<dyn Resolver>,
    ) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel();
        let shared = Self {
            tun,
            path,
            sockets: ArcSwap::default(),
            mtu: AtomicUsize::new(0),
            handshakes: HandshakeQueue::default(),
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

/// Handshake messages on their way to the control loop. Bounded: what comes
/// when it is full is dropped unread.
#[derive(Default)]
pub(crate) struct HandshakeQueue {
    messages: Mutex<VecDeque<(Endpoint, Vec<u8>)>>,
}

impl HandshakeQueue {
    /// Adds a message. `false` if the queue is full.
    pub(crate) fn push(&self, from: Endpoint, message: &[u8]) -> bool {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let room = messages.len() < MAX_QUEUED_HANDSHAKES;
        if room {
            messages.push_back((from, message.to_vec()));
        }
        room
    }

    /// The oldest message, and how many wait behind it.
    pub(crate) fn pop(&self) -> Option<(Endpoint, Vec<u8>, usize)> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, message) = messages.pop_front()?;
        Some((from, message, messages.len()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.is_empty()
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
