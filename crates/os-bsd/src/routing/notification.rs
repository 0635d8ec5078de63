//! Notifications of a routing socket, and replies to lookups.

use std::time::Duration;

use super::{Message, RouteEntry};
use crate::{System, layout::ESRCH};

/// The interval at which a program on macOS reads the tables again, as the kernel does not report lost
/// messages.
const RECHECK: Duration = Duration::from_secs(60);

/// Messages that a routing socket has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notification {
    /// Messages, in the kernel's order.
    Messages(Vec<Message>),
    /// The kernel has dropped messages or may have done so. Anything may have changed, so the
    /// program reads the tables again.
    Overflow,
}

/// A change of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface changed, appeared or disappeared; its index.
    Link(u32),
    /// An address or a route changed.
    Network,
    /// Anything may have changed.
    Unknown,
}

impl Notification {
    /// Returns the changes that it reports, without repetitions that follow each other.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = match self {
            Self::Messages(messages) => messages.iter().filter_map(change).collect(),
            Self::Overflow => vec![Change::Unknown],
        };
        changes.dedup();
        changes
    }
}

fn change(message: &Message) -> Option<Change> {
    match message {
        Message::Interface(interface) => Some(Change::Link(interface.index.into())),
        Message::InterfaceArrived(index, _) | Message::InterfaceDeparted(index, _) => {
            Some(Change::Link(u32::from(*index)))
        }
        // A request that failed has changed nothing.
        Message::RouteChanged(_, _, request) => (request.error == 0).then_some(Change::Network),
        Message::AddressAdded(_) | Message::AddressRemoved(_) => Some(Change::Network),
        // Replies to lookups, and messages that this crate does not decode.
        Message::Route(..) | Message::OtherRoute(_) | Message::Other(_) => None,
    }
}

/// The reply to a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupReply {
    /// The route.
    Route(RouteEntry),
    /// There is no route.
    NoRoute,
    /// The kernel refused the request with this error number.
    Refused(i32),
    /// The route is neither IPv4 nor IPv6, or its netmask is not a prefix.
    Unsupported,
}

/// Returns the reply to the lookup of a process, or `None` if the message is another one. The sequence
/// number does not suffice, because all routing sockets receive replies to the requests of all
/// processes, which choose the numbers themselves.
#[must_use]
pub fn lookup_reply(message: &Message, process: u32, sequence: i32) -> Option<LookupReply> {
    let (Message::Route(_, request) | Message::OtherRoute(request)) = message else {
        return None;
    };
    if (request.process.cast_unsigned(), request.sequence) != (process, sequence) {
        return None;
    }
    Some(match (request.error.cast_unsigned(), message) {
        (0, Message::Route(entry, _)) => LookupReply::Route(entry.clone()),
        (0, _) => LookupReply::Unsupported,
        (ESRCH, _) => LookupReply::NoRoute,
        _ => LookupReply::Refused(request.error),
    })
}

/// Returns the interval at which the tables are read again, or `None` if the kernel reports lost
/// messages. FreeBSD 14 does so on a socket with `SO_RERROR`, as the error `ENOBUFS` of a read.
#[must_use]
pub const fn recheck_interval(system: System) -> Option<Duration> {
    match system {
        System::FreeBsd => None,
        System::MacOs => Some(RECHECK),
    }
}

/// Returns true if messages may be missing behind `queued` bytes in a buffer of `capacity` bytes.
///
/// macOS drops a message that does not fit (`raw_input` in xnu's `bsd/net/raw_usrreq.c`), and later
/// ones may fit again. It counts bookkeeping besides the bytes (`sb_mbcnt`), so a buffer may be full
/// before its bytes are. Half of it is a cautious limit: an unnecessary reading of the tables does no
/// harm.
#[must_use]
pub const fn may_have_overflowed(queued: usize, capacity: usize) -> bool {
    queued > capacity / 2
}
