#![forbid(unsafe_code)]
//! Side-by-side measurements of tunnels.
//!
//! A [`Contestant`](contestant::Contestant) is one way to join two machines: no
//! tunnel at all, a WireGuard program, OpenVPN in some configuration. Each gets a
//! [`Pair`](pair::Pair) of machines of its own, with the same [`Link`](pair::Link)
//! between them, and all stay up while they are measured in turn, so that what
//! changes on a shared machine changes for all.
//!
//! From the bottom up:
//!
//! - [`side`] names the two machines, [`pair`] makes them and the link, [`emulator`] a link that delays,
//!   loses and corrupts,
//! - [`contestant`] is what can be compared, [`session`] one that runs,
//! - [`measure`] measures a session in one way each,
//! - [`results`] keeps every sample, [`statistics`] says what samples mean,
//! - [`tables`] are published comparisons done again,
//! - [`run`] puts the measurements into an order and carries them out,
//! - [`report`] and [`compare`] tell people, [`targets`] says what is reached of what Taupe
//!   wants to reach, [`scaling`] what would limit it on more cores.

pub mod compare;
pub mod contestant;
pub mod emulator;
pub mod measure;
pub mod pair;
pub mod report;
pub mod results;
pub mod run;
pub mod scaling;
pub mod session;
pub mod side;
pub mod statistics;
pub mod tables;
pub mod targets;
