//! Cache of the source addresses of datagrams.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;
use std::time::Duration;

use taupe_protocol::time::Instant;
use tracing::debug;

use super::sync::{Mutex, MutexGuard};

/// Lifetime of a cached result. The kernel does not report changes of routing rules, which may
/// select another uplink.
pub(super) const LIFETIME: Duration = Duration::from_secs(10);

/// Cached results, at most.
pub(super) const MAX_SOURCES: usize = 1024;

/// Source address of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The kernel chooses.
    Kernel,
    Address(IpAddr),
    /// None: every usable address is the tunnel's own.
    Unavailable,
}

/// Cache of look-ups.
#[derive(Default)]
pub(crate) struct Sources(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    /// The number of network changes before these look-ups.
    changes: u64,
    /// Each result with the time of its look-up.
    sources: HashMap<SocketAddr, (Source, Instant)>,
}

impl Sources {
    /// Returns the source for `remote`. Calls `look_up` if the cache has no result from after the
    /// last network change. `changes` is the number of network changes so far.
    pub(crate) fn find(
        &self,
        changes: u64,
        now: Instant,
        remote: SocketAddr,
        look_up: impl FnOnce() -> Source,
    ) -> Source {
        let mut known = self.lock();
        if known.changes < changes {
            *known = Cache {
                changes,
                ..Cache::default()
            };
        }
        if let Some((source, at)) = known.sources.get(&remote)
            && known.changes == changes
            && now.since(*at) < LIFETIME
        {
            return *source;
        }
        // The lock is not held during system calls.
        drop(known);
        let source = look_up();
        debug!(%remote, ?source, "looked up the source address");
        let mut known = self.lock();
        if known.changes == changes {
            if known.sources.len() >= MAX_SOURCES {
                known.sources.clear();
            }
            known.sources.insert(remote, (source, now));
        }
        source
    }

    pub(crate) fn forget(&self, remote: SocketAddr) {
        self.lock().sources.remove(&remote);
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Sources {
    /// Returns the number of cached results.
    pub(crate) fn len(&self) -> usize {
        self.lock().sources.len()
    }
}
