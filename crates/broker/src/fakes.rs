//! An environment for tests, without rights and files, and a server with both ends of its socket.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use taupe_engine::{
    BindRequest, BoundSockets, Environment, LoadedFilter, MarkError, Resolver, System,
};
use taupe_os_linux::message_socket::{self, Message};
use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::BindError;
use taupe_os_linux::watch::{LinkState, LinkWatch};
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::EndpointName;
use taupe_runtime::pinned_pq::PinnedPeersError;
use taupe_runtime::saved_state::SavedState;

use crate::link::{Link, LinkError};
#[cfg(test)]
use crate::message::FromPacketProcess;
use crate::message::{Answer, FromBroker};
use crate::server::{Report, Server};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A port that is in use.
pub(crate) const TAKEN: u16 = 53;

/// A host whose look-up takes until [`FakeResolver::release`].
pub(crate) const SLOW: &str = "slow.example";

/// A key whose pins cannot be read.
pub(crate) const UNREADABLE: [u8; 32] = [255; 32];

struct FakeSystem;

impl System for FakeSystem {
    fn bind(&mut self, request: &BindRequest) -> Result<BoundSockets, BindError> {
        match request.port {
            TAKEN => Err(BindError::PortInUse(TAKEN)),
            _ => request.bind(),
        }
    }

    fn set_mark(&mut self, sockets: &[BorrowedFd<'_>], mark: u32) -> Result<(), MarkError> {
        match (sockets.len(), mark) {
            (0, _) => Err(MarkError::Sockets(io::ErrorKind::InvalidInput.into())),
            (_, 0) => Err(MarkError::Outer("no mark".into())),
            _ => Ok(()),
        }
    }

    fn link_state(&mut self, _: &Tun, _: &mut LinkWatch) -> io::Result<Option<LinkState>> {
        Ok(None)
    }

    fn load_flood_filter(&mut self) -> Result<Box<dyn LoadedFilter>, String> {
        Ok(Box::new(FakeFilter { expected: 0 }))
    }
}

struct FakeFilter {
    expected: u64,
}

impl LoadedFilter for FakeFilter {
    fn attach(&mut self, sockets: &[BorrowedFd<'_>], _: bool) -> Result<(), String> {
        match sockets {
            [] => Err("no sockets".into()),
            _ => Ok(()),
        }
    }

    fn expect_answer(&mut self, _: u32) {
        self.expected += 1;
    }

    /// Returns the number of expected answers.
    fn dropped(&mut self) -> Option<u64> {
        Some(self.expected)
    }
}

/// A resolver that has an address for every name.
#[derive(Default)]
pub(crate) struct FakeResolver {
    running: AtomicUsize,
    most: AtomicUsize,
    is_released: Mutex<bool>,
    released: Condvar,
}

impl FakeResolver {
    /// Ends the slow look-ups.
    pub(crate) fn release(&self) {
        *self
            .is_released
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.released.notify_all();
    }

    /// Returns the largest number of look-ups at one time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Resolver for FakeResolver {
    fn resolve(&self, name: &EndpointName, _: u32) -> io::Result<Vec<SocketAddr>> {
        let running = 1 + self.running.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(running, Ordering::SeqCst);
        if name.host() == SLOW {
            let locked = self.is_released.lock();
            let is_released = locked.unwrap_or_else(PoisonError::into_inner);
            let wait = self
                .released
                .wait_timeout_while(is_released, PATIENCE, |it| !*it);
            drop(wait);
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(vec![(Ipv4Addr::new(192, 0, 2, 1), name.port()).into(); 99])
    }

    fn can_send_to(&self, _: SocketAddr, _: u32) -> bool {
        true
    }
}

/// State in memory.
#[derive(Default)]
struct FakeState {
    timestamps: BTreeMap<PublicKey, Tai64N>,
    pins: BTreeMap<PublicKey, BTreeSet<PublicKey>>,
}

impl SavedState for FakeState {
    fn timestamp(&mut self, key: &PublicKey) -> Tai64N {
        self.timestamps.get(key).copied().unwrap_or(Tai64N::ZERO)
    }

    fn save_timestamp(&mut self, key: &PublicKey, timestamp: Tai64N) {
        self.timestamps.insert(*key, timestamp);
    }

    fn pinned_peers(&mut self, key: &PublicKey) -> Result<BTreeSet<PublicKey>, PinnedPeersError> {
        match key.0 {
            UNREADABLE => {
                let error = io::ErrorKind::PermissionDenied.into();
                Err(PinnedPeersError::new(PathBuf::from("/nowhere"), error))
            }
            _ => Ok(self.pins.get(key).cloned().unwrap_or_default()),
        }
    }

    fn save_pin(&mut self, key: &PublicKey, peer: PublicKey, pinned: bool) {
        let pins = self.pins.entry(*key).or_default();
        match pinned {
            true => pins.insert(peer),
            false => pins.remove(&peer),
        };
    }
}

/// A server, and the other end of its socket.
pub(crate) struct ServedClient {
    server: Server,
    answers: Arc<Link>,
    link: Link,
    pub(crate) resolver: Arc<FakeResolver>,
}

impl ServedClient {
    pub(crate) fn new() -> io::Result<Self> {
        let (broker, client) = message_socket::pair()?;
        let resolver = Arc::<FakeResolver>::default();
        let environment = Environment {
            system: Box::new(FakeSystem),
            resolver: Arc::clone(&resolver) as Arc<dyn Resolver>,
            saved: Box::new(FakeState::default()),
        };
        let answers = Arc::new(Link::of_broker(broker, PATIENCE)?);
        // A test fails instead of waiting for ever.
        set_socket_timeout(&client, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self {
            server: Server::new(environment, Arc::clone(&answers)),
            answers,
            link: Link::new(client),
            resolver,
        })
    }

    /// Handles a message. Returns an error if it is invalid.
    pub(crate) fn handle(
        &mut self,
        text: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Report>, LinkError> {
        let handled = self.server.handle(Message {
            text,
            descriptors,
            lacks_descriptors: false,
        });
        handled?.finish(&self.answers)
    }

    /// Handles a message of this version.
    #[cfg(test)]
    pub(crate) fn handle_message(
        &mut self,
        message: &FromPacketProcess,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Report>, LinkError> {
        self.handle(serde_json::to_vec(message)?, descriptors)
    }

    /// Waits for the next answer. Returns its number and its descriptors too.
    pub(crate) fn answer(&self) -> Result<(u64, Answer, Vec<OwnedFd>), LinkError> {
        let message = self.link.receive_text()?;
        match serde_json::from_slice(&message.text)? {
            FromBroker::Answer { id, answer } => Ok((id, answer, message.descriptors)),
            _ => Err(LinkError::Unexpected("a command")),
        }
    }

    /// Ends the server. Returns true if it has sent nothing else.
    pub(crate) fn has_sent_no_more(self) -> bool {
        // Threads that look names up may still own the other end.
        drop((self.server, self.answers));
        matches!(self.link.receive_text(), Err(LinkError::Closed))
    }
}
