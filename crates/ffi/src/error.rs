//! Why a call did nothing: names, numbers and sentences.

use taupe_protocol::DropReason;
use thiserror::Error;

/// Why a call failed. Nothing has been sent or delivered, and the tunnel goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Error {
    /// What there is to write does not fit.
    #[error("the destination buffer is too small; see the rules of buffers in taupe.h")]
    DestinationBufferTooSmall = 0,
    /// Of boringtun; not given here.
    #[error("the message's length is not its kind's")]
    IncorrectPacketLength = 1,
    /// A response or cookie that answers nothing.
    #[error("the message answers nothing that this side has sent")]
    UnexpectedPacket = 2,
    /// Of boringtun; not given here.
    #[error("the message is of another kind")]
    WrongPacketType = 3,
    /// Of boringtun; not given here.
    #[error("the message is for another session")]
    WrongIndex = 4,
    /// An initiation of somebody else.
    #[error("the handshake is another peer's; is the peer's public key right?")]
    WrongKey = 5,
    /// Of boringtun; not given here.
    #[error("the handshake's label is no time")]
    InvalidTai64nTimestamp = 6,
    /// An initiation that has been received before.
    #[error("the handshake's label is not greater than the last; has the peer's clock gone back?")]
    WrongTai64nTimestamp = 7,
    /// A handshake message for somebody else.
    #[error("mac1 does not verify; has the peer the right public key for this side?")]
    InvalidMac = 8,
    /// A message that was changed, or made with other keys.
    #[error("the message does not verify; have both sides the same preshared key?")]
    InvalidAeadTag = 9,
    /// A packet with a counter that no session may reach.
    #[error("the packet's counter is out of range")]
    InvalidCounter = 10,
    /// A packet that has been received before.
    #[error("the packet has been received before")]
    DuplicateCounter = 11,
    /// No WireGuard message, or no IP packet in it.
    #[error("this is no WireGuard message, or what it holds is no IP packet")]
    InvalidPacket = 12,
    /// A packet for a session that has ended, or never was.
    #[error("the packet is for a session that is not there (any more)")]
    NoCurrentSession = 13,
    /// Of boringtun; not given here.
    #[error("a lock could not be taken")]
    LockFailed = 14,
    /// The peer has not answered, or the last session has been erased.
    #[error(
        "the peer does not answer, or nothing was sent for 9 minutes; a write or a forced handshake begins anew"
    )]
    ConnectionExpired = 15,
    /// A handshake message more than is handled in a second.
    #[error("too many handshake messages; with their source address, cookies let the peer through")]
    UnderLoad = 16,
    /// An ordinary handshake where only hybrid ones are wanted.
    #[error("the handshake is not post-quantum, and must be")]
    PostQuantumRequired = 1000,
    /// A pointer that is NULL, or a number without meaning.
    #[error("an argument is NULL, or has no meaning")]
    InvalidArgument = 1001,
    /// A defect of this library. The tunnel is best freed.
    #[error("a defect of the library has been stopped from doing harm; please report it")]
    Internal = 1002,
}

/// Whose numbers errors have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Numbering {
    /// Those of boringtun 0.6 and later.
    #[default]
    Current = 0,
    /// Those of boringtun 0.3 to 0.5, which had no `DuplicateCounter`: from 11 on they are
    /// one less, and a duplicate is an `InvalidCounter`.
    Before0_6 = 1,
}

impl Numbering {
    /// The numbering of a number.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        let all = [Self::Current, Self::Before0_6];
        all.into_iter()
            .find(|numbering| *numbering as u32 == number)
    }
}

impl Error {
    /// Every error, in the order of their numbers.
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

    /// Its number.
    #[must_use]
    pub fn number(self, numbering: Numbering) -> u32 {
        match (numbering, self as u32) {
            (Numbering::Before0_6, 11) => 10,
            (Numbering::Before0_6, number @ 12..=16) => number - 1,
            (_, number) => number,
        }
    }

    /// The error of a number.
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
