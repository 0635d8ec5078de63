//! Transparent mode on Linux: eBPF programs route selected applications through the tunnel from the
//! uplink that they already use. The system's addresses, routes and DNS settings stay as they are.

#![cfg(target_os = "linux")]

pub mod capture;
mod cgroup;
mod clsact;
pub mod error;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod maps;
pub mod marks;
pub mod pins;
pub mod programs;
mod records;
pub mod reset;
mod rules;
pub mod state;
mod syscall;
pub mod uplinks;
