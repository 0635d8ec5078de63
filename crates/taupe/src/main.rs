//! The `taupe` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // A device's threads allocate little, but its configuration may be large.
    taupe_runtime::system::share_heap();
    #[cfg(target_os = "linux")]
    return taupe_command::main::<taupe_engine::Engine>();
    #[cfg(windows)]
    return taupe_command::main::<taupe_command::PacketFilter>();
    #[cfg(not(any(target_os = "linux", windows)))]
    taupe_command::main()
}
