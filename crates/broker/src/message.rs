//! The messages between the two processes. Each is a JSON value in one record of a `SOCK_SEQPACKET`
//! socket, with descriptors (`SCM_RIGHTS`) where the comments say so.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use taupe_engine::{BindRequest, Exit};
use taupe_nat::flows::ExpiringFlows;

/// The version of the messages. It changes with every change of a message. Both processes run the same
/// program, so it differs only by mistake.
pub const VERSION: u32 = 2;

/// A 32-byte public key.
pub(crate) type Key = [u8; 32];

/// Pinned peers in one answer, at most.
pub(crate) const MAX_PINNED: usize = 256;

/// Flows in one message, at most.
pub(crate) const MAX_FLOWS: usize = 128;

/// Message of the packet process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum FromPacketProcess {
    /// The device has started. Its TUN comes along.
    Started,
    /// The device has not started.
    Failed { reason: String },
    /// A request, which gets one answer with the same number.
    Request { id: u64, request: Request },
    /// The flood filter must keep answers to the message with this sender index.
    ExpectAnswer { index: u32 },
    /// The translator has removed the flows of a [`FromBroker::Forget`].
    Forgotten,
    /// The device has ended, and so does the process.
    Ended { exit: Exit },
}

/// A request of the packet process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Request {
    /// Bind the sockets of a device.
    Bind(BindRequest),
    /// Set the mark of datagrams that leave by the sockets that come along.
    SetMark { mark: u32 },
    /// Find the state of the interface of the TUN that comes along.
    LinkState,
    /// Load the flood filter.
    LoadFilter,
    /// Attach the filter to the sockets that come along, or detach it.
    AttachFilter { on: bool },
    /// Return the number of datagrams that the filter has dropped.
    CountDropped,
    /// A peer is about to get an endpoint name.
    PrepareLookUp,
    /// Look an endpoint name up.
    LookUp { host: String, port: u16, mark: u32 },
    /// Read a handshake timestamp.
    Timestamp { key: Key },
    /// Save a handshake timestamp.
    SaveTimestamp { key: Key, timestamp: [u8; 12] },
    /// List the pinned peers of a key, in order, from the one after `after`.
    Pinned { key: Key, after: Option<Key> },
    /// Pin or unpin a peer.
    SavePin { key: Key, peer: Key, pinned: bool },
}

/// Message of the broker, after [`Start`](crate::Start).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromBroker {
    /// The answer to the request with this number.
    Answer { id: u64, answer: Answer },
    /// End the device.
    Stop,
    /// Set the addresses of the main uplink, to which the translator sends packets that belong to no flow.
    SetMainUplink {
        v4: Option<Ipv4Addr>,
        v6: Option<Ipv6Addr>,
    },
    /// Remove these flows, at most [`MAX_FLOWS`].
    Forget { flows: ExpiringFlows },
    /// Write a report of the UDP flows to the client whose socket comes along.
    Report,
}

/// The answer to a [`Request`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The sockets come along, in the order of the records: those of IPv4 first, in each family those
    /// for data first.
    Bound {
        v4: Option<GroupRecord>,
        v6: Option<GroupRecord>,
    },
    NotBound(BindFailure),
    Done,
    /// The reason of a refusal, for the log.
    Refused(String),
    /// The outer device refuses the mark.
    OuterRefused(String),
    /// The state of an interface, or `None` if it was deleted.
    Link(Option<LinkRecord>),
    Dropped(Option<u64>),
    Addresses(Vec<SocketAddr>),
    Timestamp([u8; 12]),
    /// Pinned peers. A list of fewer than [`MAX_PINNED`] is the last.
    Pinned(Vec<Key>),
    PinnedUnreadable {
        folder: PathBuf,
        reason: String,
    },
}

/// The state of an interface.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LinkRecord {
    pub(crate) up: bool,
    /// The MTU in bytes.
    pub(crate) mtu: u32,
}

/// The sockets of one family.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GroupRecord {
    pub(crate) data: Vec<SocketRecord>,
    /// The socket for all other datagrams, or the reason why there is none.
    pub(crate) others: Result<SocketRecord, String>,
}

/// A bound socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SocketRecord {
    pub(crate) port: u16,
    pub(crate) gro: bool,
    pub(crate) gso: bool,
}

/// The reason why sockets are not bound.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BindFailure {
    /// The system has no sockets of any family.
    NoFamily,
    PortInUse(u16),
    Mark(u32),
    Other {
        what: String,
        reason: String,
    },
}
