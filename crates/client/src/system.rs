//! Parts that differ between operating systems.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::time::Duration;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::kernel;
#[cfg(target_os = "linux")]
pub(crate) use linux::kernel;
#[cfg(unix)]
pub(crate) use unix::{connect, interfaces, is_timeout, set_timeout};
#[cfg(windows)]
pub(crate) use windows::{connect, interfaces, is_timeout, set_timeout};

/// Time that a device has to answer, unless a request keeps it busy.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Public items of the crate that differ between operating systems.
pub(crate) mod public {
    #[cfg(not(target_os = "linux"))]
    pub use super::elsewhere::zone;
    #[cfg(all(target_os = "linux", any(test, feature = "testing")))]
    pub use super::linux::kernel::fuzzing;
    #[cfg(target_os = "linux")]
    pub use super::linux::zone;
    #[cfg(unix)]
    pub use super::unix::{Stream, connect_to, socket_path};
    #[cfg(windows)]
    pub use super::windows::Stream;
}
