//! State of a peer that only the control loop uses, and the table of peers.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use taupe_crypto::Provider;

use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::handshake::cookie::MacWriter;
use crate::handshake::noise::{Initiator, Precomputed, StaticKeys};
use crate::hybrid::{HybridInitiation, HybridState, Provisional};
use crate::key::{PresharedKey, PublicKey};
use crate::limits::{INITIATIONS_PER_SECOND, NOTICE_AFTER};
use crate::lock;
use crate::message::IDENTITY_LEN;
use crate::output::{Notice, Output};
use crate::peer::{NamedEndpoint, Peer, PeerId, Timer};
use crate::suite::Suite;
use crate::time::{Instant, Tai64N};
use crate::update::{EndpointName, PostQuantum};

/// State of a peer that only the control loop uses.
pub(crate) struct PeerEntry {
    pub(crate) peer: Arc<Peer>,
    /// Position in the order of addition over all peers of the device.
    pub(crate) added: u64,
    pub(crate) preshared_key: PresharedKey,
    pub(crate) named_endpoint: Option<Box<NamedEndpoint>>,
    /// State of hybrid handshakes, if any post-quantum setting is configured.
    pub(crate) hybrid: Option<Box<HybridState>>,
    /// Allocated when a handshake first needs it: among many peers, most are idle.
    pub(crate) handshakes: Option<Box<Handshakes>>,
    pub(crate) latest_handshake: Option<Duration>,
    /// Set while the peer has been reported as unreachable.
    reported_unreachable: bool,
    pub(crate) deadline: Option<(Instant, Timer)>,
}

/// State of a peer's handshakes.
pub(crate) struct Handshakes {
    /// Computed when first needed; `Some(None)` if the peer's key is of low order.
    pub(crate) precomputed: Option<Option<Arc<Precomputed>>>,
    /// The initiation that waits for a response, with its local index.
    pub(crate) initiation: Option<(u32, Pending)>,
    pub(crate) mac_writer: MacWriter,
    /// The timestamp of the last initiation sent.
    pub(crate) timestamp_sent: Option<Tai64N>,
    /// The greatest timestamp received.
    pub(crate) timestamp_received: Option<Tai64N>,
    pub(crate) initiation_accepted: Option<Instant>,
}

/// An initiation that waits for its response.
pub(crate) enum Pending {
    Ordinary(Box<Initiator>),
    Hybrid(Box<HybridInitiation>),
}

impl PeerEntry {
    pub(crate) fn handshakes(&mut self, crypto: &Provider) -> &mut Handshakes {
        self.handshakes.get_or_insert_with(|| {
            Box::new(Handshakes {
                precomputed: None,
                initiation: None,
                mac_writer: MacWriter::new(crypto, self.peer.public_key()),
                timestamp_sent: None,
                timestamp_received: None,
                initiation_accepted: None,
            })
        })
    }

    /// Checks whether an initiation waits for its response.
    pub(crate) fn has_pending_initiation(&self) -> bool {
        let handshakes = self.handshakes.as_ref();
        handshakes.is_some_and(|handshakes| handshakes.initiation.is_some())
    }

    /// Records a verified initiation: its timestamp, time and source.
    pub(crate) fn accept_initiation(
        &mut self,
        crypto: &Provider,
        now: Instant,
        from: Endpoint,
        timestamp: Tai64N,
        message: &[u8],
    ) {
        let handshakes = self.handshakes(crypto);
        handshakes.timestamp_received = Some(timestamp);
        handshakes.initiation_accepted = Some(now);
        let mut state = lock(&self.peer.state);
        state.endpoint = Some(from);
        state.received(now, message.len() as u64);
    }

    /// Checks the timestamp of a verified initiation, which must be greater than the last one
    /// (whitepaper §5.1), and the rate of the peer's initiations.
    ///
    /// There is no limit on how far ahead a timestamp may be: a peer whose clock has jumped
    /// forward and back, and that therefore continues above its last timestamp, must not be
    /// locked out.
    pub(crate) fn admit_timestamp(
        &mut self,
        crypto: &Provider,
        now: Instant,
        timestamp: Tai64N,
    ) -> Result<(), DropReason> {
        let handshakes = self.handshakes(crypto);
        if handshakes
            .timestamp_received
            .is_some_and(|last| timestamp <= last)
        {
            return Err(DropReason::InitiationReplayed);
        }
        let gap = Duration::from_secs(1) / INITIATIONS_PER_SECOND;
        let last = handshakes.initiation_accepted;
        if last.is_some_and(|last| now.since(last) < gap) {
            return Err(DropReason::InitiationFlood);
        }
        Ok(())
    }

    /// Returns the values derived from the two static keys; `None` if the peer's key is of low
    /// order.
    pub(crate) fn precomputed(
        &mut self,
        crypto: &Provider,
        keys: &StaticKeys,
    ) -> Option<Arc<Precomputed>> {
        let public_key = *self.peer.public_key();
        self.handshakes(crypto)
            .precomputed
            .get_or_insert_with(|| {
                let precomputed = Precomputed::new(crypto, keys, &public_key);
                precomputed.ok().map(Arc::new)
            })
            .clone()
    }

