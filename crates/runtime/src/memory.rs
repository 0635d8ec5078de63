//! The heap of the process, where the C library can be told about it.

#[cfg(target_os = "linux")]
pub use taupe_os_linux::memory::{release, share_heap};

/// Does nothing: only glibc has a heap for each thread.
#[cfg(not(target_os = "linux"))]
pub fn share_heap() {}

/// Does nothing: only glibc keeps memory that is free.
#[cfg(not(target_os = "linux"))]
pub fn release() {}
