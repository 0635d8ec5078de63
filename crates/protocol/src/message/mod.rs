//! Messages on the wire (whitepaper §5.4). Only this module knows their layout.
//!
//! The type is compared as one little-endian word, so that the three reserved bytes must be zero.
//! A handshake message must have exactly the length of its type.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use core::mem::offset_of;

use taupe_crypto::TAG_LEN;

mod part;

pub use part::{Half, Part, Side};
pub(crate) use part::{
    IDENTITY_LEN, MAC_LEN, MACS_LEN, MAX_PART_LEN, Reader, TAG_B_LEN, Writer, indices, lasting,
};

/// Kinds of message, with their numbers on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// First message of a handshake, 148 bytes.
    Initiation = 1,
    /// Second message of a handshake, 92 bytes.
    Response = 2,
    /// Reply with a cookie to a handshake message, 64 bytes.
    CookieReply = 3,
    /// An encrypted packet, 32 bytes or more.
    Data = 4,
    /// A part of a hybrid initiation.
    HybridInitiation = Side::Initiation as u32,
    /// A part of a hybrid response.
    HybridResponse = Side::Response as u32,
}

/// Reason why a datagram is not a WireGuard message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than any message, or not of the length of its type.
    Length,
    /// Unknown type, or non-zero reserved bytes.
    Type,
}

/// Returns the kind of message in `datagram`, after a check of its type and length. The contents
/// may still be forged.
///
/// # Errors
/// [`Malformed`] if no part of this crate would accept the datagram.
pub fn classify(datagram: &[u8]) -> Result<Kind, Malformed> {
    let word = datagram.first_chunk().ok_or(Malformed::Length)?;
    let length = datagram.len();
    let (kind, fits) = match u32::from_le_bytes(*word) {
        1 => (Kind::Initiation, length == size_of::<Initiation>()),
        2 => (Kind::Response, length == size_of::<Response>()),
        3 => (Kind::CookieReply, length == size_of::<CookieReply>()),
        4 => (Kind::Data, length >= DATA_OVERHEAD),
        _ => {
            let part = Part::of(*word).ok_or(Malformed::Type)?;
            let kind = match part.side {
                Side::Initiation => Kind::HybridInitiation,
                Side::Response => Kind::HybridResponse,
            };
            (kind, length == part.len())
        }
    };
    if fits {
        Ok(kind)
    } else {
        Err(Malformed::Length)
    }
}

/// First bytes and length of a kind of handshake message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shape {
    /// Its first four bytes.
    pub header: [u8; 4],
    /// Its length in bytes.
    pub length: usize,
    /// Offset of the index that a reply repeats from the message it answers ([`sent_index`]);
    /// `None` for messages that are not replies.
    pub receiver_at: Option<usize>,
}

/// Returns the shapes of all messages that [`classify`] accepts, except transport data. For
/// callers that separate handshake messages from data before they call this crate.
pub fn shapes() -> impl Iterator<Item = Shape> {
    let in_response = Some(offset_of!(Response, receiver));
    let in_cookie_reply = Some(offset_of!(CookieReply, receiver));
    let ordinary = [
        (Kind::Initiation, size_of::<Initiation>(), None),
        (Kind::Response, size_of::<Response>(), in_response),
        (Kind::CookieReply, size_of::<CookieReply>(), in_cookie_reply),
    ];
    let ordinary = ordinary.map(|(kind, length, receiver_at)| Shape {
        header: (kind as u32).to_le_bytes(),
        length,
        receiver_at,
    });
    let parts = Part::all().map(move |part| Shape {
        header: part.header(),
        length: part.len(),
        receiver_at: match part.side {
            Side::Initiation => None,
            Side::Response => in_response,
        },
    });
    ordinary.into_iter().chain(parts)
}

/// Returns the sender's index in a message that may be answered. The answer repeats it.
#[must_use]
pub fn sent_index(message: &[u8]) -> Option<u32> {
    match classify(message) {
        Ok(Kind::CookieReply | Kind::Data) | Err(_) => None,
        Ok(_) => {
            // The index is at the same offset in all of them.
            let index = message.get(offset_of!(Initiation, sender)..)?;
            Some(u32::from_le_bytes(*index.first_chunk()?))
        }
    }
}

/// Length in bytes of the longest handshake message: a part of a hybrid one
/// (docs/post-quantum.md). It crosses every network without fragmentation.
pub const LONGEST_HANDSHAKE: usize = MAX_PART_LEN;

/// Handshake initiation (whitepaper §5.4.2).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Initiation {
    /// [`Kind::Initiation`].
    pub kind: U32,
    /// The initiator's index for the new session.
    pub sender: U32,
    /// The initiator's ephemeral public key, in clear.
    pub ephemeral: [u8; 32],
    /// The initiator's static public key, encrypted.
    pub static_key: [u8; 32 + TAG_LEN],
    /// TAI64N timestamp, encrypted.
    pub timestamp: [u8; 12 + TAG_LEN],
    /// The two MACs.
    pub macs: Macs,
}

/// Handshake response (whitepaper §5.4.3).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Response {
    /// [`Kind::Response`].
    pub kind: U32,
    /// The responder's index for the session.
    pub sender: U32,
    /// The initiator's index, from its initiation.
    pub receiver: U32,
    /// The responder's ephemeral public key, in clear.
    pub ephemeral: [u8; 32],
    /// The encrypted empty plaintext: proves that the responder has the keys.
    pub empty: [u8; TAG_LEN],
    /// The two MACs.
    pub macs: Macs,
}

