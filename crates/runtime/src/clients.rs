//! Limits for clients that configure a device: their number, and their idle time.
//!
//! Further clients wait in the system's queue of connections. While some wait, a client that is
//! idle for `MAX_IDLE_CROWDED` is disconnected.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Clients served at the same time.
pub const MAX_CLIENTS: usize = 32;

/// The timeout to set for reads and writes of a client's connection. [`ClientSlot`] repeats a call that
/// has timed out, and checks the limits in between.
pub const TICK: Duration = Duration::from_millis(250);

/// The longest idle time of a client.
pub const MAX_IDLE: Duration = Duration::from_secs(60);

/// The longest idle time of a client while others wait. Those give up after 2 s.
const MAX_IDLE_CROWDED: Duration = Duration::from_secs(1);

/// The clients of a device.
#[derive(Default)]
pub struct Clients {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Default)]
struct State {
    served: usize,
    is_waiting: bool,
    /// The time at which a waiting client was last admitted.
    waited: Option<Instant>,
}

/// The slot of a client that is being served. Dropping it admits the next client.
pub struct ClientSlot(Arc<Clients>);

impl Clients {
    /// Waits until another client can be served.
    #[must_use]
    pub fn admit(self: &Arc<Self>) -> ClientSlot {
        let mut state = self.state();
        if state.served >= MAX_CLIENTS {
            state.is_waiting = true;
            while state.served >= MAX_CLIENTS {
                let left = self.left.wait(state);
                state = left.unwrap_or_else(PoisonError::into_inner);
            }
            state.is_waiting = false;
            state.waited = Some(Instant::now());
        }
        state.served += 1;
        ClientSlot(Arc::clone(self))
    }

    /// Checks whether clients wait. Others are likely to wait behind a client that has just been
    /// admitted, so the answer stays the same until every connection has timed out once.
    fn is_crowded(&self) -> bool {
        let state = self.state();
        let waited = state.waited;
        state.is_waiting || waited.is_some_and(|at| at.elapsed() < 2 * TICK)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSlot {
    /// Repeats `attempt` until it succeeds. `attempt` is a read or a write of a connection with the
    /// timeout [`TICK`].
    ///
    /// # Errors
    ///
    /// The connection's error, or [`io::ErrorKind::TimedOut`] if the client is idle for too long.
    pub(crate) fn retry<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let began = Instant::now();
        loop {
            let error = match attempt() {
                Err(error) => error,
                done => return done,
            };
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                _ => return Err(error),
            }
            let limit = if self.0.is_crowded() {
                MAX_IDLE_CROWDED
            } else {
                MAX_IDLE
            };
            if began.elapsed() >= limit {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.state().served -= 1;
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Returns the time for which a silent client is served.
    fn be_silent(slot: &ClientSlot) -> Duration {
        let began = Instant::now();
        let silent = slot.retry::<()>(|| {
            thread::sleep(TICK);
            Err(io::ErrorKind::WouldBlock.into())
        });
        assert_eq!(silent.unwrap_err().kind(), io::ErrorKind::TimedOut);
        began.elapsed()
    }

    #[test]
    fn a_new_client_waits_until_a_silent_one_is_closed() {
        let clients = Arc::new(Clients::default());
        let served: Vec<_> = (0..MAX_CLIENTS).map(|_| clients.admit()).collect();
        assert!(!clients.is_crowded());
        let silent: Vec<_> = served
            .into_iter()
            .map(|slot| thread::spawn(move || be_silent(&slot)))
            .collect();
        drop(clients.admit());
        for one in silent {
            let time = one.join().unwrap();
            assert!(time >= MAX_IDLE_CROWDED, "{time:?}");
        }
        let places: Vec<_> = (0..MAX_CLIENTS).map(|_| clients.admit()).collect();
        drop(places);
    }

    #[test]
    fn other_errors_and_answers_are_returned() {
        let slot = Arc::new(Clients::default()).admit();
        let mut attempts = [
            Err(io::ErrorKind::Interrupted.into()),
            Err(io::ErrorKind::WouldBlock.into()),
            Ok(7),
        ]
        .into_iter();
        assert_eq!(slot.retry(|| attempts.next().unwrap()).unwrap(), 7);
        let broken = slot.retry::<()>(|| Err(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(broken.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
