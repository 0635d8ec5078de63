//! Lock under which one lane at a time sends to a peer without lanes.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::lock;

/// Order of the lanes that send in a session with consecutive counters. A lane waits for its turn
/// before it reserves counters, and ends it after it has sent them. Otherwise a lane that loses
/// its processor in between would send counters below the receiver's replay window.
#[derive(Default)]
pub(crate) struct SendOrder {
    state: Mutex<OrderState>,
    free: Condvar,
}

#[derive(Default)]
struct OrderState {
    taken: bool,
    /// Lanes that wait. Without any, the end of a turn makes no system call.
    waiting: usize,
}

impl SendOrder {
    /// Waits until no other lane has a turn.
    pub(crate) fn take(self: Arc<Self>) -> SendTurn {
        let mut state = lock(&self.state);
        while state.taken {
            state.waiting += 1;
            let woken = self.free.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state.taken = true;
        drop(state);
        SendTurn(self)
    }
}

/// The turn of a lane; ends when it is dropped.
pub(crate) struct SendTurn(Arc<SendOrder>);

impl SendTurn {
    /// Checks whether it is a turn in `order`.
    pub(crate) fn is_of(&self, order: &Arc<SendOrder>) -> bool {
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