/// Cookie reply (whitepaper §5.4.7).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CookieReply {
    /// [`Kind::CookieReply`].
    pub kind: U32,
    /// The sender's index from the message that is answered.
    pub receiver: U32,
    /// XChaCha20-Poly1305 nonce.
    pub nonce: [u8; 24],
    /// The cookie, encrypted.
    pub cookie: [u8; 16 + TAG_LEN],
}

/// The fields that end both handshake messages (whitepaper §5.4.4).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Default)]
#[repr(C)]
pub(crate) struct Macs {
    /// Over all bytes before it, keyed with the receiver's public key.
    pub mac1: [u8; 16],
    /// Over all bytes before it, keyed with a cookie; zeros without a cookie.
    pub mac2: [u8; 16],
}

/// Header of transport data, before the ciphertext (whitepaper §5.4.6).
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct DataHeader {
    /// [`Kind::Data`].
    pub kind: U32,
    /// The receiver's index of the session.
    pub receiver: U32,
    /// The nonce.
    pub counter: U64,
}

/// Length in bytes of an ordinary initiation.
pub const INITIATION_LEN: usize = size_of::<Initiation>();
/// Length in bytes of an ordinary response.
pub const RESPONSE_LEN: usize = size_of::<Response>();
/// Length in bytes of the header of transport data.
pub const DATA_HEADER_LEN: usize = size_of::<DataHeader>();
/// Bytes that transport data adds to its padded plaintext; also the length of a keepalive.
pub const DATA_OVERHEAD: usize = DATA_HEADER_LEN + TAG_LEN;

const _: () = {
    assert!(INITIATION_LEN == 148);
    assert!(RESPONSE_LEN == 92);
    assert!(size_of::<CookieReply>() == 64);
    assert!(DATA_OVERHEAD == 32);
};

/// Returns the receiver's index and the counter in a header of transport data. `None` if
/// `datagram` is too short. The type is not checked.
#[must_use]
pub fn data_header(datagram: &[u8]) -> Option<(u32, u64)> {
    let (header, _) = DataHeader::ref_from_prefix(datagram).ok()?;
    Some((header.receiver.get(), header.counter.get()))
}

/// Writes the header of transport data into the first bytes of `message`. Leaves a `message` that
/// is too short unchanged.
pub fn write_data_header(message: &mut [u8], receiver: u32, counter: u64) {
    if let Ok((header, _)) = DataHeader::mut_from_prefix(message) {
        header.kind = U32::new(Kind::Data as u32);
        header.receiver = U32::new(receiver);
        header.counter = U64::new(counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Upper bound of the length of a UDP datagram, in bytes.
    const MOST: usize = 65_535;

    /// Returns a datagram of maximum length that starts with `header`; tests use its beginning.
    fn datagram(header: [u8; 4]) -> Vec<u8> {
        let mut datagram = vec![0; MOST];
        datagram[..4].copy_from_slice(&header);
        datagram
    }

    #[test]
    fn the_shapes_are_all_that_is_classified() {
        // All values of the first three bytes; the fourth is always zero.
        let headers = (0..1 << 24).map(u32::to_le_bytes);
        let known = headers.filter(|header| classify(header) != Err(Malformed::Type));
        let classified: BTreeSet<_> = known
            .flat_map(|header| {
                let datagram = datagram(header);
                let lengths = 0..=MOST;
                let handshakes = lengths.filter(move |length| {
                    classify(&datagram[..*length]).is_ok_and(|kind| kind != Kind::Data)
                });
                handshakes.map(move |length| (header, length))
            })
            .collect();
        let listed: Vec<_> = shapes().map(|shape| (shape.header, shape.length)).collect();
        assert_eq!(listed.len(), classified.len(), "one is there twice");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), classified);
    }

    #[test]
    fn an_answer_repeats_the_index_of_what_it_answers() {
        for shape in shapes() {
            let mut message = datagram(shape.header);
            message[4..12].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
            message.truncate(shape.length);
            let kind = classify(&message).expect("one of them");
            let sent = (kind != Kind::CookieReply).then_some(0x0403_0201);
            assert_eq!(sent_index(&message), sent, "{shape:?}");
            let receiver_at = match kind {
                Kind::Response | Kind::HybridResponse => Some(8),
                Kind::CookieReply => Some(4),
                _ => None,
            };
            assert_eq!(shape.receiver_at, receiver_at, "{shape:?}");
        }
        let data = [[4, 0, 0, 0, 1, 2, 3, 4].as_slice(), &[0; 32]].concat();
        assert_eq!(sent_index(&data), None);
        assert_eq!(sent_index(&[1, 0, 0, 0, 1, 2, 3, 4]), None, "too short");
    }

    #[test]
    fn what_is_not_quite_a_shape_is_refused() {
        for Shape { header, length, .. } in shapes() {
            let datagram = datagram(header);
            for other in [length - 1, length + 1] {
                let refused = classify(&datagram[..other]);
                assert_eq!(refused, Err(Malformed::Length), "{header:?}, {other} B");
            }
            for bit in 0..8 {
                let mut datagram = datagram.clone();
                datagram[3] ^= 1 << bit;
                let refused = classify(&datagram[..length]);
                assert_eq!(refused, Err(Malformed::Type), "{header:?}, bit {bit}");
            }
        }
    }
}
