#![forbid(unsafe_code)]
//! The driver of a protocol device, for every program that runs one.
//!
//! Without features the crate has only the clocks ([`clock`], [`system`]) and the randomness
//! ([`random`]). The feature `driver` adds `driver::Driver`, saved state and look-ups of endpoint
//! names. The feature `configuration` adds clients that configure the device, and on Unix
//! the socket by which they do. All conditions on the system are in this file.

#[cfg(feature = "configuration")]
pub mod clients;
pub mod clock;
#[cfg(feature = "configuration")]
pub mod configuration;
#[cfg(all(feature = "configuration", unix))]
pub mod configuration_socket;
#[cfg(feature = "driver")]
pub mod driver;
#[cfg(unix)]
pub mod file_identity;
#[cfg(feature = "driver")]
mod files;
#[cfg(feature = "driver")]
pub use files::create_state_dir;
#[cfg(feature = "driver")]
pub mod names;
#[cfg(feature = "driver")]
pub mod nested;
#[cfg(feature = "configuration")]
pub mod own_pq_key;
#[cfg(feature = "driver")]
pub mod pinned_pq;
pub mod random;
#[cfg(feature = "driver")]
pub mod resolver;
#[cfg(all(feature = "configuration", unix))]
mod run_directory;
#[cfg(feature = "driver")]
pub mod saved_state;
#[cfg(feature = "driver")]
pub mod services;
#[cfg(feature = "driver")]
pub mod timestamps;
#[cfg(feature = "driver")]
pub mod udp;
#[cfg(feature = "driver")]
pub mod unresolved;

/// The parts of this crate that differ between operating systems: clocks, heap, the mark of sockets,
/// permissions of files.
pub mod system {
    #[cfg(target_os = "linux")]
    mod linux;
    #[cfg(not(target_os = "linux"))]
    mod portable;

    #[cfg(target_os = "linux")]
    pub use linux::*;
    #[cfg(not(target_os = "linux"))]
    pub use portable::*;

    #[cfg(all(feature = "driver", not(unix)))]
    mod no_permissions;
    #[cfg(all(feature = "driver", unix))]
    mod permissions;

    #[cfg(all(feature = "driver", not(unix)))]
    pub(crate) use no_permissions::*;
    #[cfg(all(feature = "driver", unix))]
    pub(crate) use permissions::*;
}
