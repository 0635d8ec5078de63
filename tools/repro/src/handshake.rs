//! The handshake, as a state machine without I/O.
//!
//! **For comparison only.** Messages, little-endian, in wire order:
//!
//! | initiation                         | bytes | response                    | bytes |
//! |------------------------------------|-------|-----------------------------|-------|
//! | type 1, reserved                   | 4     | type 2, reserved            | 4     |
//! | sender                             | 4     | sender                      | 4     |
//! | ephemeral public key               | 800, 1184 | receiver                | 4     |
//! | the initiator's hashed public key, encrypted | 48 | ciphertext to the ephemeral key | 608, 1088 |
//! | TAI64N timestamp, encrypted        | 28    | authentication              | as left |
//! | authentication: ciphertext or signature | 66 to 1088 | nothing, encrypted | 16    |
//! | mac1                               | 16    | mac1                        | 16    |
//! | mac2                               | 16    | mac2                        | 16    |
//!
//! mac2 is zero here: WireGuard's cookies are not reproduced.

use crate::authentication::Authentication;
use crate::ephemeral;
use crate::error::Error;
use crate::pke::{self, Parameters, PrivateKey, PublicKey, Seeding};
use crate::transcript::Transcript;
use subtle::ConstantTimeEq;
use taupe_crypto::{Provider, Secret, TAG_LEN};

const INITIATION: u32 = 1;
const RESPONSE: u32 = 2;
const IDENTITY_LEN: usize = 32;
const LABEL_LEN: usize = 12;
const MAC_LEN: usize = 16;

/// Fills a buffer with uniformly random bytes.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// One end of a tunnel.
pub struct End {
    crypto: &'static Provider,
    ephemeral: Parameters,
    authentication: Box<dyn Authentication>,
    preshared: Secret<32>,
    /// Initial transcripts of handshakes that this end begins, and of those that it responds to.
    initiated: Transcript,
    requested: Transcript,
    /// BLAKE2s of this end's public key, and of the other's.
    local_identity: [u8; IDENTITY_LEN],
    remote_identity: [u8; IDENTITY_LEN],
    /// Keys of mac1 in messages to this end, and to the other.
    local_mac_key: [u8; 32],
    remote_mac_key: [u8; 32],
}

/// The keys and indices of a session.
pub struct Session {
    /// Index of the session in messages to this end.
    pub local_index: u32,
    /// Index of the session in messages to the other end.
    pub remote_index: u32,
    /// Encrypts messages from this end.
    pub send: Secret<32>,
    /// Decrypts messages from the other end.
    pub receive: Secret<32>,
}

impl End {
    /// Creates an end that authenticates by `authentication` and has ephemeral keys of `ephemeral`.
    ///
    /// Without a `preshared` key it uses the published substitute, which is derived from both
    /// public keys ([`published_preshared_key`]).
    #[must_use]
    pub fn new(
        crypto: &'static Provider,
        ephemeral: Parameters,
        authentication: Box<dyn Authentication>,
        preshared: Option<Secret<32>>,
    ) -> Self {
        let (local, remote) = (authentication.local(), authentication.remote());
        let hash = |parts: &[&[u8]]| crypto.hash.hash(parts);
        Self {
            preshared: preshared.unwrap_or_else(|| published_preshared_key(crypto, local, remote)),
            initiated: Transcript::new(crypto, remote),
            requested: Transcript::new(crypto, local),
            local_identity: hash(&[local]),
            remote_identity: hash(&[remote]),
            local_mac_key: hash(&[b"mac1----", local]),
            remote_mac_key: hash(&[b"mac1----", remote]),
            crypto,
            ephemeral,
            authentication,
        }
    }

    /// Returns the length of an initiation in bytes.
    #[must_use]
    pub fn initiation_len(&self) -> usize {
        let sealed = IDENTITY_LEN + TAG_LEN + LABEL_LEN + TAG_LEN;
        let field = self.authentication.field_len();
        8 + self.ephemeral.public_key_len() + sealed + field + 2 * MAC_LEN
    }

    /// Returns the length of a response in bytes.
    #[must_use]
    pub fn response_len(&self) -> usize {
        let field = self.authentication.field_len();
        12 + self.ephemeral.ciphertext_len() + field + TAG_LEN + 2 * MAC_LEN
    }

