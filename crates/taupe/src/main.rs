//! The `taupe` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    taupe::main::<taupe_engine::Engine>()
}