    /// Returns the notice that the peer is unreachable, when another initiation goes to
    /// `endpoint` and the peer has been silent since `since`. `None` if it is too early, or the
    /// notice was sent before.
    pub(crate) fn unreachable_notice(
        &mut self,
        now: Instant,
        since: Instant,
        endpoint: SocketAddr,
    ) -> Option<Notice> {
        let time = now.since(since);
        if time < NOTICE_AFTER || self.reported_unreachable {
            return None;
        }
        self.reported_unreachable = true;
        Some(Notice::PeerUnreachable {
            public_key: *self.peer.public_key(),
            endpoint,
            time,
        })
    }

    /// Records that a session has been established. Sends [`Notice::PeerRecovered`] if the peer
    /// was reported as unreachable.
    pub(crate) fn note_session(&mut self, outputs: &mut VecDeque<Output>) {
        if let Some(named) = &mut self.named_endpoint {
            named.note_handshake();
        }
        if core::mem::take(&mut self.reported_unreachable) {
            let public_key = *self.peer.public_key();
            outputs.push_back(Output::Notice(Notice::PeerRecovered { public_key }));
        }
    }

    /// Returns the timestamp of the last initiation sent.
    pub(crate) fn timestamp_sent(&self) -> Option<Tai64N> {
        self.handshakes.as_ref()?.timestamp_sent
    }
}

impl PeerEntry {
    /// Returns the hybrid handshake that `from` began with its index `sender`.
    pub(crate) fn find_provisional(
        &mut self,
        from: SocketAddr,
        sender: u32,
    ) -> Option<&mut Provisional> {
        self.hybrid.as_mut()?.find_provisional(from, sender)
    }

    /// Checks whether ordinary handshakes with the peer are refused.
    pub(crate) fn refuses_ordinary(&self) -> bool {
        self.policy() == PostQuantum::Require
    }

    pub(crate) fn policy(&self) -> PostQuantum {
        let hybrid = self.hybrid.as_ref();
        hybrid.map_or(PostQuantum::Off, |hybrid| hybrid.policy())
    }

    /// Returns the suite of hybrid handshakes with the peer; `None` if the policy is `off`.
    pub(crate) fn suite(&self) -> Option<Suite> {
        let hybrid = self.hybrid.as_ref()?;
        (hybrid.policy() != PostQuantum::Off).then_some(hybrid.remote.suite)
    }
}

impl PeerEntry {
    /// Sets or removes the endpoint's name. Setting the same name again changes nothing.
    pub(crate) fn set_name(&mut self, name: Option<EndpointName>) {
        if self.named_endpoint.as_ref().map(|named| &named.name) != name.as_ref() {
            self.named_endpoint = name.map(|name| Box::new(NamedEndpoint::new(name)));
        }
    }
}

/// The peers of a device by number, and their numbers by key.
#[derive(Default)]
pub(crate) struct Peers {
    /// Boxed, so that growth of the vector leaves no copies of preshared keys behind.
    pub(crate) entries: Vec<Option<Box<PeerEntry>>>,
    pub(crate) free: Vec<u32>,
    pub(crate) by_key: BTreeMap<PublicKey, PeerId>,
    /// Peers with hybrid handshakes, by the identity in their initiations.
    by_identity: BTreeMap<[u8; IDENTITY_LEN], PeerId>,
    pub(crate) added: u64,
}

impl Peers {
    pub(crate) fn find(&self, key: &PublicKey) -> Option<PeerId> {
        self.by_key.get(key).copied()
    }

    /// Returns the peer with this identity in its hybrid initiations.
    pub(crate) fn find_identity(&self, identity: &[u8; IDENTITY_LEN]) -> Option<PeerId> {
        self.by_identity.get(identity).copied()
    }

    /// Updates the index by identity: the peer is found by its current identity, or not at all
    /// without hybrid handshakes.
    pub(crate) fn index_identity(&mut self, id: PeerId) {
        let Some(entry) = self.entry(id) else {
            return;
        };
        let suite = entry.suite();
        let Some(hybrid) = entry.hybrid.as_mut() else {
            return;
        };
        let after = suite.map(|_| hybrid.remote.identity.sent());
        let before = core::mem::replace(&mut hybrid.found_by, after);
        if let Some(before) = before {
            self.by_identity.remove(&before);
        }
        if let Some(after) = after {
            self.by_identity.insert(after, id);
        }
    }

    pub(crate) fn entry(&mut self, id: PeerId) -> Option<&mut PeerEntry> {
        self.entries.get_mut(id.0 as usize)?.as_deref_mut()
    }

    pub(crate) fn ids(&self) -> Vec<PeerId> {
        self.by_key.values().copied().collect()
    }

    pub(crate) fn add(&mut self, key: PublicKey) -> PeerId {
        let number = self.free.pop().unwrap_or(self.entries.len() as u32);
        let id = PeerId(number);
        self.added += 1;
        let entry = PeerEntry {
            peer: Arc::new(Peer::new(id, key)),
            added: self.added,
            preshared_key: PresharedKey::NONE,
            named_endpoint: None,
            hybrid: None,
            handshakes: None,
            latest_handshake: None,
            reported_unreachable: false,
            deadline: None,
        };
        if number as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[number as usize] = Some(Box::new(entry));
        self.by_key.insert(key, id);
        id
    }

    pub(crate) fn remove(&mut self, id: PeerId) -> Option<Box<PeerEntry>> {
        let entry = self.entries.get_mut(id.0 as usize)?.take()?;
        self.by_key.remove(entry.peer.public_key());
        if let Some(identity) = entry.hybrid.as_ref().and_then(|hybrid| hybrid.found_by) {
            self.by_identity.remove(&identity);
        }
        self.free.push(id.0);
        Some(entry)
    }
}
