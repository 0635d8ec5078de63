//! The order of it all, on a system that is a few sets in memory and can be
//! made to fail, or to kill its process, at any step.

mod drift;
mod faults;
mod model;
mod stories;
