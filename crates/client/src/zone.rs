//! The zone of a link-local address (RFC 4007): an interface, by name or by number.

#[cfg(target_os = "linux")]
pub use taupe_os_linux::interface::{index, name};

/// The index of an interface, which elsewhere than on Linux is asked for by number alone:
/// Windows writes the zone of a link-local address as one (`fe80::1%12`).
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    name.parse().ok()
}

/// The name of an interface, which elsewhere than on Linux is its number: see [`index`].
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn name(index: u32) -> Option<String> {
    Some(index.to_string())
}
