//! Where the two published handshakes differ: how the ends prove who they are.

use crate::error::Error;
use taupe_crypto::Secret;
use zeroize::Zeroizing;

/// This end's private long-term key and the other's public one.
///
/// **For comparison only.** Each message has a field that authenticates: in
/// [`Fujioka`](crate::fujioka::Fujioka) a ciphertext that only its receiver can
/// open, in [`DelPino`](crate::del_pino::DelPino) a signature that only its sender
/// can make.
pub trait Authentication: Send + Sync {
    /// This end's public key. It is never sent.
    fn local(&self) -> &[u8];

    /// The other end's.
    fn remote(&self) -> &[u8];

    /// Bytes of the field.
    fn field_len(&self) -> usize;

    /// Makes the field of a message whose ephemeral part (its key, or the
    /// ciphertext to that) is `ephemeral`, from 32 uniformly random bytes.
    fn make(&self, ephemeral: &[u8], coins: &Secret<32>) -> Field;

    /// What a received field mixes into the chaining key. That alone proves
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] or [`Error::Kem`].
    fn open(&self, field: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error>;

    /// Checks what can be checked of a received field itself.
    ///
    /// # Errors
    ///
    /// [`Error::Signature`].
    fn check(&self, ephemeral: &[u8], field: &[u8]) -> Result<(), Error>;
}

/// What authenticates a message.
pub struct Field {
    /// As it is sent.
    pub bytes: Vec<u8>,
    /// What it mixes into the chaining key.
    pub mixed: Zeroizing<Vec<u8>>,
}
