//! The broker's answers to requests. The requests come from a process that an attacker may control.

use std::collections::BTreeSet;
use std::io;
use std::ops::Bound;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use taupe_engine::{BindRequest, BoundSockets, Environment, Exit, LoadedFilter, MarkError};
use taupe_os_linux::message_socket::Message;
use taupe_os_linux::udp::{BindError, Socket, SocketGroup};
use taupe_os_linux::watch::{LinkState, link_state};
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::EndpointName;
use taupe_runtime::names::look_up;
use tracing::debug;

use crate::link::{Link, LinkError};
use crate::log::controls_text;
use crate::message::{
    Answer, BindFailure, FromBroker, FromPacketProcess, GroupRecord, Key, LinkRecord, MAX_PINNED,
    Request, SocketRecord,
};
use crate::start::{borrowed, no_room};

/// Characters of a reason that are printed.
const MAX_REASON: usize = 1000;

/// Look-ups of names at one time, at most. The engine has one.
pub(crate) const MAX_LOOKUPS: usize = 4;

/// Private keys for which a packet process may save state, at most. A device has one at a time.
const MAX_KEYS: usize = 1024;

/// Changes of pins that a packet process may make, at most: a few for each of the largest number of
/// peers. The number of pins is limited where they are saved.
const MAX_PINS: u32 = 1 << 22;

/// Executes the requests of one packet process.
pub(crate) struct Server {
    environment: Environment,
    link: Arc<Link>,
    filter: Option<Box<dyn LoadedFilter>>,
    lookups: Arc<AtomicUsize>,
    /// Keys for which state has been saved.
    keys: BTreeSet<Key>,
    pins: u32,
    /// The pinned peers of which the packet process reads the pages now, and their private key.
    pages: Option<(Key, BTreeSet<Key>)>,
}

/// A message that is no request.
#[derive(Debug)]
pub(crate) enum Report {
    /// With the TUN.
    Started(OwnedFd),
    Failed(String),
    Forgotten,
    Ended(Exit),
}

/// Result of a message.
#[derive(Debug)]
pub(crate) enum Handled {
    /// Nothing is left to do, or another thread answers.
    Done,
    /// The answer that is to be sent, with its sockets.
    Answer(FromBroker, Vec<OwnedFd>),
    Report(Report),
}

impl Handled {
    /// Sends the answer, or returns the report. This may take as long as the packet process takes to
    /// read its messages.
    pub(crate) fn finish(self, link: &Link) -> Result<Option<Report>, LinkError> {
        match self {
            Self::Done => Ok(None),
            Self::Answer(answer, sockets) => link.send(&answer, &borrowed(&sockets)).map(|()| None),
            Self::Report(report) => Ok(Some(report)),
        }
    }
}

impl Server {
    pub(crate) fn new(environment: Environment, link: Arc<Link>) -> Self {
        Self {
            environment,
            link,
            filter: None,
            lookups: Arc::default(),
            keys: BTreeSet::new(),
            pins: 0,
            pages: None,
        }
    }

    /// Executes a request, or returns a report.
    pub(crate) fn handle(&mut self, message: Message) -> Result<Handled, LinkError> {
        let Message {
            text,
            descriptors,
            lacks_descriptors,
        } = message;
        Ok(Handled::Report(match serde_json::from_slice(&text)? {
            FromPacketProcess::Request { id, .. } if lacks_descriptors => {
                let answer = Answer::Refused(no_room());
                return Ok(Handled::Answer(
                    FromBroker::Answer { id, answer },
                    Vec::new(),
                ));
            }
            FromPacketProcess::Request { id, request } => {
                return Ok(match self.execute(id, request, &descriptors) {
                    None => Handled::Done,
                    Some((answer, sockets)) => {
                        Handled::Answer(FromBroker::Answer { id, answer }, sockets)
                    }
                });
            }
            FromPacketProcess::ExpectAnswer { index } => {
                if let Some(filter) = &mut self.filter {
                    filter.expect_answer(index);
                }
                return Ok(Handled::Done);
            }
            FromPacketProcess::Started => match descriptors.into_iter().next() {
                // With a copy of the packet process's end of the socket, the broker would never notice that
                // the process has ended.
                Some(tun) if is_device(&tun) => Report::Started(tun),
                None if lacks_descriptors => {
                    return Err(io::Error::from(Errno::MFILE).into());
                }
                _ => return Err(LinkError::Unexpected("it has started without a TUN")),
            },
            FromPacketProcess::Forgotten => Report::Forgotten,
            FromPacketProcess::Failed { reason } => Report::Failed(printable(&reason)),
            FromPacketProcess::Ended { exit } => Report::Ended(match exit {
                Exit::Failed(reason) => Exit::Failed(printable(&reason)),
                exit => exit,
            }),
        }))
    }

