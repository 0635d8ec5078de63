//! The `taupe` command with a published handshake in it, for comparison only: **insecure**. A
//! program of its own, which nothing installs.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Who has closed its error output is not told.
    let _ = writeln!(
        std::io::stderr(),
        "taupe-insecure: for comparison only; handshakes of repro:k512+tk512 are insecure"
    );
    taupe_runtime::memory::share_heap();
    taupe_command::main::<taupe_engine::Engine>()
}
