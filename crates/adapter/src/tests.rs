//! Tests of the order of operations, on a system that consists of sets in memory. The model can
//! fail, or kill its process, at any step.

mod barrier;
mod drift;
mod faults;
mod model;
mod stories;
