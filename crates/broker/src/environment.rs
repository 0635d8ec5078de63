//! The engine's operations by requests to the broker.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::vec;

use taupe_engine::{
    BindRequest, BoundSockets, Environment, LoadedFilter, MarkError, Resolver, System,
};
use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::{BindError, Socket, SocketGroup, SocketParts};
use taupe_os_linux::watch::{LinkState, LinkWatch};
use taupe_packet::ip::Family;
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::EndpointName;
use taupe_runtime::pinned_pq::PinnedPeersError;
use taupe_runtime::saved_state::SavedState;
use tracing::{debug, warn};

use crate::client::Broker;
use crate::message::{
    Answer, BindFailure, GroupRecord, LinkRecord, MAX_PINNED, Request, SocketRecord,
};

impl Broker {
    /// Returns the environment of a device that asks the broker.
    #[must_use]
    pub fn environment(&self) -> Environment {
        Environment {
            system: Box::new(ByBroker(self.clone())),
            resolver: Arc::new(ByBroker(self.clone())),
            saved: Box::new(StateOfBroker::new(self.clone())),
        }
    }
}

/// Operations that the broker executes.
struct ByBroker(Broker);

impl System for ByBroker {
    fn bind(&mut self, request: &BindRequest) -> Result<BoundSockets, BindError> {
        let failed = |source| BindError::Io {
            what: "asking for sockets".into(),
            source,
        };
        let (answer, sockets) = self.0.ask(Request::Bind(*request), &[]).map_err(failed)?;
        let mut sockets = sockets.into_iter();
        match answer {
            Answer::Bound { v4, v6 } => Ok(BoundSockets {
                v4: v4.map(|it| group(it, &mut sockets)).transpose()?,
                v6: v6.map(|it| group(it, &mut sockets)).transpose()?,
            }),
            Answer::NotBound(failure) => Err(match failure {
                BindFailure::NoFamily => BindError::FamilyUnsupported(Family::V4),
                BindFailure::PortInUse(port) => BindError::PortInUse(port),
                BindFailure::Mark(mark) => BindError::Mark(mark),
                BindFailure::Other { what, reason } => BindError::Io {
                    what: what.into(),
                    source: io::Error::other(reason),
                },
            }),
            _ => Err(failed(wrong_answer())),
        }
    }

