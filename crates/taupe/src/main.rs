//! The `taupe` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // A device's threads allocate little, but its configuration may be large.
    taupe_runtime::system::share_heap();
    taupe_command::run()
}
