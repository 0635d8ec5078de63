//! Other systems: the clocks of Rust's standard library.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};
use taupe_protocol::time::Instant;

pub(crate) fn boot() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let elapsed = START.get_or_init(std::time::Instant::now).elapsed();
    // Start at one second, because zero means "before everything".
    let boot = elapsed + Duration::from_secs(1);
    Instant(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX))
}

pub(crate) fn recent_boot() -> Instant {
    boot()
}

pub(crate) fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Does nothing: only glibc has a heap for each thread.
pub fn share_heap() {}

/// Does nothing: only glibc retains freed memory.
pub fn release() {}

/// Does nothing: only Linux has marks.
#[cfg(feature = "driver")]
pub(crate) fn set_mark(_: &std::net::UdpSocket, _: u32) -> std::io::Result<()> {
    Ok(())
}
