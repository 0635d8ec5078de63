//! Tests of devices in the background. A fake device behaves as its name says, so that every
//! failure can be produced without privileges. This executable is also the program: called with
//! arguments that are not the test runner's, it is `taupe` with the fake device.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
