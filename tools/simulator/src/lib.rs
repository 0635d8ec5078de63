#![forbid(unsafe_code)]
//! Deterministic simulation of the protocol.
//!
//! An [`Episode`](plan::Episode) is generated from a seed before it runs: two to eight devices,
//! their peers, and a list of events such as traffic, bad networks, crashes, clock changes,
//! suspends, changes of configuration, and attacks. [`world::run`] plays it on one virtual clock
//! and checks every [`Invariant`](violation::Invariant) after every event. The same episode gives
//! the same run, bit by bit. [`shrink`](shrink::shrink) makes a failing episode smaller while it
//! still fails.

pub mod campaign;
mod host;
pub mod ledger;
mod network;
mod parts;
pub mod plan;
pub mod random;
pub mod recipe;
pub mod sessions;
pub mod shrink;
pub mod stats;
#[cfg(test)]
mod testing;
pub mod timer_model;
pub mod violation;
pub mod world;
