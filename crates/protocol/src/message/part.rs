//! Datagrams of hybrid handshakes. Only this module knows their layout.

use taupe_crypto::TAG_LEN;

use crate::suite::Suite;

/// Bytes of an identity that are sent.
pub(crate) const IDENTITY_LEN: usize = 28;

/// Bytes of mac1, and of mac2.
pub(crate) const MAC_LEN: usize = 16;
/// Bytes of a part that are not in the transcript: mac1 and mac2.
pub(crate) const MACS_LEN: usize = 2 * MAC_LEN;
/// Bytes of the tag that ends an initiation's second part.
pub(crate) const TAG_B_LEN: usize = 8;

/// Message that a part belongs to, by its first byte on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Side {
    /// An initiation.
    Initiation = 0x48,
    /// A response.
    Response = 0x49,
}

/// Position of a part within its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Half {
    /// The first or only part.
    A = 0,
    /// The second part.
    B = 1,
}

/// Suite, message and position of a part, from its header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The suite.
    pub suite: Suite,
    /// The message.
    pub side: Side,
    /// The part of it.
    pub half: Half,
}

impl Part {
    /// Returns the part that has this header. `None` if there is no such part.
    #[must_use]
    pub fn of(header: [u8; 4]) -> Option<Self> {
        let [side, suite, half, 0] = header else {
            return None;
        };
        let side = match side {
            0x48 => Side::Initiation,
            0x49 => Side::Response,
            _ => return None,
        };
        let half = match half {
            0 => Half::A,
            1 => Half::B,
            _ => return None,
        };
        let suite = *Suite::ALL.iter().find(|known| **known as u8 == suite)?;
        let exists = half == Half::A || suite.has_static_keys();
        exists.then_some(Self { suite, side, half })
    }

    /// Returns every part of every suite.
    pub fn all() -> impl Iterator<Item = Self> {
        let begun_by_peers = Suite::ALL.iter().flat_map(|suite| {
            [Side::Initiation, Side::Response]
                .into_iter()
                .flat_map(|side| {
                    [Half::A, Half::B].map(|half| Self {
                        suite: *suite,
                        side,
                        half,
                    })
                })
        });
        begun_by_peers.filter(|part| Self::of(part.header()).is_some())
    }

    /// Returns the first four bytes.
    #[must_use]
    pub fn header(self) -> [u8; 4] {
        [self.side as u8, self.suite as u8, self.half as u8, 0]
    }

    /// Returns the length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "no part is empty")]
    pub const fn len(self) -> usize {
        let ciphertext = self.suite.parameters().ciphertext_len();
        let key = self.suite.parameters().encapsulation_key_len();
        let kem = if self.suite.has_static_keys() {
            ciphertext
        } else {
            key
        };
        let body = match (self.side, self.half) {
            (Side::Initiation, Half::A) => 8 + 32 + kem + (IDENTITY_LEN + TAG_LEN) + (12 + TAG_LEN),
            (Side::Initiation, Half::B) => 8 + key + TAG_B_LEN,
            (Side::Response, Half::A) => 12 + 32 + ciphertext + TAG_LEN,
            (Side::Response, Half::B) => 12 + (ciphertext + TAG_LEN) + TAG_LEN,
        };
        body + MACS_LEN
    }

    /// Returns the length of the header and the indices after it.
    const fn prefix_len(self) -> usize {
        match self.side {
            Side::Initiation => 8,
            Side::Response => 12,
        }
    }
}

/// UDP payload that every IPv6 link carries without fragmentation: the minimum MTU of 1280 bytes
/// (RFC 8200 §5) less the IPv6 and UDP headers.
pub(crate) const MAX_PART_LEN: usize = 1280 - 40 - 8;

const _: () = {
    let mut i = 0;
    while i < Suite::ALL.len() {
        let suite = Suite::ALL[i];
        let sides = [Side::Initiation, Side::Response];
        let begun_by_peers = [Half::A, Half::B];
        let mut j = 0;
        while j < 4 {
            let part = Part {
                suite,
                side: sides[j / 2],
                half: begun_by_peers[j % 2],
            };
            assert!(part.len() <= MAX_PART_LEN);
            j += 1;
        }
        i += 1;
    }
};

/// A part under construction. Fields are appended in order.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Starts a part with its header and `indices`.
    pub(crate) fn new(part: Part, indices: &[u32]) -> Self {
        let mut bytes = Vec::with_capacity(part.len());
        bytes.extend(part.header());
        for index in indices {
            bytes.extend(index.to_le_bytes());
        }
        Self(bytes)
    }

    /// Returns the bytes written so far.
    pub(crate) fn written(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn put(&mut self, field: &[u8]) {
        self.0.extend(field);
    }

    /// Returns the part with zeros in place of its MACs.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.extend([0; MACS_LEN]);
        self.0
    }

    /// Returns the part with `mac1` of the bytes written, and zeros for mac2.
    pub(crate) fn finish_with(mut self, mac1: impl FnOnce(&[u8]) -> [u8; MAC_LEN]) -> Vec<u8> {
        let mac1 = mac1(&self.0);
        self.0.extend(mac1);
        self.0.extend([0; MAC_LEN]);
        self.0
    }
}

/// Reads the fields of a part in order. [`Reader::new`] checks the part's length, so that all of
/// its fields are present.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Checks length and header of `bytes`. Returns the header with the indices, and a reader of
    /// the fields after it.
    pub(crate) fn new(part: Part, bytes: &'a [u8]) -> Option<(&'a [u8], Self)> {
        if bytes.len() != part.len() || bytes.first_chunk() != Some(&part.header()) {
            return None;
        }
        let (body, _) = bytes.split_at_checked(part.len() - MACS_LEN)?;
        let (prefix, rest) = body.split_at_checked(part.prefix_len())?;
        Some((prefix, Self(rest)))
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(field)
    }
}

/// Returns the sender's index, and the four bytes after it: in a response the receiver's index.
pub(crate) fn indices(part: &[u8]) -> Option<[u32; 2]> {
    let [a, b, c, d, e, f, g, h] = *part.get(4..)?.first_chunk()?;
    Some([[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes))
}

/// Returns the bytes that stay the same when a part is sent again: all but the MACs.
pub(crate) fn lasting(part: &[u8]) -> &[u8] {
    part.get(..part.len().saturating_sub(MACS_LEN))
        .unwrap_or_default()
}
