//! Errors of calls: names, numbers and descriptions.

use taupe_protocol::DropReason;
use thiserror::Error;

/// Reason for which a call failed. Nothing has been sent or delivered, and the tunnel can still be
/// used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Error {
    /// The destination buffer is too small.
    #[error("the destination buffer is too small; see the rules of buffers in taupe.h")]
    DestinationBufferTooSmall = 0,
    /// boringtun's; never returned.
    #[error("the message's length is not its kind's")]
    IncorrectPacketLength = 1,
    /// A response or cookie reply without a matching initiation.
    #[error("the message answers nothing that this side has sent")]
    UnexpectedPacket = 2,
    /// boringtun's; never returned.
    #[error("the message is of another kind")]
    WrongPacketType = 3,
    /// boringtun's; never returned.
    #[error("the message is for another session")]
    WrongIndex = 4,
    /// An initiation of another peer.
    #[error("the handshake is another peer's; is the peer's public key right?")]
    WrongKey = 5,
    /// boringtun's; never returned.
    #[error("the handshake's label is no time")]
    InvalidTai64nTimestamp = 6,
    /// An initiation that has been received before.
    #[error("the handshake's label is not greater than the last; has the peer's clock gone back?")]
    WrongTai64nTimestamp = 7,
    /// A handshake message for another public key.
    #[error("mac1 does not verify; has the peer the right public key for this side?")]
    InvalidMac = 8,
    /// A message that was changed, or sealed with other keys.
    #[error("the message does not verify; have both sides the same preshared key?")]
    InvalidAeadTag = 9,
    /// A packet with a counter above the limit of a session.
    #[error("the packet's counter is out of range")]
    InvalidCounter = 10,
    /// A packet that has been received before.
    #[error("the packet has been received before")]
    DuplicateCounter = 11,
    /// Not a WireGuard message, or a message that contains no IP packet.
    #[error("this is no WireGuard message, or what it holds is no IP packet")]
    InvalidPacket = 12,
    /// A packet for a session that has ended or never existed.
    #[error("the packet is for a session that is not there (any more)")]
    NoCurrentSession = 13,
    /// boringtun's; never returned.
    #[error("a lock could not be taken")]
    LockFailed = 14,
    /// The peer has not answered, or the last session has been erased.
    #[error(
        "the peer does not answer, or nothing was sent for 9 minutes; a write or a forced handshake begins anew"
    )]
    ConnectionExpired = 15,
    /// Too many handshake messages in a second.
    #[error("too many handshake messages; with their source address, cookies let the peer through")]
    UnderLoad = 16,
    /// An ordinary handshake although only hybrid ones are allowed.
    #[error("the handshake is not post-quantum, and must be")]
    PostQuantumRequired = 1000,
    /// A NULL pointer that is not allowed, or a number without meaning.
    #[error("an argument is NULL, or has no meaning")]
    InvalidArgument = 1001,
    /// A defect of this library. The caller should free the tunnel.
    #[error("a defect of the library has been stopped from doing harm; please report it")]
    Internal = 1002,
}

/// Numbering of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Numbering {
    /// As in boringtun 0.6 and later.
    #[default]
    Current = 0,
    /// As in boringtun 0.3 to 0.5, which had no `DuplicateCounter`: later numbers are one less, and
    /// a duplicate is an `InvalidCounter`.
    Before0_6 = 1,
}

impl Numbering {
    /// Returns the numbering with this number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let all = [Self::Current, Self::Before0_6];
        all.into_iter()
            .find(|numbering| *numbering as u32 == number)
    }
}

impl Error {
    /// All errors, in the order of their numbers.
    pub const ALL: [Self; 20] = [
        Self::DestinationBufferTooSmall,
        Self::IncorrectPacketLength,
        Self::UnexpectedPacket,
        Self::WrongPacketType,
        Self::WrongIndex,
        Self::WrongKey,
        Self::InvalidTai64nTimestamp,
        Self::WrongTai64nTimestamp,
        Self::InvalidMac,
        Self::InvalidAeadTag,
        Self::InvalidCounter,
        Self::DuplicateCounter,
        Self::InvalidPacket,
        Self::NoCurrentSession,
        Self::LockFailed,
        Self::ConnectionExpired,
        Self::UnderLoad,
        Self::PostQuantumRequired,
        Self::InvalidArgument,
        Self::Internal,
    ];

    /// Returns the number of the error.
    #[must_use]
    pub fn number(self, numbering: Numbering) -> u32 {
        match (numbering, self as u32) {
            (Numbering::Before0_6, 11) => 10,
            (Numbering::Before0_6, number @ 12..=16) => number - 1,
            (_, number) => number,
        }
    }

    /// Returns the error with this number.
    #[must_use]
    pub fn of(number: u32, numbering: Numbering) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|error| error.number(numbering) == number)
    }
}

impl From<DropReason> for Error {
    fn from(cause: DropReason) -> Self {
        match cause {
            DropReason::UnknownSession | DropReason::ExpiredSession => Self::NoCurrentSession,
            DropReason::NotAuthentic
            | DropReason::InitiationNotAuthentic
            | DropReason::ResponseNotAuthentic
            | DropReason::CookieRefused => Self::InvalidAeadTag,
            DropReason::Exhausted => Self::InvalidCounter,
            DropReason::Replayed => Self::DuplicateCounter,
            DropReason::Mac1 => Self::InvalidMac,
            DropReason::CookieDemanded
            | DropReason::CookieWithheld
            | DropReason::RateLimited
            | DropReason::InitiationFlood
            | DropReason::BacklogFull => Self::UnderLoad,
            DropReason::UnknownPeer => Self::WrongKey,
            DropReason::InitiationReplayed => Self::WrongTai64nTimestamp,
            DropReason::UnknownHandshake | DropReason::PartRepeated => Self::UnexpectedPacket,
            DropReason::PostQuantumRequired => Self::PostQuantumRequired,
            DropReason::Length
            | DropReason::Type
            | DropReason::InnerMalformed
            | DropReason::SourceNotAllowed
            | DropReason::StagedOverflow
            | DropReason::StagedPurged
            | DropReason::NotReady
            | DropReason::RoutingLoop => Self::InvalidPacket,
        }
    }
}
