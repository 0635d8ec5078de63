//! Model of the cache of rewrites beside the table of flows. loom tries the orders of the steps of
//! two threads. The lock of the table orders memory too.
//!
//! The cache is the real one. The table is reduced to one flow and the generation.

use std::net::{IpAddr, Ipv4Addr};

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use taupe_packet::ip::{self, Family};
use taupe_protocol::time::Instant;

use super::number;
use crate::flows::{End, Tuple};

mod rewrite {
    /// The application to which a packet goes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Rewrite(pub(super) u32);
}

#[allow(clippy::duplicate_mod, reason = "this copy has loom's atomics")]
#[path = "rewrite_cache.rs"]
mod rewrite_cache;

use rewrite::Rewrite;
use rewrite_cache::RewriteCache;

/// [`super::Shared`], reduced to what the cache and the table share.
struct Shared {
    generation: AtomicU64,
    /// The application that has the port.
    table: Mutex<Rewrite>,
}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            generation: AtomicU64::new(0),
            table: Mutex::new(Rewrite(0)),
        })
    }

    /// Gives the port to the next application, as [`crate::flows::Table::remove`] and the opening of
    /// another flow do.
    fn move_port(&self) {
        let mut table = self.table.lock().expect("no thread has panicked");
        table.0 += 1;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the application that gets a packet, and caches it.
    fn translate(&self, cache: &mut RewriteCache) -> Rewrite {
        const NOW: Instant = Instant(0);
        if let Some((rewrite, _)) = cache.find(NOW, self, &tuple()) {
            return *rewrite;
        }
        let table = self.table.lock().expect("no thread has panicked");
        cache.insert(NOW, self, tuple(), (*table, None));
        *table
    }
}

fn tuple() -> Tuple {
    let (family, ip) = number(IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert_eq!(family, Family::V4);
    let end = End { ip, port: 53 };
    Tuple {
        family,
        protocol: ip::UDP,
        local: end,
        remote: end,
    }
}

/// A packet that a thread receives after it has learnt of a change goes by that change.
#[test]
fn no_packet_after_a_change_goes_by_an_older_entry() {
    loom::model(|| {
        let shared = Shared::new();
        // Stands for the kernel, which passes the answer to a packet from one thread to the other.
        let sent = Arc::new(Mutex::new(0));
        let changes = {
            let (shared, sent) = (Arc::clone(&shared), Arc::clone(&sent));
            thread::spawn(move || {
                for _ in 0..2 {
                    shared.move_port();
                    *sent.lock().expect("no thread has panicked") += 1;
                }
            })
        };
        let mut cache = RewriteCache::default();
        for _ in 0..3 {
            let least = *sent.lock().expect("no thread has panicked");
            let Rewrite(application) = shared.translate(&mut cache);
            assert!(application >= least, "an older entry");
        }
        changes.join().expect("no panic");
        assert_eq!(shared.translate(&mut cache), Rewrite(2));
    });
}
