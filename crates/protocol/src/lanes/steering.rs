//! Steering: which lane receives a message.
//!
//! A receiver index of a device with lanes has two halves. As bytes of a datagram:
//!
//! | bytes | content |
//! |---|---|
//! | 4, 5 | the tag: the number of lanes, which only the peer can read |
//! | 6, 7 | the class, as a big-endian number, times an odd secret of the device modulo 2^16 |
//!
//! | bits of the class | content |
//! |---|---|
//! | 15 to 13 | log2 of the number of lanes over which the session is spread |
//! | 12 to 9 | the base lane |
//! | 8 to 0 | random |
//!
//! So a short program without state finds the lane of each datagram. To others the tag looks random.
//! They can compute the multiplier from some ten indices, and then read the class.

use taupe_crypto::{Provider, SharedSecret};

use crate::Random;
use crate::lanes::counters::BLOCK;
use crate::lanes::{LaneId, Lanes};
use crate::time::Tai64N;

const LABEL_LANES: &[u8] = b"lanes---";
const SPREAD_SHIFT: u32 = 13;
const BASE_SHIFT: u32 = 9;

/// Number of classes that have the same base lane and the same number of lanes.
pub(crate) const RANDOM_CLASSES: u32 = 1 << BASE_SHIFT;

/// Rule by which a device with lanes chooses the lane that receives a message.
///
/// For a message of transport data ([`crate::message::Kind::Data`]), the program that chooses among
/// the sockets of the lanes computes:
///
/// ```text
/// class = (bytes 6 and 7 of the datagram, big-endian) × multiplier mod 2^16
/// block = the counter (bytes 8 to 15, little-endian) / 64
/// spread = 2^(class >> 13), at most the number of lanes
/// lane = ((class >> 9 & 15) + block mod spread) mod lanes
/// ```
///
/// [`Self::lane_of`] is the same rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steering {
    lanes: Lanes,
    multiplier: u16,
}

/// Lanes over which the messages of one receiver index are spread.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    lanes: Lanes,
    base: u64,
    over: Lanes,
}

impl Spread {
    /// Returns the lane of a counter.
    pub(crate) fn lane(self, counter: u64) -> LaneId {
        let offset = self.over.wrap(counter / BLOCK).number() as u64;
        self.lanes.wrap(self.base + offset)
    }

    /// Returns the number of lanes over which the messages are spread.
    pub(crate) fn width(self) -> Lanes {
        self.over
    }
}

impl Steering {
    /// Returns the rule of a device. If it has several lanes, it takes a secret from `random`.
    pub(crate) fn new(lanes: Lanes, random: &mut dyn Random) -> Self {
        let multiplier = match lanes {
            Lanes::One => 1,
            _ => random.number() as u16 | 1,
        };
        Self { lanes, multiplier }
    }

    /// Returns the number of lanes. A device with one needs no program.
    #[must_use]
    pub fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// Returns the odd number by which bytes 6 and 7 of a datagram are multiplied.
    #[must_use]
    pub fn multiplier(&self) -> u16 {
        self.multiplier
    }

    /// Returns the lane that receives a message with this receiver index and counter.
    #[must_use]
    pub fn lane_of(&self, index: u32, counter: u64) -> LaneId {
        self.spread(index).lane(counter)
    }

    /// Returns the lanes of a receiver index.
    pub(crate) fn spread(&self, index: u32) -> Spread {
        let [_, _, high, low] = index.to_le_bytes();
        let class = u16::from_be_bytes([high, low]).wrapping_mul(self.multiplier);
        let over = Lanes::from_log2(u32::from(class >> SPREAD_SHIFT));
        Spread {
            lanes: self.lanes,
            base: u64::from(class >> BASE_SHIFT) & 0xf,
            over: over.unwrap_or(Lanes::Sixteen).min(self.lanes),
        }
    }

    /// Returns bytes 6 and 7 of the index of a session that is spread over `over` lanes from
    /// `base`. Only the lower 9 bits of `random` are used.
    pub(crate) fn class_bytes(&self, over: Lanes, base: LaneId, random: u32) -> [u8; 2] {
        let class = over.log2() << SPREAD_SHIFT
            | (base.number() as u32) << BASE_SHIFT
            | (random % RANDOM_CLASSES);
        (class as u16)
            .wrapping_mul(inverse(self.multiplier))
            .to_be_bytes()
    }
}

/// Side of a handshake that chooses an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Sender {
    Initiator = 1,
    Responder = 2,
}

/// Key of the tags in the two indices of one handshake. Only the two devices can compute it, and
/// the timestamp makes it new for each handshake, so that an index repeats no more often than a
/// random one.
pub(crate) struct IndexTag<'a> {
    /// DH(S_i, S_r), of the two static keys.
    pub(crate) static_static: &'a SharedSecret,
    /// Timestamp of the initiation.
    pub(crate) timestamp: Tai64N,
}

impl IndexTag<'_> {
    /// Returns an index that states the number of lanes of its device.
    pub(crate) fn index(
        &self,
        crypto: &Provider,
        sender: Sender,
        lanes: Lanes,
        class: [u8; 2],
    ) -> u32 {
        let tag = self.mask(crypto, sender, class) ^ lanes.log2() as u16;
        let [first, second] = tag.to_be_bytes();
        let [third, fourth] = class;
        u32::from_le_bytes([first, second, third, fourth])
    }

    /// Returns the number of lanes of the device that has chosen `index`: one, unless the index
    /// states another.
    pub(crate) fn lanes(&self, crypto: &Provider, sender: Sender, index: u32) -> Lanes {
        let [first, second, third, fourth] = index.to_le_bytes();
        let mask = self.mask(crypto, sender, [third, fourth]);
        let log2 = u16::from_be_bytes([first, second]) ^ mask;
        Lanes::from_log2(log2.into()).unwrap_or_default()
    }

    /// Returns the first 16 bits of MAC(DH(S_i, S_r), label ‖ class ‖ timestamp ‖ sender).
    fn mask(&self, crypto: &Provider, sender: Sender, class: [u8; 2]) -> u16 {
        let key = self.static_static.expose();
        let input: [&[u8]; 4] = [LABEL_LANES, &class, &self.timestamp.0, &[sender as u8]];
        let [first, second, ..] = crypto.hash.mac(key, &input);
        u16::from_be_bytes([first, second])
    }
}

/// Returns the inverse of an odd number modulo 2^16, by Newton's iteration.
fn inverse(odd: u16) -> u16 {
    // An odd number is its own inverse modulo 2^3; each step doubles the number of correct bits.
    (0..3).fold(odd, |inverse, _| {
        let error = 2_u16.wrapping_sub(odd.wrapping_mul(inverse));
        inverse.wrapping_mul(error)
    })
}
