//! The zone of a link-local address (RFC 4007): an interface, by name or number.

#[cfg(target_os = "linux")]
pub use taupe_os_linux::interface::{index, name};

/// Returns the index of an interface. Outside Linux, only numbers are accepted: Windows writes
/// zones as numbers (`fe80::1%12`).
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    name.parse().ok()
}

/// Returns the name of an interface. Outside Linux, this is its number; see [`index`].
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn name(index: u32) -> Option<String> {
    Some(index.to_string())
}