    fn set_mark(&mut self, sockets: &[BorrowedFd<'_>], mark: u32) -> Result<(), MarkError> {
        let (answer, _) = self.0.ask(Request::SetMark { mark }, sockets)?;
        match answer {
            Answer::Done => Ok(()),
            Answer::Refused(reason) => Err(MarkError::Sockets(io::Error::other(reason))),
            Answer::OuterRefused(reason) => Err(MarkError::Outer(reason)),
            _ => Err(MarkError::Sockets(wrong_answer())),
        }
    }

    /// Asks the broker, because a process without privileges cannot follow the interface to another
    /// network namespace.
    fn link_state(&mut self, tun: &Tun, watch: &mut LinkWatch) -> io::Result<Option<LinkState>> {
        watch.discard_notifications()?;
        match self.0.ask(Request::LinkState, &[tun.as_fd()])?.0 {
            Answer::Link(link) => Ok(link.map(|LinkRecord { up, mtu }| LinkState { up, mtu })),
            Answer::Refused(reason) => Err(io::Error::other(reason)),
            _ => Err(wrong_answer()),
        }
    }

    fn load_flood_filter(&mut self) -> Result<Box<dyn LoadedFilter>, String> {
        self.done(Request::LoadFilter, &[])?;
        Ok(Box::new(FilterOfBroker(self.0.clone())))
    }
}

impl ByBroker {
    /// Sends a request that is executed or refused.
    fn done(&self, request: Request, sockets: &[BorrowedFd<'_>]) -> Result<(), String> {
        match self.0.ask(request, sockets) {
            Ok((Answer::Done, _)) => Ok(()),
            Ok((Answer::Refused(reason), _)) => Err(reason),
            Ok(_) => Err(wrong_answer().to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Resolver for ByBroker {
    fn prepare(&self) {
        if let Err(error) = self.done(Request::PrepareLookUp, &[]) {
            debug!(error, "the name servers are not known");
        }
    }

    fn resolve(&self, name: &EndpointName, mark: u32) -> io::Result<Vec<SocketAddr>> {
        let request = Request::LookUp {
            host: name.host().to_owned(),
            port: name.port(),
            mark,
        };
        match self.0.ask(request, &[])?.0 {
            Answer::Addresses(addresses) => Ok(addresses),
            Answer::Refused(reason) => Err(io::Error::other(reason)),
            _ => Err(wrong_answer()),
        }
    }

    /// The broker returns only addresses to which the device can send.
    fn can_send_to(&self, _: SocketAddr, _: u32) -> bool {
        true
    }
}

/// The flood filter, which the broker has loaded.
struct FilterOfBroker(Broker);

impl LoadedFilter for FilterOfBroker {
    fn attach(&mut self, sockets: &[BorrowedFd<'_>], on: bool) -> Result<(), String> {
        ByBroker(self.0.clone()).done(Request::AttachFilter { on }, sockets)
    }

    fn expect_answer(&mut self, index: u32) {
        if let Err(error) = self.0.expect_answer(index) {
            debug!(%error, "announcing an answer to the flood filter");
        }
    }

    fn dropped(&mut self) -> Option<u64> {
        match self.0.ask(Request::CountDropped, &[]) {
            Ok((Answer::Dropped(count), _)) => count,
            _ => None,
        }
    }
}

/// State that the broker saves.
struct StateOfBroker {
    broker: Broker,
    has_warned: bool,
}

impl StateOfBroker {
    fn new(broker: Broker) -> Self {
        Self {
            broker,
            has_warned: false,
        }
    }

    /// Sends a request whose failure the broker logs.
    fn save(&mut self, request: Request) {
        let error = match self.broker.ask(request, &[]) {
            Ok((Answer::Done, _)) => return,
            Ok((Answer::Refused(reason), _)) => io::Error::other(reason),
            Ok(_) => wrong_answer(),
            Err(error) => error,
        };
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!(%error, "state of the device is not saved");
        }
    }
}

impl SavedState for StateOfBroker {
    fn timestamp(&mut self, &PublicKey(key): &PublicKey) -> Tai64N {
        match self.broker.ask(Request::Timestamp { key }, &[]) {
            Ok((Answer::Timestamp(timestamp), _)) => Tai64N(timestamp),
            _ => Tai64N::ZERO,
        }
    }

    fn save_timestamp(&mut self, &PublicKey(key): &PublicKey, Tai64N(timestamp): Tai64N) {
        self.save(Request::SaveTimestamp { key, timestamp });
    }

    fn pinned_peers(
        &mut self,
        &PublicKey(key): &PublicKey,
    ) -> Result<BTreeSet<PublicKey>, PinnedPeersError> {
        let mut all = BTreeSet::new();
        let mut after = None;
        loop {
            let unreadable = |error| PinnedPeersError::new(PathBuf::new(), error);
            let (answer, _) = self
                .broker
                .ask(Request::Pinned { key, after }, &[])
                .map_err(unreadable)?;
            match answer {
                Answer::Pinned(some) => {
                    let is_last = some.len() < MAX_PINNED;
                    after = some.last().copied();
                    all.extend(some.into_iter().map(PublicKey));
                    if is_last {
                        return Ok(all);
                    }
                }
                Answer::PinnedUnreadable { folder, reason } => {
                    return Err(PinnedPeersError::new(folder, io::Error::other(reason)));
                }
                _ => return Err(unreadable(wrong_answer())),
            }
        }
    }

    fn save_pin(&mut self, &PublicKey(key): &PublicKey, PublicKey(peer): PublicKey, pinned: bool) {
        self.save(Request::SavePin { key, peer, pinned });
    }
}

/// Returns the sockets of a family, whose descriptors are the next.
fn group(record: GroupRecord, next: &mut vec::IntoIter<OwnedFd>) -> Result<SocketGroup, BindError> {
    let mut socket = |record: SocketRecord| {
        let fd = next.next().ok_or_else(|| BindError::Io {
            what: "asking for sockets".into(),
            source: wrong_answer(),
        })?;
        Ok(Socket::from_parts(SocketParts {
            fd,
            port: record.port,
            gro: record.gro,
            gso: record.gso,
        }))
    };
    let data: Result<_, BindError> = record.data.into_iter().map(&mut socket).collect();
    Ok(SocketGroup {
        data: data?,
        others: match record.others {
            Ok(record) => Ok(socket(record)?),
            Err(reason) => Err(BindError::Io {
                what: "the socket for handshakes".into(),
                source: io::Error::other(reason),
            }),
        },
    })
}

fn wrong_answer() -> io::Error {
    io::Error::other("the broker's answer does not match the request")
}
