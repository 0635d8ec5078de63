//! Linux: devices in the kernel, and names of interfaces.

pub(crate) mod kernel;

/// The zone of a link-local address (RFC 4007): an interface, by name or number.
pub mod zone {
    pub use taupe_os_linux::interface::{index, name};
}
