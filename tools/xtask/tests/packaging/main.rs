//! Tests of the files that start tunnels on FreeBSD and macOS, without these systems: shells of Linux
//! run the scripts with stand-ins for rc.subr and `taupe`.

#![cfg(target_os = "linux")]

mod installed;
mod launchd;
mod place;
mod rc;