    /// Appends mac1 and an empty mac2.
    fn finish(&self, message: &mut Vec<u8>) {
        let mac = self.crypto.hash.mac(&self.remote_mac_key, &[message]);
        message.extend_from_slice(&mac);
        message.extend_from_slice(&[0; MAC_LEN]);
    }

    /// Performs all checks that need no long-term key, and returns the fields between the type and
    /// the MACs.
    fn unwrap<'a>(
        &self,
        what: &'static str,
        kind: u32,
        message: &'a [u8],
        expected: usize,
    ) -> Result<Fields<'a>, Error> {
        Error::check_length(what, message, expected)?;
        let (covered, macs) = message.split_at(message.len() - 2 * MAC_LEN);
        let mac = self.crypto.hash.mac(&self.local_mac_key, &[covered]);
        if !bool::from(mac.ct_eq(&macs[..MAC_LEN])) {
            return Err(Error::Mac);
        }
        let mut fields = Fields(covered);
        if fields.number() == kind {
            Ok(fields)
        } else {
            Err(Error::Type { expected: what })
        }
    }
}

/// Returns BLAKE2s of the bitwise *or* of two public keys of equal length: the preshared key if
/// none is configured.
///
/// It is no secret from anyone who knows the public keys. The *or* also discards information;
/// Hülsing et al., who proposed the idea, use *exclusive or*.
#[must_use]
pub fn published_preshared_key(crypto: &Provider, one: &[u8], other: &[u8]) -> Secret<32> {
    let joined: Vec<_> = one.iter().zip(other).map(|(a, b)| a | b).collect();
    Secret::new(crypto.hash.hash(&[&joined]))
}

/// An initiator that waits for the response.
pub struct Initiator {
    transcript: Transcript,
    ephemeral: PrivateKey,
    index: u32,
}

impl Initiator {
    /// Makes an initiation. `index` is the session's index in messages from the other end, `label`
    /// a TAI64N timestamp greater than any before.
    #[must_use]
    pub fn start(
        end: &End,
        index: u32,
        label: [u8; LABEL_LEN],
        random: Random<'_>,
    ) -> (Self, Vec<u8>) {
        let mut transcript = end.initiated.clone();
        let mut message = Vec::with_capacity(end.initiation_len());
        message.extend_from_slice(&INITIATION.to_le_bytes());
        message.extend_from_slice(&index.to_le_bytes());

        // C := KDF1(C, E_i^pub); H := HASH(H ‖ E_i^pub)
        let (ephemeral, public) = pke::key_pair(&end.ephemeral, Seeding::Round3, &secret(random));
        transcript.mix(&public);
        transcript.mix_hash(&public);
        message.extend_from_slice(&public);

        // (C, k) := KDF2(C, field); static := AEAD(k, 0, HASH(S_i^pub), H)
        let field = end.authentication.make(&public, &secret(random));
        let key = transcript.mix_key(&field.mixed);
        message.extend_from_slice(&transcript.seal(&key, &end.local_identity));

        // (C, k) := KDF2(C, Q); C := KDF1(C, Q); timestamp := AEAD(k, 0, label, H)
        let key = transcript.mix_key(end.preshared.expose());
        transcript.mix(end.preshared.expose());
        message.extend_from_slice(&transcript.seal(&key, &label));

        message.extend_from_slice(&field.bytes);
        end.finish(&mut message);
        let state = Self {
            transcript,
            ephemeral,
            index,
        };
        (state, message)
    }

    /// Verifies a response and derives the session's keys. The state is not modified, so a forged
    /// response changes nothing.
    ///
    /// # Errors
    ///
    /// Any [`Error`] except [`Error::Stranger`]. [`Error::NotAuthentic`] is also the result of a
    /// failed decryption, which requires a new handshake.
    pub fn finish(&self, end: &End, response: &[u8]) -> Result<Session, Error> {
        let mut fields = end.unwrap("response", RESPONSE, response, end.response_len())?;
        let remote_index = fields.number();
        let receiver = fields.number();
        if receiver != self.index {
            return Err(Error::Receiver {
                actual: receiver,
                expected: self.index,
            });
        }
        let ciphertext = fields.take(end.ephemeral.ciphertext_len());
        let field = fields.take(end.authentication.field_len());

        // C := KDF1(C, ct₂); C := KDF1(C, shk₂); H := HASH(H ‖ ct₂)
        let mut transcript = self.transcript.clone();
        let shared = ephemeral::decapsulate(end.crypto, &self.ephemeral, ciphertext)?;
        transcript.mix(ciphertext);
        transcript.mix(shared.expose());
        transcript.mix_hash(ciphertext);
        // C := KDF1(C, field); (C, τ, k) := KDF3(C, Q); H := HASH(H ‖ τ)
        transcript.mix(&end.authentication.open(field)?);
        let key = transcript.mix_preshared(&end.preshared);
        transcript.open(&key, fields.take(TAG_LEN))?;
        end.authentication.check(ciphertext, field)?;

        let [send, receive] = transcript.split();
        Ok(Session {
            local_index: self.index,
            remote_index,
            send,
            receive,
        })
    }
}

