//! Queue of peers that need the control loop.

use std::sync::{Arc, Mutex};

use crate::lock;
use crate::peer::Peer;

/// Wakes the control loop. Called from any thread, any number of times.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct WorkQueue {
    peers: Mutex<Vec<Arc<Peer>>>,
    wake: Wake,
}

impl WorkQueue {
    pub(crate) fn new(wake: Wake) -> Self {
        Self {
            peers: Mutex::default(),
            wake,
        }
    }

    pub(crate) fn post(&self, peer: Arc<Peer>) {
        lock(&self.peers).push(peer);
        (self.wake)();
    }

    pub(crate) fn take(&self) -> Vec<Arc<Peer>> {
        core::mem::take(&mut lock(&self.peers))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.peers).is_empty()
    }
}
