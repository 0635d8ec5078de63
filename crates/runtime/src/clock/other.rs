//! The clocks that Rust's library has.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

pub(super) fn boot() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    // A second less than now: zero is before everything.
    START.get_or_init(Instant::now).elapsed() + Duration::from_secs(1)
}

pub(super) fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

pub(super) fn recent_boot() -> taupe_protocol::time::Instant {
    super::boot()
}
