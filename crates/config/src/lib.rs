#![forbid(unsafe_code)]
//! Configuration files of WireGuard and of Taupe, without I/O: the files of `wg-quick` and `wg`,
//! and the applications and destinations that they select.
//!
//! Text comes in as bytes and leaves as checked types, or the other way round. Text that holds
//! secrets is zeroised when it is dropped, and no error repeats a value.

pub mod application;
pub mod destinations;
pub mod file;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod mtu;
pub mod plan_note;
