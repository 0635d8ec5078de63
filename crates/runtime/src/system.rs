//! The parts of this crate that differ between operating systems: clocks, heap, the mark of sockets,
//! permissions of files. All conditions on the system are here.

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
