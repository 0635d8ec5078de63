//! Responder of ordinary handshakes.
//!
//! A response takes four scalar multiplications. The first is needed to learn who the peer is:
//!
//! ```text
//! admit ─► [ es, E_r ] ─► find the peer, verify ─► [ ee, se ] ─► respond
//! ```
//!
//! Initiations that are processed together pass each step together, so that their multiplications
//! are computed side by side: two of each initiation in each pair of brackets.

use std::sync::Arc;

use arrayvec::ArrayVec;
use taupe_crypto::{Agreement, Provider};
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::device::indices::IndexPurpose;
use crate::device::{Core, Device};
use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::handshake::noise::{
    AGREEMENTS, InitiationFields, NoiseError, Precomputed, Responder, ResponseFields,
    SealedInitiation, SharedSecrets, TransportKeys,
};
use crate::limits::HANDSHAKE_TOS;
use crate::lock;
use crate::message::{Initiation, Kind, Macs, Response};
use crate::output::Output;
use crate::peer::{PeerEntry, PeerId, Session, Traffic};
use crate::time::Now;

/// Initiations that are processed together. Each takes two lanes of the eight that a vector has.
pub(crate) const INITIATIONS_AT_ONCE: usize = 4;

/// An initiation that has arrived.
pub(crate) struct ReceivedInitiation<'a> {
    pub(crate) from: Endpoint,
    pub(crate) message: &'a [u8],
    pub(crate) under_load: bool,
}

/// An initiation that is processed together with others.
struct Received<'a, State> {
    /// Its place among those.
    place: usize,
    from: Endpoint,
    message: &'a [u8],
    /// The initiator's index.
    sender: u32,
    state: State,
}

/// A verified initiation, and its peer.
struct Verified {
    peer: PeerId,
    precomputed: Arc<Precomputed>,
    responder: Responder,
}

type AllVerified<'a> = ArrayVec<Received<'a, Verified>, INITIATIONS_AT_ONCE>;

/// Result for each initiation, at its place.
type Results = [Result<(), DropReason>; INITIATIONS_AT_ONCE];

impl Device {
    /// Processes at most [`INITIATIONS_AT_ONCE`] ordinary initiations.
    pub(crate) fn handle_initiations(
        &mut self,
        now: Now,
        initiations: &[ReceivedInitiation<'_>],
    ) -> Results {
        let mut results: Results = [Ok(()); INITIATIONS_AT_ONCE];
        let mut admitted = ArrayVec::<_, INITIATIONS_AT_ONCE>::new();
        for (place, (initiation, result)) in initiations.iter().zip(&mut results).enumerate() {
            match self.core.admit_initiation(now, place, initiation) {
                Ok(initiation) => admitted.push(initiation),
                Err(reason) => *result = Err(reason),
            }
        }
        let Some(identity) = self.core.identity.as_ref() else {
            return results;
        };
        let (crypto, keys) = (self.core.crypto, &identity.keys);
        let agreements = admitted.iter().map(|it| it.state.agreements(crypto, keys));
        let shared = agree(crypto, agreements);
        let mut verified = AllVerified::new();
        for (initiation, shared) in admitted.into_iter().zip(shared) {
            let place = initiation.place;
            let result = self.verify_initiation(initiation, shared);
            let result = result.and_then(|initiation| {
                // The timestamp must be newer than that of the peer's last initiation, which may
                // be one of these.
                let peer = initiation.state.peer;
                if verified.iter().any(|it| it.state.peer == peer) {
                    self.respond_to_all(now, &mut verified, &mut results);
                }
                self.admit_timestamp(now, &initiation.state)?;
                verified.push(initiation);
                Ok(())
            });
            if let Err(reason) = result {
                results[place] = Err(reason);
            }
        }
        self.respond_to_all(now, &mut verified, &mut results);
        results
    }

    /// Finds the peer of an initiation, and verifies that the peer has made it.
    fn verify_initiation<'a>(
        &mut self,
        initiation: Received<'a, SealedInitiation>,
        shared: SharedSecrets,
    ) -> Result<Received<'a, Verified>, DropReason> {
        let crypto = self.core.crypto;
        let identity = self.core.identity.as_ref().ok_or(DropReason::NotReady)?;
        let forged = |_: NoiseError| DropReason::InitiationNotAuthentic;
        let Received {
            place,
            from,
            message,
            sender,
            state: sealed,
        } = initiation;
        let claim = sealed
            .open(crypto, &identity.keys, shared)
            .map_err(forged)?;

