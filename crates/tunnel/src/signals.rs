//! Signals from handles to the tunnel's thread, and its wake-up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// Work of the thread for a handle. Numbers are those of the thread's tables.
pub(crate) enum Signal {
    /// A task has read, written, shut down or dropped this connection.
    Serve(usize),
    /// A task has queued datagrams in this socket.
    SendDatagrams(usize),
    /// The listener at this port was dropped.
    CloseListener(u16),
    /// This UDP socket was dropped.
    CloseUdp(usize),
}

/// Sender of signals. A clone refers to the same thread.
#[derive(Clone)]
pub(crate) struct Signals {
    queue: mpsc::Sender<Signal>,
    waker: Arc<mio::Waker>,
    /// True if the thread has been woken and has not yet looked for signals.
    is_woken: Arc<AtomicBool>,
}

/// Receiver of signals.
pub(crate) struct Received {
    queue: mpsc::Receiver<Signal>,
    is_woken: Arc<AtomicBool>,
}

impl Signals {
    pub(crate) fn new(waker: Arc<mio::Waker>) -> (Self, Received) {
        let (send, queue) = mpsc::channel();
        let is_woken = Arc::new(AtomicBool::new(false));
        let signals = Self {
            queue: send,
            waker,
            is_woken: Arc::clone(&is_woken),
        };
        (signals, Received { queue, is_woken })
    }

    /// Sends a signal. Drops it if the thread has ended.
    pub(crate) fn send(&self, signal: Signal) {
        if self.queue.send(signal).is_ok() {
            self.wake();
        }
    }

    /// Ends the thread's wait. What was sent before is found after the wait.
    pub(crate) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // Waking fails only if the process has run out of descriptors or memory.
            let _ = self.waker.wake();
        }
    }
}

impl Received {
    /// Begins to look for work. Whatever is sent later wakes the thread.
    pub(crate) fn begin(&self) {
        self.is_woken.swap(false, Ordering::AcqRel);
    }

    /// Returns the signals so far.
    pub(crate) fn take(&self) -> impl Iterator<Item = Signal> {
        self.queue.try_iter()
    }
}