    /// Executes a request. Returns `None` if another thread answers it.
    fn execute(
        &mut self,
        id: u64,
        request: Request,
        descriptors: &[OwnedFd],
    ) -> Option<(Answer, Vec<OwnedFd>)> {
        if let Some(reason) = self.refuse(&request) {
            return Some(without_sockets(Answer::Refused(reason.to_owned())));
        }
        let Environment {
            system,
            resolver,
            saved,
        } = &mut self.environment;
        let sockets: Vec<BorrowedFd<'_>> = borrowed(descriptors);
        let answer = match request {
            Request::Bind(request) => return Some(bound(&request, system.bind(&request))),
            Request::SetMark { mark } => match system.set_mark(&sockets, mark) {
                Ok(()) => Answer::Done,
                Err(MarkError::Sockets(error)) => Answer::Refused(error.to_string()),
                Err(MarkError::Outer(reason)) => Answer::OuterRefused(reason),
            },
            Request::LinkState => match sockets.first().map(|tun| link_state(*tun)) {
                Some(Ok(link)) => {
                    Answer::Link(link.map(|LinkState { up, mtu }| LinkRecord { up, mtu }))
                }
                Some(Err(error)) => Answer::Refused(error.to_string()),
                None => Answer::Refused("the request lacks a TUN".to_owned()),
            },
            Request::LoadFilter => match system.load_flood_filter() {
                Ok(filter) => {
                    self.filter = Some(filter);
                    Answer::Done
                }
                Err(reason) => Answer::Refused(reason),
            },
            Request::AttachFilter { on } => {
                let attached = self.filter.as_mut().map(|it| it.attach(&sockets, on));
                match attached {
                    Some(Ok(())) => Answer::Done,
                    Some(Err(reason)) => Answer::Refused(reason),
                    None => Answer::Refused("the filter is not loaded".to_owned()),
                }
            }
            Request::CountDropped => {
                Answer::Dropped(self.filter.as_mut().and_then(|it| it.dropped()))
            }
            Request::PrepareLookUp => {
                resolver.prepare();
                Answer::Done
            }
            Request::LookUp { host, port, mark } => match EndpointName::new(&host, port) {
                Some(name) => return self.start_look_up(id, name, mark).map(without_sockets),
                None => Answer::Refused("the name is invalid".to_owned()),
            },
            Request::Timestamp { key } => Answer::Timestamp(saved.timestamp(&PublicKey(key)).0),
            Request::SaveTimestamp { key, timestamp } => {
                saved.save_timestamp(&PublicKey(key), Tai64N(timestamp));
                Answer::Done
            }
            Request::Pinned { key, after } => return Some(self.page(key, after)),
            Request::SavePin { key, peer, pinned } => {
                saved.save_pin(&PublicKey(key), PublicKey(peer), pinned);
                Answer::Done
            }
        };
        Some(without_sockets(answer))
    }

    /// Returns a page of the pinned peers of a key. They are read from disk for the first page only.
    fn page(&mut self, key: Key, after: Option<Key>) -> (Answer, Vec<OwnedFd>) {
        let read = self.pages.take();
        let read = read.filter(|(of, _)| *of == key && after.is_some());
        let peers = match read {
            Some((_, peers)) => peers,
            None => match self.environment.saved.pinned_peers(&PublicKey(key)) {
                Ok(peers) => peers.into_iter().map(|PublicKey(peer)| peer).collect(),
                Err(error) => {
                    let (folder, error) = error.into_parts();
                    let reason = error.to_string();
                    return without_sockets(Answer::PinnedUnreadable { folder, reason });
                }
            },
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = peers.range((from, Bound::Unbounded)).take(MAX_PINNED);
        let page: Vec<Key> = page.copied().collect();
        if page.len() == MAX_PINNED {
            self.pages = Some((key, peers));
        }
        without_sockets(Answer::Pinned(page))
    }

    /// Returns the reason if a request would fill the disk.
    fn refuse(&mut self, request: &Request) -> Option<&'static str> {
        let key = match request {
            Request::SaveTimestamp { key, .. } => key,
            Request::SavePin { key, .. } => {
                self.pins = self.pins.saturating_add(1);
                if self.pins > MAX_PINS {
                    return Some("too many pins");
                }
                key
            }
            _ => return None,
        };
        let is_new = !self.keys.contains(key);
        if is_new && self.keys.len() == MAX_KEYS {
            return Some("too many private keys");
        }
        self.keys.insert(*key);
        None
    }

