#![forbid(unsafe_code)]
//! What a device keeps beside its packets, whoever carries them: [`labels`] of
//! handshakes on disk, the addresses of endpoints' [`names`], and its
//! configuration by clients, if that is wanted.

#[cfg(feature = "configuration")]
pub mod clients;
#[cfg(feature = "configuration")]
pub mod configuration;
mod files;
pub mod labels;
pub mod latches;
pub mod names;
#[cfg(feature = "configuration")]
pub mod own_key;
pub mod resolver;
