//! Behaviour that the protocol requires, tested at each boundary (the value, one below and one
//! above) in virtual time.
//!
//! "Kernel" is the Linux implementation, where it is more specific than the whitepaper.

#[path = "../common/mod.rs"]
mod common;

mod configuration;
mod hybrid;
mod keepalive;
mod labels;
mod lanes;
mod lifetime;
mod load;
mod messages;
mod names;
mod replay;
mod retry;
mod roaming;
mod sessions;
mod staging;
mod surroundings;
mod together;
