//! Every behaviour that the protocol requires, at its boundary: the value, one
//! below and one above, in virtual time.
//!
//! "Kernel" is the Linux implementation, where it says more than the
//! whitepaper.

#[path = "../common/mod.rs"]
mod common;

mod keepalive;
mod lifetime;
mod messages;
mod retry;
