//! Makes each system call of this crate once, and prints a line for each.
//!
//! Run it first on a machine with FreeBSD or macOS, as root: `probe`. It creates an interface with
//! addresses of 198.18.0.0/30 (RFC 2544) and fd7a:7a7a::/64 for some seconds, sends datagrams to this
//! machine only, and changes nothing else. It has failed if a line begins with `FAILED`, and then
//! returns 1.

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
#[path = "probe/checks.rs"]
mod checks;

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
fn main() -> std::process::ExitCode {
    checks::run()
}

#[cfg(not(any(target_os = "freebsd", target_os = "macos")))]
fn main() -> std::process::ExitCode {
    eprintln!("probe: only FreeBSD and macOS have these calls");
    std::process::ExitCode::from(2)
}
