#![forbid(unsafe_code)]
//! Deterministic simulation of the protocol.
//!
//! An [`Episode`](plan::Episode) is drawn from a seed before it runs: two to
//! eight devices, who is configured for whom, and a list of what happens:
//! traffic, bad networks, crashes, clocks that jump, suspends, changes of
//! configuration, attackers. [`world::run`] plays it on one virtual clock and
//! checks every [`Invariant`](violation::Invariant) after every event. The same
//! episode gives the same run, bit by bit; one that fails is made smaller by
//! [`shrink`](shrink::shrink) for as long as it still fails.

mod act;
mod arrive;
mod attack;
pub mod campaign;
mod host;
pub mod ledger;
mod network;
mod parts;
pub mod plan;
mod post_quantum;
pub mod pulse;
pub mod random;
pub mod recipe;
pub mod sessions;
pub mod shrink;
pub mod stats;
#[cfg(test)]
mod testing;
mod thief;
mod traffic;
pub mod violation;
pub mod world;
