//! A live view of tunnels, their peers, applications, dropped packets and connections in a terminal.
//!
//! ```text
//! readings ─► model (rates, history, selection, sort, filter) ─► view (one frame)
//! keys ─► input (actions) ─► model ─► effects, such as a change of a tunnel's applications
//! ```
//!
//! Only [`terminal`] does I/O. It takes readings from a [`terminal::Source`], which also executes changes.

#![forbid(unsafe_code)]

pub mod model;
pub mod reading;
pub mod terminal;
pub mod text;
pub mod view;

mod backend;
mod history;
mod input;

#[cfg(test)]
mod examples;
