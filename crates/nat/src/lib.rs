//! Address translation between applications and a tunnel, and its table of flows.

#![forbid(unsafe_code)]

pub mod flows;
pub mod fragmentation;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod reassembly;
mod tap;
pub mod tcp;
pub mod translate;
