//! The transparent client: chosen applications go through the tunnel from the
//! uplink they already use, and nothing else is touched.

#[cfg(target_os = "linux")]
pub mod capture;
#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
pub mod fault;
#[cfg(target_os = "linux")]
mod filters;
pub mod flows;
pub mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(target_os = "linux")]
mod maps;
#[cfg(target_os = "linux")]
pub mod marks;
#[cfg(target_os = "linux")]
pub mod pins;
#[cfg(target_os = "linux")]
pub mod programs;
#[cfg(target_os = "linux")]
pub mod reset;
#[cfg(target_os = "linux")]
mod rules;
#[cfg(target_os = "linux")]
pub mod state;
#[cfg(target_os = "linux")]
mod syscall;
#[cfg(target_os = "linux")]
mod tap;
pub mod translate;
#[cfg(target_os = "linux")]
pub mod uplinks;
#[cfg(windows)]
pub mod windows;
