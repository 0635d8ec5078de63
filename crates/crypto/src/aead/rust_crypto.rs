//! AEADs of the RustCrypto project, which work on a detached tag, behind the
//! calling convention of [`Aead`](crate::Aead): the tag is the end of `data`.
//!
//! The cipher object zeroises its key on drop, and so does ChaCha20's state.
//! Not cleared: the Poly1305 state of a packet, with its one-time key, and
//! registers.

use super::{NotAuthentic, split_tag};
use chacha20poly1305::{
    AeadInOut,
    aead::{array::Array, inout::InOutBuf},
    consts::U16,
};

/// Encrypts `data[..len - 16]` in place and puts the tag after it.
pub(crate) fn seal<C>(cipher: &C, nonce: &Array<u8, C::NonceSize>, ad: &[u8], data: &mut [u8])
where
    C: AeadInOut<TagSize = U16>,
{
    let Some((text, tag)) = split_tag(data) else {
        return;
    };
    match cipher.encrypt_inout_detached(nonce, ad, InOutBuf::from(&mut *text)) {
        Ok(computed) => *tag = computed.into(),
        // Only beyond 256 GiB. What cannot be sealed must not leave in clear.
        Err(_) => data.fill(0),
    }
}

/// Decrypts `data[..len - 16]` in place if the tag after it is right.
pub(crate) fn open<C>(
    cipher: &C,
    nonce: &Array<u8, C::NonceSize>,
    ad: &[u8],
    data: &mut [u8],
) -> Result<(), NotAuthentic>
where
    C: AeadInOut<TagSize = U16>,
{
    let (text, tag) = split_tag(data).ok_or(NotAuthentic)?;
    cipher
        .decrypt_inout_detached(nonce, ad, InOutBuf::from(text), (&*tag).into())
        .map_err(|_| NotAuthentic)
}