/// A verified initiation.
///
/// With [`Fujioka`](crate::fujioka::Fujioka), the initiation proves no more than knowledge of the
/// preshared key. The initiator proves possession of its long-term key only when it uses the
/// session.
pub struct Responder<'a> {
    end: &'a End,
    transcript: Transcript,
    ephemeral: PublicKey,
    index: u32,
    label: [u8; LABEL_LEN],
}

impl<'a> Responder<'a> {
    /// Verifies an initiation.
    ///
    /// # Errors
    ///
    /// Any [`Error`] except [`Error::Receiver`].
    pub fn accept(end: &'a End, initiation: &[u8]) -> Result<Self, Error> {
        let mut fields = end.unwrap("initiation", INITIATION, initiation, end.initiation_len())?;
        let index = fields.number();
        let public = fields.take(end.ephemeral.public_key_len());
        let identity = fields.take(IDENTITY_LEN + TAG_LEN);
        let label = fields.take(LABEL_LEN + TAG_LEN);
        let field = fields.take(end.authentication.field_len());

        let mut transcript = end.requested.clone();
        transcript.mix(public);
        transcript.mix_hash(public);
        let key = transcript.mix_key(&end.authentication.open(field)?);
        let identity = transcript.open(&key, identity)?;
        if !bool::from(identity[..].ct_eq(&end.remote_identity)) {
            return Err(Error::Stranger);
        }
        let key = transcript.mix_key(end.preshared.expose());
        transcript.mix(end.preshared.expose());
        let opened = transcript.open(&key, label)?;
        end.authentication.check(public, field)?;

        let mut label = [0; LABEL_LEN];
        label.copy_from_slice(&opened);
        Ok(Self {
            end,
            transcript,
            ephemeral: PublicKey::read(&end.ephemeral, public)?,
            index,
            label,
        })
    }

    /// Returns the initiation's timestamp, which must be greater than any before.
    #[must_use]
    pub fn label(&self) -> [u8; LABEL_LEN] {
        self.label
    }

    /// Makes the response and derives the session's keys. `index` is the session's index in
    /// messages from the other end.
    #[must_use]
    pub fn respond(mut self, index: u32, random: Random<'_>) -> (Vec<u8>, Session) {
        let end = self.end;
        let mut message = Vec::with_capacity(end.response_len());
        for number in [RESPONSE, index, self.index] {
            message.extend_from_slice(&number.to_le_bytes());
        }

        let (ciphertext, shared) =
            ephemeral::encapsulate(end.crypto, &self.ephemeral, &secret(random));
        self.transcript.mix(&ciphertext);
        self.transcript.mix(shared.expose());
        self.transcript.mix_hash(&ciphertext);
        let field = end.authentication.make(&ciphertext, &secret(random));
        self.transcript.mix(&field.mixed);
        let key = self.transcript.mix_preshared(&end.preshared);

        message.extend_from_slice(&ciphertext);
        message.extend_from_slice(&field.bytes);
        message.extend_from_slice(&self.transcript.seal(&key, &[]));
        end.finish(&mut message);

        let [receive, send] = self.transcript.split();
        let session = Session {
            local_index: index,
            remote_index: self.index,
            send,
            receive,
        };
        (message, session)
    }
}

fn secret(random: Random<'_>) -> Secret<32> {
    let mut secret = Secret::zeroed();
    random(secret.expose_mut());
    secret
}

/// The remaining fields of a message whose length was checked: reads cannot fail.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (field, rest) = self.0.split_at(len);
        self.0 = rest;
        field
    }

    fn number(&mut self) -> u32 {
        let (number, rest) = self.0.split_first_chunk().expect("the length was checked");
        self.0 = rest;
        u32::from_le_bytes(*number)
    }
}
