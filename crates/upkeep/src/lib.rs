#![forbid(unsafe_code)]
//! What a device keeps beside its packets, whoever carries them: [`labels`] of
//! handshakes on disk, and the addresses of endpoints' [`names`].

mod files;
pub mod labels;
pub mod latches;
pub mod names;
pub mod resolver;
