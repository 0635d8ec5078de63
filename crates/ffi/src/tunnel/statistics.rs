//! Statistics of a tunnel.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use taupe_protocol::DropReason;
use taupe_protocol::hybrid::Suite;

use super::Tunnel;
use super::loss::Loss;
use crate::clock;

/// Statistics of a tunnel.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Statistics {
    /// The age of the current session; `None` without one.
    pub handshake_age: Option<Duration>,
    /// Packets sent, and their bytes.
    pub tx: (u64, u64),
    /// Packets received, and their bytes.
    pub rx: (u64, u64),
    /// The fraction of the peer's messages in recent sessions that have not arrived, 0 to 1.
    pub loss: f32,
    /// Time from the last initiation of this side to its response.
    pub rtt: Option<Duration>,
    /// Sessions so far.
    pub sessions: u64,
    /// Packets that are queued until there is a session.
    pub waiting: usize,
    /// The suite of the current session, if it is hybrid.
    pub suite: Option<Suite>,
    /// True if `Prefer` has become as strict as `Require`. Callers should save this.
    pub latched: bool,
    /// True if the peer does not answer, or the last session has been erased.
    pub expired: bool,
}

#[derive(Default)]
pub(super) struct Traffic {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Traffic {
    pub(super) fn count(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, u64) {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (read(&self.packets), read(&self.bytes))
    }
}

/// State from authentic messages of the peer, under one lock that each message takes once.
#[derive(Default)]
pub(super) struct Received {
    /// The source of the last message whose source is known.
    source: Option<SocketAddr>,
    packets: u64,
    bytes: u64,
    pub(super) loss: Loss,
}

impl Received {
    pub(super) fn note_source(&mut self, from: Option<SocketAddr>) {
        self.source = from.or(self.source);
    }

    pub(super) fn count(&mut self, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }
}

impl Tunnel {
    /// Returns the source of the peer's last authentic message whose source is known.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.lock_received().source
    }

    /// Returns the statistics of the tunnel.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let session = self.peer.session();
        let now = clock::boot();
        let (rx, loss) = {
            let received = self.lock_received();
            ((received.packets, received.bytes), received.loss.estimate())
        };
        let (packets, bytes) = self.sent.read();
        let control = self.lock();
        Statistics {
            handshake_age: session.as_ref().map(|session| now.since(session.born())),
            tx: (
                packets + control.sent_from_queue.0,
                bytes + control.sent_from_queue.1,
            ),
            rx,
            loss,
            rtt: control.rtt,
            sessions: control.sessions,
            waiting: control.waiting(),
            suite: session.and_then(|session| session.suite()),
            latched: control.latched,
            expired: control.expired,
        }
    }

    /// Returns the number of messages and packets dropped for the reason `cause`.
    #[must_use]
    pub fn dropped(&self, cause: DropReason) -> u64 {
        self.path.counters().count(cause)
    }
}
