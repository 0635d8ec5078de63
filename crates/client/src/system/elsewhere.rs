//! Systems other than Linux: no devices in the kernel.

pub(crate) mod kernel;

/// The zone of a link-local address (RFC 4007): an interface, by number. Windows writes zones as
/// numbers (`fe80::1%12`).
pub mod zone {
    /// Returns the index of an interface. Accepts only numbers.
    #[must_use]
    pub fn index(name: &str) -> Option<u32> {
        name.parse().ok()
    }

    /// Returns the name of an interface, which is its number.
    #[must_use]
    pub fn name(index: u32) -> Option<String> {
        Some(index.to_string())
    }
}
