#![forbid(unsafe_code)]
//! WireGuard's configuration texts: parsers and printers, without I/O.
//!
//! Text comes in as bytes and leaves as checked types of `taupe-protocol`, or
//! the other way round. Text that holds secrets is zeroised when it is dropped,
//! and no error repeats a value.

pub mod application;
pub mod destinations;
pub mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod key;
pub mod networks;
pub mod prefix;
pub mod show;
pub mod uapi;
