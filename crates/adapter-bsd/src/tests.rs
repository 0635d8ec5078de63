//! Tests on a simulated system.

mod faults;
mod model;
mod stories;
