//! A link between the two ends that impairs datagrams as networks do.
//!
//! It receives whole batches and forwards the rest of each as a batch. Gaps, swaps and forgeries
//! therefore lie *inside* the batches that the receiving end reads with one system call. Emulators
//! below IP forward single datagrams, and their batches never have a gap.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::{Error, Result};
use taupe_os_linux::udp::{Options, RECEIVE_BUFFER_LEN, Receive, Socket};
use taupe_packet::ip::Family;

/// A message under way.
#[derive(Debug, Clone)]
struct Message {
    /// The ECN field of its packet.
    ecn: u8,
    bytes: Vec<u8>,
}

/// Longer messages contain no bare acknowledgement; a few of these may be merged with each other.
const LONG: usize = 1000;

/// The ECN field of a packet that a congested network has marked.
const CONGESTION: u8 = 3;

/// Impairments of data messages, in thousandths. Handshakes are spared: a lost one is retried after
/// 5 s, which other tests cover.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Impairments {
    pub(crate) name: &'static str,
    pub(crate) lose: u32,
    /// Delivered twice, at once.
    pub(crate) double: u32,
    /// Delivered after the next two.
    pub(crate) hold: u32,
    /// Delivered with a flipped bit, under a valid UDP checksum.
    pub(crate) corrupt: u32,
    /// Marked as congested, out of those that support marks.
    pub(crate) mark: u32,
    /// Delay in each direction.
    pub(crate) delay: Duration,
}

impl Impairments {
    pub(crate) const CLEAN: Self = Self {
        name: "clean",
        lose: 0,
        double: 0,
        hold: 0,
        corrupt: 0,
        mark: 0,
        delay: Duration::ZERO,
    };

    /// Returns true if all messages arrive.
    pub(crate) fn is_complete(&self) -> bool {
        self.lose == 0 && self.corrupt == 0
    }

    /// Returns true if messages arrive in order.
    pub(crate) fn keeps_order(&self) -> bool {
        self.hold == 0
    }

    fn travel(&self, batch: Vec<Message>, chance: &mut fastrand::Rng) -> Vec<Message> {
        let mut happens = |share: u32| chance.u32(..1000) < share;
        let mut arrived = Vec::new();
        // Delayed messages, with the number of messages that still pass each.
        let mut blocked: VecDeque<(u32, Message)> = VecDeque::new();
        for mut message in batch {
            for (left, _) in &mut blocked {
                *left = left.saturating_sub(1);
            }
            let is_data = message.bytes.first() == Some(&4);
            if is_data && happens(self.lose) {
                continue;
            }
            if is_data && happens(self.corrupt) {
                let at = message.bytes.len() / 2;
                message.bytes[at] ^= 0x20;
            }
            if message.ecn != 0 && happens(self.mark) {
                message.ecn = CONGESTION;
            }
            if is_data && happens(self.double) {
                arrived.push(message.clone());
            }
            if is_data && happens(self.hold) {
                blocked.push_back((2, message));
            } else {
                arrived.push(message);
            }
            while let Some((0, _)) = blocked.front() {
                arrived.extend(blocked.pop_front().map(|(_, message)| message));
            }
        }
        arrived.extend(blocked.into_iter().map(|(_, message)| message));
        arrived
    }
}

/// Messages that passed in one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Forwarded {
    /// Largest number of long messages that were sent, and arrived, at once.
    pub(crate) largest_batch: usize,
    /// Data messages that were forwarded.
    pub(crate) data: u64,
}

/// A program on the machine between near and far.
pub(crate) struct Relay {
    /// The near end's endpoint for the far one.
    pub(crate) entry: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    road: Impairments,
    near: Option<SocketAddr>,
    /// From near to far.
    there: Forwarded,
}

