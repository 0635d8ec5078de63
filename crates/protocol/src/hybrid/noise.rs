//! Key schedule of hybrid handshakes, as specified in docs/post-quantum.md; independent of peers,
//! and of the MACs of initiations. The specification's lines are quoted above the code that
//! implements them.
//!
//! ```text
//! initiator                                      responder
//! HybridInitiator::start ──────────────── A, B ──► HybridClaim::open → HybridClaim::verify
//!                                                   → VerifiedPartA::read_part_b → HybridResponder
//! HybridInitiator::read_part_a            ◄── A, B ── HybridResponder::respond → keys
//!   → AwaitingPartB::read_part_b → keys
//! ```
//!
//! A part that does not verify changes nothing: states are only read.

mod initiator;
mod responder;

use taupe_crypto::{InvalidKemInput, Provider};

use crate::handshake::noise::{NoiseError, StaticKeys, Transcript};
use crate::hybrid::LocalKeys;
use crate::message::{Part, Reader, TAG_B_LEN};
use crate::suite::Suite;

pub use initiator::{AwaitingPartB, HybridInitiator, PartAOutcome};
pub use responder::{HybridClaim, HybridResponder, VerifiedPartA};

const IDENTIFIER: &[u8] = b"Taupe v1";

impl From<InvalidKemInput> for NoiseError {
    fn from(_: InvalidKemInput) -> Self {
        Self::NotAuthentic
    }
}

/// This side's keys.
#[derive(Clone, Copy)]
pub struct Local<'a> {
    /// Its X25519 keys.
    pub keys: &'a StaticKeys,
    /// Its ML-KEM keys.
    pub hybrid: &'a LocalKeys,
}

/// The parts of a message. Those of an initiation have zeros in place of their MACs; those of a
/// response include them.
pub type Parts = Vec<Vec<u8>>;

/// C := HASH(CONSTRUCTION); H := HASH(HASH(C ‖ IDENTIFIER) ‖ Id_r)
fn begin(crypto: &Provider, suite: Suite, responder: &[u8; 32]) -> Transcript {
    Transcript::new(crypto, suite.construction(), IDENTIFIER, responder)
}

/// Mixes the second part of an initiation and returns its tag.
fn mix_part_b(
    crypto: &Provider,
    transcript: &mut Transcript,
    prefix: &[u8],
    encapsulation_key: &[u8],
) -> [u8; TAG_B_LEN] {
    // H := HASH(H ‖ header); H := HASH(H ‖ EK_e); (C, k) := KDF2(C, ε)
    transcript.mix_hash(crypto, prefix);
    transcript.mix_hash(crypto, encapsulation_key);
    let key = transcript.derive_key(crypto);
    // tag := the first 8 bytes of MAC(k, H); H := HASH(H ‖ tag)
    let mac = crypto.hash.mac(key.expose(), &[transcript.hash()]);
    let mut tag = [0; TAG_B_LEN];
    tag.copy_from_slice(&mac[..TAG_B_LEN]);
    transcript.mix_hash(crypto, &tag);
    tag
}

fn read<'a>(part: Part, bytes: &'a [u8]) -> Result<(&'a [u8], Reader<'a>), NoiseError> {
    Reader::new(part, bytes).ok_or(NoiseError::NotAuthentic)
}
