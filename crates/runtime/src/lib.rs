#![forbid(unsafe_code)]
//! The driver of a protocol device, for every program that runs one.
//!
//! Without features the crate has only the clocks ([`clock`], [`system`]) and the randomness
//! ([`random`]). The feature `driver` adds `driver::Driver`, saved state and look-ups of endpoint
//! names. The feature `configuration` adds clients that configure the device.

#[cfg(feature = "configuration")]
pub mod clients;
pub mod clock;
#[cfg(feature = "configuration")]
pub mod configuration;
#[cfg(feature = "driver")]
pub mod driver;
#[cfg(feature = "driver")]
mod files;
#[cfg(feature = "driver")]
pub mod names;
#[cfg(feature = "driver")]
pub mod nested;
#[cfg(feature = "configuration")]
pub mod own_pq_key;
#[cfg(feature = "driver")]
pub mod pinned_pq;
pub mod random;
#[cfg(feature = "driver")]
pub mod resolver;
#[cfg(feature = "driver")]
pub mod services;
pub mod system;
#[cfg(feature = "driver")]
pub mod timestamps;
#[cfg(feature = "driver")]
pub mod udp;
#[cfg(feature = "driver")]
pub mod unresolved;
