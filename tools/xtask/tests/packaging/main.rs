//! Tests of the files for FreeBSD and macOS, without these systems: shells of Linux run the scripts
//! with stand-ins for rc.subr and `taupe`.

#![cfg(target_os = "linux")]

mod installed;
mod launchd;
mod place;
mod port;
mod rc;
