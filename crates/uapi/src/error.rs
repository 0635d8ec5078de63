//! What can be wrong with a request, and how the answer says it.

use core::fmt;

use thiserror::Error;

use super::Operation;
use super::reader::{MAX_LINE, MAX_REQUEST};
use crate::key::{KeyError, PqKeyError};
use crate::prefix::PrefixError;

/// Why a request is refused. Never repeats a value, which may be a secret.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}{}: {cause}", infix(key))]
pub struct UapiError {
    /// What the request wanted; `None` when its first line does not say.
    pub operation: Option<Operation>,
    /// The line, counted from 1, which is `get=1` or `set=1`.
    pub line: usize,
    /// The line's key; empty when there is none, or when it is not a plausible
    /// one (a secret pasted in the wrong place would look like that).
    pub key: String,
    /// What is wrong with it, and what is expected.
    pub cause: Cause,
}

impl UapiError {
    /// The error number of the answer.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self.cause {
            Cause::UnknownOperation
            | Cause::NotKeyValue
            | Cause::NotUtf8
            | Cause::LineTooLong
            | Cause::RequestTooLong => Errno::Protocol,
            Cause::LineAfterGet
            | Cause::UnknownDeviceKey
            | Cause::UnknownPeerKey
            | Cause::DeviceKeyAfterPeer
            | Cause::PeerKeyBeforePeer
            | Cause::Key(_)
            | Cause::PqKey(_)
            | Cause::PostQuantum
            | Cause::Number { .. }
            | Cause::Fwmark
            | Cause::NotTrue
            | Cause::Endpoint
            | Cause::EndpointScope
            | Cause::EndpointName
            | Cause::AllowedIp(_)
            | Cause::AllowedIpWithoutLength
            | Cause::ProtocolVersion => Errno::Invalid,
        }
    }

    /// The whole answer.
    #[must_use]
    pub fn status(&self) -> Status {
        // Whoever sends neither `get` nor `set` is answered as wireguard-go
        // answers everything: with a negative number.
        self.operation
            .unwrap_or(Operation::Set)
            .failed(self.errno())
    }
}

/// What is wrong with a line, and what is expected instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Cause {
    /// The first line names no operation.
    #[error("not a request; expected get=1 or set=1")]
    UnknownOperation,
    /// A line without `=`.
    #[error("not a line of the form key=value")]
    NotKeyValue,
    /// A line that is not text.
    #[error("not UTF-8; expected a line of the form key=value")]
    NotUtf8,
    /// A line above [`MAX_LINE`].
    #[error("the line is longer than {MAX_LINE} bytes, which no valid line is")]
    LineTooLong,
    /// A request above [`MAX_REQUEST`].
    #[error("the request is longer than {} MiB; split it into several", MAX_REQUEST >> 20)]
    RequestTooLong,
    /// `get=1` is not followed by a blank line.
    #[error("get=1 takes no further lines; expected a blank line")]
    LineAfterGet,
    /// A key that does not exist, before the first peer.
    #[error(
        "not a known key; expected private_key, pq_private_key, listen_port, fwmark, \
         replace_peers or public_key"
    )]
    UnknownDeviceKey,
    /// A key that does not exist, within a peer.
    #[error(
        "not a known key; expected public_key, update_only, remove, preshared_key, endpoint, \
         endpoint_name, pq_public_key, post_quantum, persistent_keepalive_interval, replace_allowed_ips, allowed_ip or protocol_version"
    )]
    UnknownPeerKey,
    /// A key of the device below the first `public_key`.
    #[error("concerns the device; expected it before the first public_key")]
    DeviceKeyAfterPeer,
    /// A key of a peer above the first `public_key`.
    #[error("concerns a peer; expected the peer's public_key before it")]
    PeerKeyBeforePeer,
    /// A malformed key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A malformed ML-KEM key.
    #[error(transparent)]
    PqKey(#[from] PqKeyError),
    /// None of its words.
    #[error("not a known word; expected require, prefer, off or default")]
    PostQuantum,
    /// Not a number, or too large.
    #[error("not a decimal number from 0 to {max}")]
    Number {
        /// The greatest value.
        max: u16,
    },
    /// Not a packet mark.
    #[error("not a number from 0 (off) to 4294967295, in decimal or in hex after 0x")]
    Fwmark,
    /// A flag with a value other than `true`.
    #[error("a flag that can only be set; expected true")]
    NotTrue,
    /// Not an address and port.
    #[error(
        "not an IP address and port; expected such as 192.0.2.1:51820 or [2001:db8::1]:51820 \
         (host names are not looked up)"
    )]
    Endpoint,
    /// An IPv6 scope that is not the index or the name of an interface.
    #[error(
        "the scope after % is not an interface index from 0 to 4294967295, and no interface is called so"
    )]
    EndpointScope,
    /// Not a host's name and port.
    #[error(
        "not a host name and port; expected such as vpn.example.org:51820, a name of 1 to 253 \
         bytes and a port from 1 to 65535, or nothing (an address goes into endpoint)"
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
    /// A version of WireGuard that does not exist.
    #[error("not a known version of the protocol; expected 1")]
    ProtocolVersion,
}

/// The error numbers that wireguard-go answers with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// EIO: reading the request failed.
    Io,
    /// EPROTO: a line that cannot be parsed.
    Protocol,
    /// EINVAL: an unknown key or a bad value.
    Invalid,
    /// EADDRINUSE: the port cannot be bound, or the mark cannot be set.
    AddressInUse,
}

impl Errno {
    /// The number, positive: the system's own on Unix, Linux's elsewhere.
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
    /// The answer to this operation when it failed.
    ///
    /// `wg` (src/ipc-uapi.h) reads the two answers differently: after `set`
    /// only a negative number gives the right message, after `get` a negative
    /// one is no number at all.
    #[must_use]
    pub const fn failed(self, errno: Errno) -> Status {
        Status(match self {
            Self::Get => errno.number(),
            Self::Set => -errno.number(),
        })
    }
}

/// The end of every answer; its `Display` is `errno=N` and a blank line.
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

fn infix(key: &str) -> impl fmt::Display {
    fmt::from_fn(move |f| match key {
        "" => Ok(()),
        key => write!(f, ", {key}"),
    })
}
