//! What can be wrong with what is received.

use thiserror::Error;

/// Why a message was refused.
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
    /// A Kyber key with a coefficient that is not reduced.
    #[error("the Kyber key is malformed: it has a coefficient that is not below 3329")]
    Modulus,
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
