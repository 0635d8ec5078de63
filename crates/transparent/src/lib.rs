//! The transparent client: chosen applications go through the tunnel from the
//! uplink they already use, and nothing else is touched.

#![cfg(target_os = "linux")]

pub mod capture;
mod cgroup;
pub mod fault;
mod filters;
mod maps;
pub mod marks;
pub mod pins;
pub mod programs;
pub mod reset;
mod rules;
pub mod state;
mod syscall;
pub mod uplinks;
