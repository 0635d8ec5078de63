//! Changes of the applications in tunnels, which the parent makes (`taupe web --switches`).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taupe_web_link::{Outcome, Switch};
use tokio::sync::{Notify, watch};

/// Time for which an answer waits for the change. The page shows the result later too.
const PATIENCE: Duration = Duration::from_secs(8);

/// Time for which the page shows the result of a change.
const SHOWN_TIME: Duration = Duration::from_secs(120);

/// The change that is made, and the result of the latest one.
pub(crate) struct Switches {
    changes: Mutex<Changes>,
    requested: Notify,
    /// Number of changes that were made.
    done: watch::Sender<u64>,
}

#[derive(Default)]
struct Changes {
    /// The change that the parent shall make.
    next: Option<Switch>,
    /// The change until its result.
    current: Option<Switch>,
    latest: Option<Latest>,
}

/// A change with its result.
#[derive(Clone)]
pub(crate) struct Latest {
    pub(crate) switch: Switch,
    pub(crate) outcome: Outcome,
    at: Instant,
}

impl Switches {
    pub(crate) fn new() -> Self {
        Self {
            changes: Mutex::default(),
            requested: Notify::new(),
            done: watch::Sender::new(0),
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of the latest change, for a while.
    pub(crate) fn latest(&self) -> Option<Latest> {
        let latest = self.changes().latest.clone();
        latest.filter(|it| it.at.elapsed() < SHOWN_TIME)
    }

    /// Waits for the next change that the parent shall make.
    pub(crate) async fn next(&self) -> Switch {
        loop {
            if let Some(switch) = self.changes().next.take() {
                return switch;
            }
            self.requested.notified().await;
        }
    }

    /// Notes the result of the change.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let mut changes = self.changes();
        if let Some(switch) = changes.current.take() {
            let at = Instant::now();
            changes.latest = Some(Latest {
                switch,
                outcome,
                at,
            });
        }
        drop(changes);
        self.done.send_modify(|it| *it = it.wrapping_add(1));
    }

    /// Requests a change. Returns false if another one is not finished.
    pub(crate) async fn request(&self, switch: Switch) -> bool {
        let mut done = self.done.subscribe();
        {
            let mut changes = self.changes();
            if changes.current.is_some() {
                return false;
            }
            changes.current = Some(switch.clone());
            changes.next = Some(switch);
        }
        self.requested.notify_one();
        let _ = tokio::time::timeout(PATIENCE, done.changed()).await;
        true
    }
}
