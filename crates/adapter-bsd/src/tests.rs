//! Tests on a simulated system.

mod faults;
mod following;
mod model;
mod stories;
mod world;
