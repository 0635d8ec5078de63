//! The clocks of Rust's standard library.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

pub(super) fn boot() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    // Start at one second, because zero means "before everything".
    START.get_or_init(Instant::now).elapsed() + Duration::from_secs(1)
}

pub(super) fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

pub(super) fn recent_boot() -> taupe_protocol::time::Instant {
    super::boot()
}
