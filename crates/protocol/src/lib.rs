#![forbid(unsafe_code)]
//! WireGuard as a state machine without I/O.

pub mod key;
pub mod time;
pub mod update;
