//! Settings of the process's heap, on systems whose C library has them.

#[cfg(target_os = "linux")]
pub use taupe_os_linux::memory::{release, share_heap};

/// Does nothing: only glibc has a heap for each thread.
#[cfg(not(target_os = "linux"))]
pub fn share_heap() {}

/// Does nothing: only glibc retains freed memory.
#[cfg(not(target_os = "linux"))]
pub fn release() {}
