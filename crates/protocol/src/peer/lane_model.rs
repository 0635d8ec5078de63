//! Models of lanes that reserve and send. loom tries every order of their steps with at most three
//! preemptions, and finds a lane that waits forever.
//!
//! The models use the real counters and the real order of sending, with loom's locks. [`Peer`] is
//! [`crate::peer::Peer`], reduced to the state that lanes share.

use std::collections::BTreeSet;
use std::sync::Arc;

use loom::model::Builder;
use loom::thread;

use crate::lanes::{LaneCounters, LaneId, Lanes, position};

mod sync {
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no thread has panicked")
    }
}

#[allow(clippy::duplicate_mod, reason = "this copy has loom's locks")]
#[path = "send_order.rs"]
mod send_order;

use send_order::{SendOrder, lock_in_turn};
use sync::{Mutex, lock};

/// Messages of a batch. Batches of this length cross the ends of blocks.
const BATCH: u64 = 48;

struct Peer {
    state: Mutex<State>,
    /// Key and counter of each message, in the order of sending.
    sent: Mutex<Vec<(u32, u64)>>,
}

struct State {
    key: u32,
    counters: LaneCounters,
    order: Option<Arc<SendOrder>>,
}

impl State {
    fn new(key: u32, lanes: Lanes) -> Self {
        Self {
            key,
            counters: LaneCounters::new(lanes),
            order: (lanes == Lanes::One).then(Arc::default),
        }
    }
}

impl Peer {
    fn new(lanes: Lanes) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::new(0, lanes)),
            sent: Mutex::new(Vec::new()),
        })
    }

    /// Reserves as [`crate::peer::Peer::reserve`] does, and sends in two steps.
    fn send(&self, lane: LaneId) {
        let (mut state, turn) = lock_in_turn(&self.state, |state| state.order.as_ref());
        let reserved = state.counters.reserve(lane, BATCH);
        let mut run = reserved.expect("below the limit").run;
        let key = state.key;
        drop(state);
        let counters: Vec<u64> = (0..BATCH).map(|_| run.take()).collect();
        for half in counters.chunks(BATCH as usize / 2) {
            let half = half.iter().map(|counter| (key, *counter));
            lock(&self.sent).extend(half);
        }
        drop(turn);
    }

    /// Installs a new session.
    fn change_key(&self, lanes: Lanes) {
        let mut state = lock(&self.state);
        *state = State::new(state.key + 1, lanes);
    }

    /// Checks that no nonce was used twice. Returns the messages in the order of sending.
    fn check(&self, batches: u64) -> Vec<(u32, u64)> {
        let sent = lock(&self.sent).clone();
        let unique: BTreeSet<&(u32, u64)> = sent.iter().collect();
        assert_eq!(unique.len(), sent.len(), "a nonce was used twice");
        assert_eq!(sent.len() as u64, batches * BATCH);
        if let Some(order) = &lock(&self.state).order {
            assert_eq!(order.waiting(), 0, "lanes that wait");
        }
        sent
    }
}

fn lane(number: usize) -> LaneId {
    LaneId::new(number).expect("below 16")
}

/// Explores the orders with at most three preemptions: switches from a thread that could continue.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn lanes_of_a_peer_without_lanes_exclude_each_other() {
    explore(|| {
        let peer = Peer::new(Lanes::One);
        let lanes = [0, 1].map(|number| {
            let peer = Arc::clone(&peer);
            thread::spawn(move || peer.send(lane(number)))
        });
        peer.change_key(Lanes::One);
        for thread in lanes {
            thread.join().expect("no panic");
        }
        // The messages of one session are sent in the order of their counters.
        let sent = peer.check(2);
        for key in 0..2 {
            let counters = sent.iter().filter(|(of, _)| *of == key);
            assert!(counters.is_sorted());
        }
    });
}

#[test]
fn three_lanes_wait_for_each_other() {
    explore(|| {
        let peer = Peer::new(Lanes::One);
        let others = [1, 2].map(|number| {
            let peer = Arc::clone(&peer);
            thread::spawn(move || peer.send(lane(number)))
        });
        peer.send(lane(0));
        for thread in others {
            thread.join().expect("no panic");
        }
        assert!(peer.check(3).is_sorted());
    });
}

#[test]
fn a_lane_moves_between_threads_while_keys_change() {
    explore(|| {
        let peer = Peer::new(Lanes::Two);
        // The first lane, as a value that threads hand over.
        let first = Arc::new(Mutex::new(lane(0)));
        let threads = [0, 1].map(|number| {
            let (peer, first) = (Arc::clone(&peer), Arc::clone(&first));
            thread::spawn(move || {
                let carried = lock(&first);
                peer.send(*carried);
                drop(carried);
                if number == 1 {
                    peer.send(lane(1));
                }
            })
        });
        peer.change_key(Lanes::Two);
        for thread in threads {
            thread.join().expect("no panic");
        }
        // In each session, each lane goes forward.
        let sent = peer.check(3);
        for key in 0..2 {
            for of in Lanes::Two.ids() {
                let of_lane = sent
                    .iter()
                    .filter(|(it, counter)| *it == key && position(Lanes::Two, *counter).0 == of);
                assert!(of_lane.is_sorted());
            }
        }
    });
}
