//! What can be wrong with what is received.

use taupe_crypto::{InvalidKemInput, NotAuthentic};
use thiserror::Error;

/// Why a message or a key was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Something of the wrong length.
    #[error("{what} is {actual} bytes long, but must be {expected} in this handshake")]
    Length {
        /// Which input.
        what: &'static str,
        /// Bytes received.
        actual: usize,
        /// Bytes that it has.
        expected: usize,
    },
    /// A message of another type, or with reserved bytes that are not zero.
    #[error("the message is no {expected}")]
    Type {
        /// What it should be.
        expected: &'static str,
    },
    /// The first MAC is wrong: the message is for another public key, or changed.
    #[error("the message's first MAC is not one for this end's public key")]
    Mac,
    /// A response to another handshake.
    #[error("the response is for index {actual}, but this handshake has {expected}")]
    Receiver {
        /// The index in the message.
        actual: u32,
        /// That of this handshake.
        expected: u32,
    },
    /// An initiation from somebody else than the other end.
    #[error("the initiation is from a public key that this end does not know")]
    Stranger,
    /// An initiation whose label is not greater than that of an earlier one.
    #[error("the initiation has been received before, or is older than one that has")]
    Repeated,
    /// A signature that is not the other end's of what it must be of.
    #[error("the signature is not the other end's")]
    Signature,
    /// An encrypted field does not verify: other keys, or a changed message.
    #[error("the message does not verify: it was changed, or made with other keys")]
    NotAuthentic,
    /// An ephemeral key with a coefficient that is not reduced.
    #[error("the Kyber key is malformed: it has a coefficient that is not below 3329")]
    Modulus,
    /// A long-term key or a ciphertext to one.
    #[error(transparent)]
    Kem(#[from] InvalidKemInput),
}

impl From<NotAuthentic> for Error {
    fn from(_: NotAuthentic) -> Self {
        Self::NotAuthentic
    }
}

impl Error {
    /// Checks the length of a received `what`.
    pub(crate) fn check_length(
        what: &'static str,
        bytes: &[u8],
        expected: usize,
    ) -> Result<(), Self> {
        if bytes.len() == expected {
            return Ok(());
        }
        Err(Self::Length {
            what,
            actual: bytes.len(),
            expected,
        })
    }
}
