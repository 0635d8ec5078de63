#![forbid(unsafe_code)]
//! Side-by-side measurements of tunnels.
//!
//! A [`Contestant`](contestant::Contestant) is one way to connect two machines: without a tunnel,
//! by a WireGuard program, or by OpenVPN in some configuration. Each contestant gets its own
//! [`Pair`](pair::Pair) of machines with the same [`Link`](pair::Link) between them. All of them
//! keep running and are measured in turn, so that load from other programs of the machine affects
//! all of them.
//!
//! From the bottom up:
//!
//! - [`side`] names the two machines, [`tcp`] has the settings of their connections,
//!   [`pair`] makes the machines and the link, [`emulator`] is a link that
//!   delays, loses and corrupts packets, [`gateway`] has one server and several clients,
//! - [`contestant`] describes what is compared, [`session`] is a running contestant,
//! - [`measure`] has one module for each kind of measurement,
//! - [`results`] holds all samples, [`statistics`] summarises them,
//! - [`tables`] repeats published comparisons,
//! - [`options`] choose the measurements, [`parts`] joins the results of a run that takes several
//!   parts, [`run`] plans the measurements and carries them out, [`pack`] takes the lab to a machine
//!   without its packages,
//! - [`report`] and [`compare`] present the results, [`targets`] compares them with Taupe's goals
//!   for speed, [`scaling`] estimates the limits on more cores.

pub mod compare;
pub mod contestant;
pub mod emulator;
pub mod gateway;
pub(crate) mod machine;
pub mod measure;
pub mod options;
pub mod pack;
pub mod pair;
pub mod parts;
pub mod report;
pub mod results;
pub mod run;
pub mod scaling;
pub mod session;
pub mod side;
pub mod statistics;
pub mod tables;
pub mod targets;
pub mod tcp;