        let peer = self
            .peers
            .find(claim.public_key())
            .ok_or(DropReason::UnknownPeer)?;
        let entry = self.peers.entry(peer).ok_or(DropReason::UnknownPeer)?;
        if entry.refuses_ordinary() {
            return Err(DropReason::PostQuantumRequired);
        }
        let precomputed = entry
            .precomputed(crypto, &identity.keys)
            .ok_or(DropReason::InitiationNotAuthentic)?;
        let responder = claim.verify(crypto, &precomputed).map_err(forged)?;
        Ok(Received {
            place,
            from,
            message,
            sender,
            state: Verified {
                peer,
                precomputed,
                responder,
            },
        })
    }

    fn admit_timestamp(&mut self, now: Now, initiation: &Verified) -> Result<(), DropReason> {
        let entry = self.peers.entry(initiation.peer);
        let entry = entry.ok_or(DropReason::UnknownPeer)?;
        let timestamp = initiation.responder.timestamp();
        entry.admit_timestamp(self.core.crypto, now.boot, timestamp)
    }

    /// Responds to initiations of different peers, and removes them.
    fn respond_to_all(&mut self, now: Now, verified: &mut AllVerified<'_>, results: &mut Results) {
        let agreements = verified.iter().map(|it| it.state.responder.agreements());
        let shared = agree(self.core.crypto, agreements);
        for (initiation, shared) in verified.drain(..).zip(shared) {
            let place = initiation.place;
            results[place] = self.respond_to(now, initiation, shared);
        }
    }

    fn respond_to(
        &mut self,
        now: Now,
        initiation: Received<'_, Verified>,
        shared: SharedSecrets,
    ) -> Result<(), DropReason> {
        let Self { peers, core } = self;
        let Verified {
            peer,
            precomputed,
            responder,
        } = initiation.state;
        let entry = peers.entry(peer).ok_or(DropReason::UnknownPeer)?;
        let timestamp = responder.timestamp();
        let (fields, keys) = responder
            .respond_with(core.crypto, &entry.preshared_key, shared)
            .map_err(|_| DropReason::InitiationNotAuthentic)?;
        let Received { from, message, .. } = initiation;
        entry.accept_initiation(core.crypto, now.boot, from, timestamp, message);
        let purpose = IndexPurpose {
            peer,
            precomputed: &precomputed,
            timestamp,
        };
        core.send_response(now, entry, &purpose, initiation.sender, fields, &keys);
        core.run_pending_work(now, entry);
        Ok(())
    }
}

impl Core {
    fn admit_initiation<'a>(
        &mut self,
        now: Now,
        place: usize,
        received: &ReceivedInitiation<'a>,
    ) -> Result<Received<'a, SealedInitiation>, DropReason> {
        let ReceivedInitiation {
            from,
            message,
            under_load,
        } = *received;
        self.admit(now, from, Kind::Initiation, message, under_load)?;
        let initiation = Initiation::read_from_bytes(message).map_err(|_| DropReason::Length)?;
        let fields = InitiationFields {
            ephemeral: initiation.ephemeral,
            static_key: initiation.static_key,
            timestamp: initiation.timestamp,
        };
        Ok(Received {
            place,
            from,
            message,
            sender: initiation.sender.get(),
            state: SealedInitiation::new(fields, self.random.secret()),
        })
    }

    fn send_response(
        &mut self,
        now: Now,
        entry: &mut PeerEntry,
        purpose: &IndexPurpose<'_>,
        receiver: u32,
        fields: ResponseFields,
        keys: &TransportKeys,
    ) {
        let agreed = self.choose_responder_index(entry, purpose, receiver, None);
        let index = agreed.local_index;
        let mut response = Response {
            kind: U32::new(Kind::Response as u32),
            sender: U32::new(index),
            receiver: U32::new(receiver),
            ephemeral: fields.ephemeral,
            empty: fields.empty,
            macs: Macs::default(),
        };
        entry.handshakes(self.crypto).mac_writer.write_macs(
            self.crypto,
            now.boot,
            response.as_mut_bytes(),
        );
        let datagram = response.as_bytes().to_vec();
        let session = Arc::new(Session::new(self.crypto, keys, agreed, now.boot));
        self.path
            .sessions
            .insert(Arc::clone(&session), Arc::clone(&entry.peer));
        let mut state = lock(&entry.peer.state);
        state.sessions.install_responded(session);
        state.initiation.last_sent = Some(now.boot);
        state.sent(now.boot, datagram.len() as u64, Traffic::Other);
        if let Some(endpoint) = state.endpoint {
            self.outputs.push_back(Output::Transmit {
                endpoint,
                tos: HANDSHAKE_TOS,
                datagram,
            });
        }
    }
}

/// Computes the agreements of all initiations side by side.
fn agree<'a, Agreements: IntoIterator<Item = Agreement<'a>>>(
    crypto: &Provider,
    initiations: impl Iterator<Item = Agreements>,
) -> ArrayVec<SharedSecrets, INITIATIONS_AT_ONCE> {
    let mut agreements = ArrayVec::<_, { AGREEMENTS * INITIATIONS_AT_ONCE }>::new();
    let counts: ArrayVec<usize, INITIATIONS_AT_ONCE> = initiations
        .map(|initiation| {
            let before = agreements.len();
            agreements.extend(initiation);
            agreements.len() - before
        })
        .collect();
    let mut shared = [const { None }; AGREEMENTS * INITIATIONS_AT_ONCE];
    crypto.dh.agree_many(&agreements, &mut shared);
    let mut shared = shared.into_iter();
    counts
        .into_iter()
        .map(|count| {
            let mut own = shared.by_ref().take(count);
            core::array::from_fn(|_| own.next().flatten())
        })
        .collect()
}
