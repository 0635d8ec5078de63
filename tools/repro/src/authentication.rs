//! Authentication of the ends: the difference between the two published handshakes.

use crate::error::Error;
use taupe_crypto::Secret;
use zeroize::Zeroizing;

/// This end's private long-term key and the other's public one.
///
/// **For comparison only.** Each message has an authentication field: in
/// [`Fujioka`](crate::fujioka::Fujioka) a ciphertext that only the receiver can decapsulate, in
/// [`DelPino`](crate::del_pino::DelPino) a signature that only the sender can make.
pub trait Authentication: Send + Sync {
    /// Returns this end's public key. It is never sent.
    fn local(&self) -> &[u8];

    /// Returns the other end's public key.
    fn remote(&self) -> &[u8];

    /// Returns the length of the field in bytes.
    fn field_len(&self) -> usize;

    /// Makes the field of a message with the ephemeral part `ephemeral` (its key, or the ciphertext
    /// to the other's key) from 32 uniformly random bytes.
    fn make(&self, ephemeral: &[u8], coins: &Secret<32>) -> Field;

    /// Returns the bytes that a received field mixes into the chaining key. This alone proves
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] or [`Error::Kem`].
    fn open(&self, field: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error>;

    /// Checks a received field itself, as far as possible.
    ///
    /// # Errors
    ///
    /// [`Error::Signature`].
    fn check(&self, ephemeral: &[u8], field: &[u8]) -> Result<(), Error>;
}

/// An authentication field.
pub struct Field {
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// The bytes mixed into the chaining key.
    pub mixed: Zeroizing<Vec<u8>>,
}
