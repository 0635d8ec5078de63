//! Keys of a device, and the timestamps sent with them.

use core::time::Duration;
use std::collections::VecDeque;
use taupe_crypto::Provider;

use crate::handshake::cookie::MacChecker;
use crate::handshake::noise::StaticKeys;
use crate::hybrid::LocalKeys;
use crate::key::{PqPrivateKey, PrivateKey};
use crate::output::Output;
use crate::time::{Now, Tai64N};

/// Values derived from the private key, and the timestamps sent with it.
pub(crate) struct DeviceIdentity {
    pub(crate) keys: StaticKeys,
    pub(crate) hybrid: LocalKeys,
    pub(crate) checker: MacChecker,
    /// Timestamps up to this one may have been sent before this device was created, or to peers
    /// that have been removed.
    pub(crate) floor: Tai64N,
    /// Timestamps up to this one have been reserved by `ReserveTimestamps`.
    reserved: Tai64N,
    /// The greatest timestamp sent.
    sent: Option<Tai64N>,
}

/// Timestamps are reserved this far ahead of the clock, so that the caller rarely has to write to
/// disk. After a crash, the whole reservation counts as used, and timestamps run up to this far
/// ahead of the clock. For that long, peers refuse another implementation that uses the same key
/// and the clock alone.
const TIMESTAMP_STEP: Duration = Duration::from_secs(10);

impl DeviceIdentity {
    /// Derives the values of `private`. Timestamps up to `floor` may have been sent with it.
    pub(crate) fn new(
        crypto: &Provider,
        private: PrivateKey,
        seed: Option<&PqPrivateKey>,
        floor: Tai64N,
    ) -> Self {
        let keys = StaticKeys::new(crypto, private);
        Self {
            hybrid: LocalKeys::new(crypto, &keys, seed),
            checker: MacChecker::new(crypto, &keys.public),
            keys,
            floor,
            reserved: floor,
            sent: None,
        }
    }

    /// Replaces the seed of the ML-KEM keys.
    pub(crate) fn expand(&mut self, crypto: &Provider, seed: Option<&PqPrivateKey>) {
        self.hybrid = LocalKeys::new(crypto, &self.keys, seed);
    }

    /// Returns the timestamp of the next initiation to a peer whose last one was `last`: the
    /// clock, or one grain (2^24 ns) above the last timestamp if the clock has gone back.
    pub(crate) fn timestamp(
        &mut self,
        now: Now,
        last: Option<Tai64N>,
        outputs: &mut VecDeque<Output>,
    ) -> Tai64N {
        let clock = Tai64N::from_wall(now.wall);
        let timestamp = clock.max(last.unwrap_or(self.floor).successor());
        if timestamp > self.reserved {
            // Ahead of the clock, not of the timestamp: otherwise the reservations of restarts in
            // quick succession would add up.
            self.reserve(timestamp.max(clock.later(TIMESTAMP_STEP)), outputs);
        }
        self.sent = self.sent.max(Some(timestamp));
        timestamp
    }

    /// Returns unused reservations when this key sends no more.
    pub(crate) fn release(&mut self, outputs: &mut VecDeque<Output>) {
        if let Some(sent) = self.sent {
            self.reserve(sent, outputs);
        }
    }

    fn reserve(&mut self, up_to: Tai64N, outputs: &mut VecDeque<Output>) {
        self.reserved = up_to;
        outputs.push_back(Output::ReserveTimestamps {
            public_key: self.keys.public,
            up_to,
        });
    }
}
