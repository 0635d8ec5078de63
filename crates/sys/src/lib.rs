//! Safe wrappers for what an operating system makes unsafe or easy to get
//! wrong: memory, interfaces, namespaces, mounts, processes, signals,
//! descriptors that another program passed on. Each one names the fact about the kernel that it
//! rests on. Nothing here decides anything; that is its callers' part.
//!
//! [`interface`] and [`memory`] are on every system; what else there is
//! belongs to one.

pub mod interface;
pub mod memory;

#[cfg(target_os = "linux")]
pub mod descriptor;
#[cfg(target_os = "linux")]
pub mod mounts;
#[cfg(target_os = "linux")]
pub mod namespace;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
pub mod run_directory;
#[cfg(target_os = "linux")]
pub mod schedule;
#[cfg(target_os = "linux")]
pub mod security;
#[cfg(target_os = "linux")]
pub mod signals;

#[cfg(windows)]
pub mod windows;
