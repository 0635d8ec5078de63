#![forbid(unsafe_code)]
//! What a device keeps beside its packets, whoever carries them: [`labels`] of
//! handshakes on disk, and the addresses of endpoints' [`names`].

pub mod labels;
pub mod names;
pub mod resolver;
