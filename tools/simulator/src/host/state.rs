//! The state of a device that unauthenticated messages must not change, and its limits.

use taupe_protocol::key::PublicKey;
use taupe_protocol::testing::PeerSnapshot;
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, Timer};

use super::Host;
use crate::violation::{Invariant, Violation};

/// Limit of packets that wait for one peer, as in the Linux kernel.
const MAX_STAGED: usize = 128;
/// Limit of hybrid handshakes that a peer has begun and not finished (docs/post-quantum.md).
const MAX_HALVES: usize = 4;

/// State of a device that a message may change.
#[derive(PartialEq, Debug)]
pub(crate) struct Digest {
    peers: Vec<Option<PeerSnapshot>>,
    sessions: usize,
    halves: usize,
    pending: usize,
    deadline: Option<(Instant, Timer)>,
    pending_work: bool,
}

impl Digest {
    /// Removes the state that a hybrid initiation may change before its session has been used.
    fn without_provisional(self) -> Self {
        let peers = self.peers.into_iter();
        Self {
            peers: peers
                .map(|peer| peer.map(PeerSnapshot::without_provisional_effects))
                .collect(),
            sessions: 0,
            halves: 0,
            deadline: None,
            ..self
        }
    }
}

impl Host {
    /// Returns the state that an unauthenticated datagram must not change.
    pub(crate) fn digest(&mut self) -> Option<Digest> {
        let keys = self.keys();
        self.digest_of(&keys)
    }

    /// Returns the state of one peer that a part of a hybrid initiation in its name must not
    /// change.
    pub(crate) fn provisional_digest(&mut self, other: usize) -> Option<Digest> {
        let conf = self.peers[other].filter(|conf| conf.present)?;
        self.digest_of(&[conf.key]).map(Digest::without_provisional)
    }

    fn digest_of(&mut self, keys: &[PublicKey]) -> Option<Digest> {
        let node = self.node.as_mut()?;
        Some(Digest {
            peers: keys.iter().map(|key| node.device.snapshot(key)).collect(),
            sessions: node.sessions.alive(),
            halves: node.device.provisional_handshakes(),
            pending: node.device.pending_handshakes(),
            deadline: node.device.next_deadline(),
            pending_work: node.device.has_pending_work(),
        })
    }

    /// Checks staged packets and the limits of memory.
    ///
    /// # Errors
    /// If packets are missing or a limit is exceeded.
    pub(crate) fn check_memory(&mut self) -> Result<(), Violation> {
        let keys = self.keys();
        let Some(node) = self.node.as_mut() else {
            return Ok(());
        };
        let mut staged = 0;
        for snapshot in keys.iter().filter_map(|key| node.device.snapshot(key)) {
            if snapshot.staged > MAX_STAGED {
                return Err(Violation::new(
                    Invariant::Memory,
                    format!("{} packets are staged for one peer", snapshot.staged),
                ));
            }
            staged += snapshot.staged;
        }
        let pending = node.device.pending_handshakes();
        if pending > keys.len() {
            return Err(Violation::new(
                Invariant::Memory,
                format!("{pending} handshakes wait for {} peers", keys.len()),
            ));
        }
        let halves = node.device.provisional_handshakes();
        if halves > MAX_HALVES * keys.len() {
            return Err(Violation::new(
                Invariant::Memory,
                format!("{halves} handshakes begun by {} peers", keys.len()),
            ));
        }
        let counters = node.path.counters();
        let dropped =
            counters.count(DropReason::StagedOverflow) + counters.count(DropReason::StagedPurged);
        node.staged.check(staged, dropped)
    }

    fn keys(&self) -> Vec<PublicKey> {
        self.peers
            .iter()
            .flatten()
            .filter(|c| c.present)
            .map(|c| c.key)
            .collect()
    }
}
