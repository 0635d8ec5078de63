//! The lock that lets one lane at a time send to a peer without lanes.

use std::sync::{Arc, PoisonError};

use super::sync::{Condvar, Mutex, MutexGuard, lock};

/// Order of the lanes that send in a session with consecutive counters. A lane waits for its turn
/// before it reserves counters, and ends the turn after it has sent the messages. Otherwise a lane
/// that loses its processor in between would send counters below the receiver's replay window.
#[derive(Default)]
pub(crate) struct SendOrder {
    state: Mutex<OrderState>,
    free: Condvar,
}

#[derive(Default)]
struct OrderState {
    taken: bool,
    /// Number of waiting lanes. If it is 0, the end of a turn makes no system call.
    waiting: usize,
    /// Turns of lanes that came while others waited, since one of these had a turn.
    overtaken: u32,
}

/// Turns in a row by which a lane may overtake those that wait. The lane that runs has its data in
/// the cache, and a waiting one has to be woken. Without a limit it could wait for ever.
const MAX_OVERTAKEN: u32 = 8;

#[cfg(feature = "testing")]
impl SendOrder {
    /// Returns the number of lanes that wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).waiting
    }
}

/// The turn of a lane; ends when it is dropped.
pub(crate) struct SendTurn(Arc<SendOrder>);

/// Locks a state, after the turn that its `order` demands. The state is not locked while the caller
/// waits, so the order may be another one then: this waits for that one too.
pub(crate) fn lock_in_turn<S>(
    state: &Mutex<S>,
    order: impl Fn(&S) -> Option<&Arc<SendOrder>>,
) -> (MutexGuard<'_, S>, Option<SendTurn>) {
    let mut turn: Option<SendTurn> = None;
    loop {
        let locked = lock(state);
        let awaited =
            order(&locked).filter(|order| !turn.as_ref().is_some_and(|it| it.is_of(order)));
        let Some(awaited) = awaited.map(Arc::clone) else {
            return (locked, turn);
        };
        drop(locked);
        drop(turn.take());
        turn = Some(SendTurn::wait(awaited));
    }
}

impl SendTurn {
    /// Waits until no other lane has a turn in `order`.
    fn wait(order: Arc<SendOrder>) -> Self {
        let mut state = lock(&order.state);
        if state.taken || state.overtaken >= MAX_OVERTAKEN {
            state.waiting += 1;
            loop {
                let woken = order.free.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                if !state.taken {
                    break;
                }
            }
            state.waiting -= 1;
            state.overtaken = 0;
        } else if state.waiting > 0 {
            state.overtaken += 1;
        }
        state.taken = true;
        drop(state);
        Self(order)
    }

    /// Checks whether the turn belongs to `order`.
    fn is_of(&self, order: &Arc<SendOrder>) -> bool {
        Arc::ptr_eq(&self.0, order)
    }
}

impl Drop for SendTurn {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.taken = false;
        let waited_for = state.waiting > 0;
        drop(state);
        if waited_for {
            self.0.free.notify_one();
        }
    }
}
