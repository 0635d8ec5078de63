//! Tests of what is installed for each system. The files for FreeBSD and macOS are tested without these
//! systems: shells of Linux run the scripts with stand-ins for rc.subr and `taupe`.

#![cfg(target_os = "linux")]

mod installed;
mod launchd;
mod others;
mod place;
mod port;
mod rc;
mod units;
