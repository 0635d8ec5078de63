//! A packet of a batch.

/// Bytes of a Poly1305 tag.
pub const TAG_LEN: usize = 16;

/// Bytes of the longest text: a block's number has 32 bits, and the first block is for the
/// tag's keys (RFC 8439 §2.8). One more would be encrypted with key stream that has been used.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) const MAX_TEXT_LEN: u64 = (1 << 38) - 64;

/// One packet of a batch.
///
/// To seal, `data` is the plaintext followed by [`TAG_LEN`] bytes of room for
/// the tag. To open, it is the ciphertext followed by the tag, and where that
/// succeeds the plaintext is `data[..data.len() - TAG_LEN]`.
pub struct Packet<'a> {
    /// The packet's number under its key; never seal twice with one.
    pub counter: u64,
    /// The bytes, worked on in place.
    pub data: &'a mut [u8],
}

/// Splits off the last [`TAG_LEN`] bytes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline]
pub(crate) fn split_tag(data: &mut [u8]) -> Option<(&mut [u8], &mut [u8; TAG_LEN])> {
    data.split_last_chunk_mut()
}

/// Overwrites a packet whose text is longer than `longest` bytes, and returns whether it did. Such
/// a packet cannot be sealed and must not leave in clear; one that was received is a forgery.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn erase_beyond(packet: &mut Packet<'_>, longest: u64) -> bool {
    let is_beyond = packet.data.len() as u64 > longest + TAG_LEN as u64;
    if is_beyond {
        packet.data.fill(0);
    }
    is_beyond
}
