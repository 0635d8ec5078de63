//! Keys of a device, and the timestamps that it has sent with them.

use core::time::Duration;
use std::collections::VecDeque;
use taupe_crypto::Provider;

use crate::handshake::cookie::Checker;
use crate::handshake::noise::StaticKeys;
use crate::hybrid::LocalKeys;
use crate::key::{PqPrivateKey, PrivateKey};
use crate::output::Output;
use crate::time::{Now, Tai64N};

/// Everything that follows from the private key.
pub(crate) struct DeviceIdentity {
    pub(crate) keys: StaticKeys,
    pub(crate) hybrid: LocalKeys,
    pub(crate) checker: Checker,
    /// Timestamps up to this one may have been sent, before this device was made or
    /// to peers that have been removed.
    pub(crate) floor: Tai64N,
    /// Timestamps up to this one have been announced by `ReserveTimestamps`.
    reserved: Tai64N,
    /// The greatest timestamp sent, if any was.
    sent: Option<Tai64N>,
}

/// How far ahead of the clock timestamps are reserved: few writes. After a crash
/// the reservation counts as used, so that timestamps are this far ahead of the
/// clock for a while; other implementations with the same key, which know only
/// the clock, are refused that long.
const TIMESTAMP_STEP: Duration = Duration::from_secs(10);

impl DeviceIdentity {
    /// What follows from `private`, with which timestamps up to `floor` may have
    /// been sent.
    pub(crate) fn new(
        crypto: &Provider,
        private: PrivateKey,
        seed: Option<&PqPrivateKey>,
        floor: Tai64N,
    ) -> Self {
        let keys = StaticKeys::new(crypto, private);
        Self {
            hybrid: LocalKeys::new(crypto, &keys, seed),
            checker: Checker::new(crypto, &keys.public),
            keys,
            floor,
            reserved: floor,
            sent: None,
        }
    }

    /// Takes another seed of ML-KEM keys.
    pub(crate) fn expand(&mut self, crypto: &Provider, seed: Option<&PqPrivateKey>) {
        self.hybrid = LocalKeys::new(crypto, &self.keys, seed);
    }

    /// The timestamp of the next initiation to a peer whose last one was `last`:
    /// the clock, or one grain above the last where the clock has gone back.
    pub(crate) fn timestamp(
        &mut self,
        now: Now,
        last: Option<Tai64N>,
        outputs: &mut VecDeque<Output>,
    ) -> Tai64N {
        let clock = Tai64N::from_wall(now.wall);
        let timestamp = clock.max(last.unwrap_or(self.floor).successor());
        if timestamp > self.reserved {
            // Ahead of the clock, not of the timestamp: restarts that follow each
            // other closely must not add up.
            self.reserve(timestamp.max(clock.later(TIMESTAMP_STEP)), outputs);
        }
        self.sent = self.sent.max(Some(timestamp));
        timestamp
    }

    /// Gives back what has been reserved and not used: this key sends no more.
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