impl Relay {
    /// Forwards datagrams from an address of the machine to the far end, and back, until the test
    /// ends.
    pub(crate) fn start(host: &Host, entry: IpAddr, far: SocketAddr) -> Result<Self> {
        let family = match far {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        };
        let bind = || {
            let socket = Socket::bind(family, 0, Options::default());
            socket.map_err(|error| Error::unmet(error.to_string()))
        };
        let near_side = Arc::new(host.enter(bind)?);
        let far_side = Arc::new(host.enter(bind)?);
        let entry = SocketAddr::new(entry, near_side.local_port());
        let state = Arc::new(Mutex::new(State {
            road: Impairments::CLEAN,
            near: None,
            there: Forwarded::default(),
        }));
        for (from, to, far) in [
            (near_side.clone(), far_side.clone(), Some(far)),
            (far_side, near_side, None),
        ] {
            let (sender, receiver) = channel();
            let state = Arc::clone(&state);
            let accepting = Arc::clone(&state);
            thread::spawn(move || accept(&from, far.is_some(), &accepting, &sender));
            thread::spawn(move || deliver(&to, far, &state, &receiver));
        }
        Ok(Self { entry, state })
    }

    /// Changes the link for later messages.
    pub(crate) fn change(&self, road: Impairments) {
        lock(&self.state).road = road;
    }

    /// Returns the messages from near to far since the last call.
    pub(crate) fn take_passed(&self) -> Forwarded {
        std::mem::take(&mut lock(&self.state).there)
    }
}

/// Messages under way, and the time at which they are due.
type Travelling = (Instant, Vec<Message>);

/// Receives messages of one direction and applies the impairments.
fn accept(from: &Socket, is_there: bool, state: &Mutex<State>, to: &Sender<Travelling>) {
    let mut chance = fastrand::Rng::with_seed(7 + u64::from(is_there));
    let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
    while let Ok(Receive::Datagrams(batches)) = from.receive(&mut buffer) {
        for received in &batches {
            let end = received.start + received.len;
            let bytes = buffer.get(received.start..end).unwrap_or_default();
            let messages = bytes.chunks(received.segment.max(1)).map(|bytes| Message {
                ecn: received.ecn,
                bytes: bytes.to_vec(),
            });
            let batch: Vec<_> = messages.collect();
            let mut state = lock(state);
            if is_there {
                state.near = Some(received.from);
                let long = batch.iter().filter(|one| one.bytes.len() > LONG).count();
                state.there.largest_batch = state.there.largest_batch.max(long);
            }
            let due = Instant::now() + state.road.delay;
            let batch = state.road.travel(batch, &mut chance);
            drop(state);
            if to.send((due, batch)).is_err() {
                return;
            }
        }
    }
}

/// Sends due messages to the far end or back to the near one.
fn deliver(
    by: &Socket,
    far: Option<SocketAddr>,
    state: &Mutex<State>,
    from: &Receiver<Travelling>,
) {
    for (due, batch) in from {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let groups = groups(&batch);
        let mut state = lock(state);
        let Some(target) = far.or(state.near) else {
            continue;
        };
        if far.is_some() {
            let data = batch.iter().filter(|one| one.bytes.first() == Some(&4));
            state.there.data += data.count() as u64;
        }
        drop(state);
        for group in groups {
            let (Some(first), bytes) = (group.first(), concatenated(group)) else {
                continue;
            };
            let sent = by.send(target, None, first.ecn, &bytes, first.bytes.len());
            if let Err(error) = sent.result {
                eprintln!("the relay lost {} datagrams: {error}", group.len());
            }
        }
    }
}

fn concatenated(group: &[Message]) -> Vec<u8> {
    group
        .iter()
        .flat_map(|one| one.bytes.iter().copied())
        .collect()
}

/// Groups adjacent messages that one system call can send: of equal size and mark, the last
/// possibly shorter.
fn groups(batch: &[Message]) -> Vec<&[Message]> {
    let mut groups = Vec::new();
    let mut rest = batch;
    while let Some(first) = rest.first() {
        let size = first.bytes.len();
        let most = (65_000 / size.max(1)).clamp(1, 64);
        let mut count = 1;
        while count < most
            && let Some(next) = rest.get(count)
            && next.ecn == first.ecn
            && next.bytes.len() <= size
            && rest[count - 1].bytes.len() == size
        {
            count += 1;
        }
        let (group, after) = rest.split_at(count);
        groups.push(group);
        rest = after;
    }
    groups
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
