//! Errors in requests, and their answers.

use core::fmt;

use thiserror::Error;

use crate::key::{KeyError, PqKeyError};
use crate::prefix::PrefixError;
use crate::request::{MAX_LINE, MAX_REQUEST, Operation};

/// Reason why a request is refused. Never repeats a value, because it may be a secret.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}{}: {problem}", fmt_key(key))]
pub struct UapiError {
    /// The requested operation; `None` if the first line names none.
    pub operation: Option<Operation>,
    /// The line number. Line 1 is `get=1` or `set=1`.
    pub line: usize,
    /// The line's key. Empty if there is none, or if it does not look like one: it may be a
    /// misplaced secret.
    pub key: String,
    /// The problem, and the expected form.
    pub problem: RequestProblem,
}

impl UapiError {
    /// Returns the error number of the answer.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self.problem {
            RequestProblem::UnknownOperation
            | RequestProblem::NotKeyValue
            | RequestProblem::NotUtf8
            | RequestProblem::LineTooLong
            | RequestProblem::RequestTooLong => Errno::Protocol,
            RequestProblem::LineAfterGet
            | RequestProblem::UnknownDeviceKey
            | RequestProblem::UnknownPeerKey
            | RequestProblem::DeviceKeyAfterPeer
            | RequestProblem::PeerKeyBeforePeer
            | RequestProblem::Key(_)
            | RequestProblem::PqKey(_)
            | RequestProblem::PostQuantum
            | RequestProblem::Number { .. }
            | RequestProblem::Fwmark
            | RequestProblem::NotTrue
            | RequestProblem::Endpoint
            | RequestProblem::EndpointScope
            | RequestProblem::EndpointName
            | RequestProblem::AllowedIp(_)
            | RequestProblem::AllowedIpWithoutLength
            | RequestProblem::ProtocolVersion => Errno::Invalid,
        }
    }

    /// Returns the complete answer.
    #[must_use]
    pub fn status(&self) -> Status {
        // wireguard-go answers every error with a negative number. So does this, if the request is
        // neither `get` nor `set`.
        self.operation
            .unwrap_or(Operation::Set)
            .failed(self.errno())
    }
}

/// Problem of a line, with the expected form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RequestProblem {
    /// The first line names no known operation.
    #[error("not a request; expected get=1 or set=1")]
    UnknownOperation,
    /// A line without `=`.
    #[error("not a line of the form key=value")]
    NotKeyValue,
    /// A line that is not UTF-8.
    #[error("not UTF-8; expected a line of the form key=value")]
    NotUtf8,
    /// A line longer than [`MAX_LINE`].
    #[error("the line is longer than {MAX_LINE} bytes; every valid line is shorter")]
    LineTooLong,
    /// A request longer than [`MAX_REQUEST`].
    #[error("the request is longer than {} MiB; split it into several", MAX_REQUEST >> 20)]
    RequestTooLong,
    /// A line between `get=1` and the blank line.
    #[error("get=1 takes no further lines; expected a blank line")]
    LineAfterGet,
    /// An unknown key before the first peer.
    #[error(
        "not a known key; expected private_key, pq_private_key, listen_port, fwmark, \
         replace_peers or public_key"
    )]
    UnknownDeviceKey,
    /// An unknown key after a `public_key`.
    #[error(
        "not a known key; expected public_key, update_only, remove, preshared_key, endpoint, \
         endpoint_name, pq_public_key, post_quantum, persistent_keepalive_interval, keepalive_now, replace_allowed_ips, allowed_ip or protocol_version"
    )]
    UnknownPeerKey,
    /// A key of the device after the first `public_key`.
    #[error("a key of the device; expected before the first public_key")]
    DeviceKeyAfterPeer,
    /// A key of a peer before the first `public_key`.
    #[error("a key of a peer; expected after the peer's public_key")]
    PeerKeyBeforePeer,
    /// A malformed key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A malformed ML-KEM key.
    #[error(transparent)]
    PqKey(#[from] PqKeyError),
    /// An unknown value of `post_quantum`.
    #[error("not a known value; expected require, prefer, off or default")]
    PostQuantum,
    /// Not a number, or too large.
    #[error("not a decimal number from 0 to {max}")]
    Number {
        /// The largest value.
        max: u16,
    },
    /// Not a packet mark.
    #[error("not a number from 0 (off) to 4294967295 (decimal, or hexadecimal after 0x)")]
    Fwmark,
    /// A flag whose value is not `true`.
    #[error("a flag that can only be set; expected true")]
    NotTrue,
    /// Not an IP address and port.
    #[error(
        "not an IP address and port; expected, for example, 192.0.2.1:51820 or \
         [2001:db8::1]:51820 (host names are not looked up)"
    )]
    Endpoint,
    /// An IPv6 scope that is neither the index nor the name of an interface.
    #[error(
        "the scope after % is neither an interface index from 0 to 4294967295 nor the name of an interface"
    )]
    EndpointScope,
    /// Not a host name and port.
    #[error(
        "not a host name and port; expected, for example, vpn.example.org:51820 (a name of 1 to \
         253 bytes, a port from 1 to 65535) or nothing; an address belongs in endpoint"
    )]
    EndpointName,
    /// An `allowed_ip` without `/`.
    #[error(
        "the prefix length is missing; expected a prefix such as 192.0.2.1/32 or 2001:db8::/32"
    )]
    AllowedIpWithoutLength,
    /// A malformed prefix.
    #[error(transparent)]
    AllowedIp(#[from] PrefixError),
    /// An unknown version of WireGuard.
    #[error("not a known version of the protocol; expected 1")]
    ProtocolVersion,
}

/// Error numbers of answers, as in wireguard-go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// EIO: reading the request failed.
    Io,
    /// EPROTO: a line cannot be parsed.
    Protocol,
    /// EINVAL: a key is unknown, or a value is invalid.
    Invalid,
    /// EADDRINUSE: the port cannot be bound, or the mark cannot be set.
    AddressInUse,
}

impl Errno {
    /// Returns the number, positive: the system's own on Unix, Linux's elsewhere.
    #[must_use]
    pub const fn number(self) -> i32 {
        #[cfg(unix)]
        return match self {
            Self::Io => libc::EIO,
            Self::Protocol => libc::EPROTO,
            Self::Invalid => libc::EINVAL,
            Self::AddressInUse => libc::EADDRINUSE,
        };
        #[cfg(not(unix))]
        return match self {
            Self::Io => 5,
            Self::Protocol => 71,
            Self::Invalid => 22,
            Self::AddressInUse => 98,
        };
    }
}

impl Operation {
    /// Returns the answer if this operation failed.
    ///
    /// `wg` (src/ipc-uapi.h) reads the two answers differently. After `set`, only a negative number
    /// gives the right message. After `get`, it does not accept a negative number.
    #[must_use]
    pub const fn failed(self, errno: Errno) -> Status {
        Status(match self {
            Self::Get => errno.number(),
            Self::Set => -errno.number(),
        })
    }
}

/// The last lines of every answer. `Display` writes `errno=N` and a blank line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(i32);

impl Status {
    /// `errno=0`.
    pub const SUCCESS: Self = Self(0);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno={}\n\n", self.0)
    }
}

fn fmt_key(key: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| match key {
        "" => Ok(()),
        key => write!(f, ", {key}"),
    })
}
