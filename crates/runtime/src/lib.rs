#![forbid(unsafe_code)]
//! The surroundings of a protocol device: [`clock`] and [`random`]; with the feature `driver`
//! also the [`labels`] of handshakes and post-quantum [`latches`] on disk and the addresses of
//! endpoints' [`names`], and the heap's [`memory`]; with the feature `configuration` also its configuration by clients.

#[cfg(feature = "configuration")]
pub mod clients;
pub mod clock;
#[cfg(feature = "configuration")]
pub mod configuration;
#[cfg(feature = "driver")]
mod files;
#[cfg(feature = "driver")]
pub mod labels;
#[cfg(feature = "driver")]
pub mod latches;
#[cfg(feature = "driver")]
pub mod memory;
#[cfg(feature = "driver")]
pub mod names;
#[cfg(feature = "configuration")]
pub mod own_key;
pub mod random;
#[cfg(feature = "driver")]
pub mod resolver;
