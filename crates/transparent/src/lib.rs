//! The transparent client: chosen applications go through the tunnel from the
//! uplink they already use, and nothing else is touched.

pub mod capture;
pub mod fault;
mod filters;
pub mod flows;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod maps;
pub mod marks;
pub mod pins;
pub mod programs;
pub mod reset;
mod rules;
pub mod state;
mod syscall;
mod tap;
pub mod translate;
pub mod uplinks;