    /// Starts a look-up in a thread, which answers the request. Returns an answer if it does not
    /// start.
    fn start_look_up(&self, id: u64, name: EndpointName, mark: u32) -> Option<Answer> {
        let running = LookUp::begin(&self.lookups);
        let Some(running) = running else {
            return Some(Answer::Refused("too many name lookups at once".to_owned()));
        };
        let (link, resolver) = (
            Arc::clone(&self.link),
            Arc::clone(&self.environment.resolver),
        );
        let started = thread::Builder::new().name("names".into()).spawn(move || {
            let answer = match look_up(&*resolver, &name, mark) {
                Ok(addresses) => Answer::Addresses(addresses),
                Err(error) => Answer::Refused(error.to_string()),
            };
            if let Err(error) = link.send(&FromBroker::Answer { id, answer }, &[]) {
                debug!(%error, "an address is not needed any more");
            }
            // The place is taken until the packet process has read the answer.
            drop(running);
        });
        let error = started.err()?;
        Some(Answer::Refused(error.to_string()))
    }
}

/// A running look-up, which counts as such until it is dropped.
struct LookUp(Arc<AtomicUsize>);

impl LookUp {
    fn begin(count: &Arc<AtomicUsize>) -> Option<Self> {
        let running = Self(Arc::clone(count));
        let before = count.fetch_add(1, Ordering::Relaxed);
        (before < MAX_LOOKUPS).then_some(running)
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true for a device such as a TUN.
fn is_device(descriptor: &OwnedFd) -> bool {
    let kind = fstat(descriptor).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::CharacterDevice)
}

/// Returns a reason of the packet process without characters that control a terminal.
fn printable(reason: &str) -> String {
    let plain = reason
        .chars()
        .map(|c| if controls_text(c) { ' ' } else { c });
    plain.take(MAX_REASON).collect()
}

fn without_sockets(answer: Answer) -> (Answer, Vec<OwnedFd>) {
    (answer, Vec::new())
}

/// Returns the answer to a request to bind, and the sockets that go with it.
fn bound(request: &BindRequest, bound: Result<BoundSockets, BindError>) -> (Answer, Vec<OwnedFd>) {
    let mut sockets = Vec::new();
    let answer = match bound {
        Ok(BoundSockets { v4, v6 }) => Answer::Bound {
            v4: v4.map(|group| record(group, &mut sockets)),
            v6: v6.map(|group| record(group, &mut sockets)),
        },
        Err(error) => {
            debug!(%error, port = request.port, "cannot bind");
            Answer::NotBound(match error {
                BindError::FamilyUnsupported(_) => BindFailure::NoFamily,
                BindError::PortInUse(port) => BindFailure::PortInUse(port),
                BindError::Mark(mark) => BindFailure::Mark(mark),
                BindError::Io { what, source } => BindFailure::Other {
                    what: what.into_owned(),
                    reason: source.to_string(),
                },
                other => BindFailure::Other {
                    what: "binding".to_owned(),
                    reason: other.to_string(),
                },
            })
        }
    };
    (answer, sockets)
}

fn record(group: SocketGroup, sockets: &mut Vec<OwnedFd>) -> GroupRecord {
    let mut record = |socket: Socket| {
        let parts = socket.into_parts();
        sockets.push(parts.fd);
        SocketRecord {
            port: parts.port,
            gro: parts.gro,
            gso: parts.gso,
        }
    };
    GroupRecord {
        data: group.data.into_iter().map(&mut record).collect(),
        others: group
            .others
            .map(&mut record)
            .map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests;
