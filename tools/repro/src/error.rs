//! Errors of received messages and keys.

use taupe_crypto::{InvalidKemInput, NotAuthentic};
use thiserror::Error;

/// Reason why a message or a key was rejected. The state is then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An input of the wrong length.
    #[error("{what} is {actual} bytes long, but must be {expected} in this handshake")]
    Length {
        /// The input.
        what: &'static str,
        /// Bytes received.
        actual: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A message of another type, or with reserved bytes that are not zero.
    #[error("the message is no {expected}")]
    Type {
        /// The expected type.
        expected: &'static str,
    },
    /// The first MAC is wrong: the message is for another public key, or was changed.
    #[error("the message's first MAC is not one for this end's public key")]
    Mac,
    /// A response to another handshake.
    #[error("the response is for index {actual}, but this handshake has {expected}")]
    Receiver {
        /// The index in the message.
        actual: u32,
        /// The index of this handshake.
        expected: u32,
    },
    /// An initiation from someone other than the other end.
    #[error("the initiation is from a public key that this end does not know")]
    Stranger,
    /// An initiation whose timestamp is not greater than that of an earlier one.
    #[error("the initiation has been received before, or is older than one that has")]
    Repeated,
    /// A signature that is not the other end's, or not of the required message.
    #[error("the signature is not the other end's")]
    Signature,
    /// An encrypted field does not verify: other keys, or a changed message.
    #[error("the message does not verify: it was changed, or made with other keys")]
    NotAuthentic,
    /// An ephemeral key with a coefficient that is not reduced.
    #[error("the Kyber key is malformed: it has a coefficient that is not below 3329")]
    Modulus,
    /// A long-term key, or a ciphertext to one, is invalid.
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
