//! Entry points for fuzzers, which panic when an invariant does not hold, and
//! malformed files for other crates' tests.

mod file;
pub mod malformed;

pub use file::{file, same_file};
