//! Hybrid handshakes that a peer has begun and not confirmed.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;

use crate::endpoint::Endpoint;
use crate::hybrid::HybridState;
use crate::hybrid::noise::{Parts, VerifiedPartA};
use crate::limits::{MAX_EARLY_PARTS, REKEY_TIMEOUT};
use crate::message::{Part, indices};
use crate::suite::Suite;
use crate::time::{Instant, Tai64N};

/// A hybrid handshake begun by the peer, or by an attacker with its X25519 private key.
pub(crate) struct Provisional {
    pub(crate) from: Endpoint,
    /// The initiator's index.
    pub(crate) sender: u32,
    /// HASH of the first part without its MACs.
    pub(crate) a: [u8; 32],
    pub(crate) timestamp: Tai64N,
    pub(crate) since: Instant,
    pub(crate) state: ProvisionalState,
}

pub(crate) enum ProvisionalState {
    AwaitsPartB(Box<VerifiedPartA>),
    Answered {
        /// Local index of the session that waits for confirmation.
        index: u32,
        /// HASH of the second part without its MACs.
        b: [u8; 32],
        parts: Parts,
    },
}

impl Provisional {
    /// Returns the time since it began.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.since(self.since)
    }

    /// Checks whether the initiator may still wait for the response. After Rekey-Timeout it sends
    /// a new initiation.
    pub(crate) fn is_live(&self, now: Instant) -> bool {
        self.age(now) < REKEY_TIMEOUT
    }

    pub(crate) fn session(&self) -> Option<u32> {
        match self.state {
            ProvisionalState::AwaitsPartB(_) => None,
            ProvisionalState::Answered { index, .. } => Some(index),
        }
    }
}

/// Second parts that arrived before their first part. At most [`MAX_EARLY_PARTS`]; the oldest is
/// dropped first.
#[derive(Default)]
pub(crate) struct EarlyParts(VecDeque<(SocketAddr, Vec<u8>)>);

impl EarlyParts {
    pub(crate) fn store(&mut self, from: SocketAddr, part: &[u8]) {
        if self.0.len() == MAX_EARLY_PARTS {
            self.0.pop_front();
        }
        self.0.push_back((from, part.to_vec()));
    }

    pub(crate) fn take(&mut self, from: SocketAddr, suite: Suite, sender: u32) -> Option<Vec<u8>> {
        let is_it = |(at, part): &(SocketAddr, Vec<u8>)| {
            let of = part.first_chunk().and_then(|header| Part::of(*header));
            *at == from
                && of.is_some_and(|part| part.suite == suite)
                && indices(part).is_some_and(|[index, _]| index == sender)
        };
        let found = self.0.iter().position(is_it)?;
        self.0.remove(found).map(|(_, part)| part)
    }
}

impl HybridState {
    /// Returns the handshake that `from` began with its index `sender`.
    pub(crate) fn find_provisional(
        &mut self,
        from: SocketAddr,
        sender: u32,
    ) -> Option<&mut Provisional> {
        self.provisional
            .iter_mut()
            .find(|it| it.sender == sender && it.from.remote == from)
    }

    /// Returns the time at which the oldest unconfirmed handshake began.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.provisional.iter().map(|it| it.since).min()
    }
}
