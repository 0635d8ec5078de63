//! Packets of a batch.

#[cfg(target_arch = "x86_64")]
use crate::text::Text;

/// Bytes of a Poly1305 tag.
pub const TAG_LEN: usize = 16;

/// Bytes of the longest text: a block's number has 32 bits, and the first block is for the
/// tag's keys (RFC 8439 §2.8). One more would be encrypted with key stream that has been used.
#[cfg(target_arch = "x86_64")]
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

/// One packet of a batch that is sealed into another buffer, so that its plaintext stays.
pub struct OutOfPlace<'a> {
    counter: u64,
    text: &'a [u8],
    /// Room for the ciphertext and the tag.
    sealed: &'a mut [u8],
}

impl<'a> OutOfPlace<'a> {
    /// Returns a packet with this plaintext. `counter` is its number under its key: never seal
    /// twice with one. The ciphertext and the tag are written to `sealed`. Returns `None`
    /// unless `sealed` is [`TAG_LEN`] bytes longer than `text`.
    #[must_use]
    pub fn new(counter: u64, text: &'a [u8], sealed: &'a mut [u8]) -> Option<Self> {
        let fits = sealed.len().checked_sub(TAG_LEN) == Some(text.len());
        fits.then_some(Self {
            counter,
            text,
            sealed,
        })
    }

    /// Copies the plaintext to its place before the tag, and returns the packet that is sealed
    /// there.
    pub fn copy(&mut self) -> Packet<'_> {
        let (text, _) = self.sealed.split_at_mut(self.text.len());
        text.copy_from_slice(self.text);
        Packet {
            counter: self.counter,
            data: self.sealed,
        }
    }
}

/// A packet as the implementations see it.
#[cfg(target_arch = "x86_64")]
pub(crate) trait AnyPacket {
    fn counter(&self) -> u64;

    /// Bytes of the text and the tag.
    fn len(&self) -> usize;

    /// Returns the text and the tag that follows its result. Returns `None` if there is no room for
    /// a tag.
    fn split(&mut self) -> Option<(Text<'_>, &mut [u8; TAG_LEN])>;

    /// Overwrites the result with zeros.
    fn erase(&mut self);
}

#[cfg(target_arch = "x86_64")]
impl AnyPacket for Packet<'_> {
    #[inline]
    fn counter(&self) -> u64 {
        self.counter
    }

    #[inline]
    fn len(&self) -> usize {
        self.data.len()
    }

    #[inline]
    fn split(&mut self) -> Option<(Text<'_>, &mut [u8; TAG_LEN])> {
        let (text, tag) = self.data.split_last_chunk_mut()?;
        Some((Text::in_place(text), tag))
    }

    fn erase(&mut self) {
        self.data.fill(0);
    }
}

#[cfg(target_arch = "x86_64")]
impl AnyPacket for OutOfPlace<'_> {
    #[inline]
    fn counter(&self) -> u64 {
        self.counter
    }

    #[inline]
    fn len(&self) -> usize {
        self.sealed.len()
    }

    #[inline]
    fn split(&mut self) -> Option<(Text<'_>, &mut [u8; TAG_LEN])> {
        let (result, tag) = self.sealed.split_last_chunk_mut()?;
        Some((Text::out_of_place(self.text, result), tag))
    }

    fn erase(&mut self) {
        self.sealed.fill(0);
    }
}
