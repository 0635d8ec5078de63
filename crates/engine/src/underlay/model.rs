//! Model of the mark, the number of network changes and the cache of sources. loom tries the orders
//! of the steps of two threads, and the values that an atomic read may return.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use loom::sync::Arc;
use loom::thread;
use taupe_protocol::time::Instant;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "this copy has loom's atomics, and the model needs a part"
)]
#[path = "changes.rs"]
mod changes;
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "this copy has loom's locks, and the model needs a part"
)]
#[path = "sources.rs"]
mod sources;

use changes::Changes;
use sources::{Source, Sources};

#[derive(Default)]
struct Underlay {
    changes: Changes,
    sources: Sources,
}

impl Underlay {
    /// Looks a source up as [`crate::shared::UnderlayState::source`] does. The kernel's choice
    /// depends on the mark alone.
    fn source(&self) -> Source {
        let remote = SocketAddr::from(([192, 0, 2, 1], 51_820));
        let changes = self.changes.count();
        let mark = self.changes.mark();
        let look_up = || source_by(mark);
        self.sources.find(changes, Instant(0), remote, look_up)
    }
}

fn source_by(mark: u32) -> Source {
    Source::Address(IpAddr::V4(Ipv4Addr::from_bits(mark)))
}

/// A thread that has seen the number of a change sees the mark of that change, and no thread finds a
/// source of an earlier mark afterwards.
#[test]
fn no_source_outlives_its_mark() {
    loom::model(|| {
        let underlay = Arc::new(Underlay::default());
        let control = {
            let underlay = Arc::clone(&underlay);
            thread::spawn(move || {
                for mark in 1..=2 {
                    underlay.changes.set_mark(mark);
                }
            })
        };
        let lane = {
            let underlay = Arc::clone(&underlay);
            thread::spawn(move || {
                let seen = underlay.changes.count();
                let mark = underlay.changes.mark();
                assert!(u64::from(mark) >= seen, "the mark of an earlier change");
                underlay.source()
            })
        };
        control.join().expect("no panic");
        lane.join().expect("no panic");
        assert_eq!(underlay.source(), source_by(2));
    });
}
