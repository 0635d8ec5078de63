//! The command and daemon.
//!
//! [`main`] is all of it: the command line and the environment become an
//! order, which is carried out in the foreground, or
//! handed to a background process whose report it waits for.
//!
//! Exit status, whatever name the program is called by:
//!
//! | | |
//! |---|---|
//! | 0 | in the background: the interface is there and its configuration socket answers; in the foreground: it ended by a signal, or because its interface or its socket was removed |
//! | 1 | it could not be started, or could not go on; the reason is on standard error |
//! | 2 | the command line or a variable is wrong, and nothing was done |

#![forbid(unsafe_code)]

mod arguments;
mod background;
mod device;
mod interface;
mod logging;

pub use device::Device;

use background::Starter;
use device::Failure;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

/// Does what the process's arguments and environment ask for, with devices of
/// the given kind.
#[must_use]
pub fn main<D: Device>() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let order = match arguments::parse(&arguments, &|name| std::env::var_os(name)) {
        Ok(order) => order,
        Err(arguments::Error::CommandLine(error)) => {
            // The text of `--help` and `--version` comes this way too.
            let _ = error.print();
            return if error.use_stderr() {
                MISUSED.into()
            } else {
                ExitCode::SUCCESS
            };
        }
        Err(error) => return complain(&error, MISUSED),
    };
    let outcome = match Starter::of_this_process() {
        Ok(Some(starter)) => device::run_for::<D>(&order, starter),
        Ok(None) if order.foreground => device::run::<D>(&order),
        Ok(None) => background::start(&order, &arguments),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Reported) => FAILED.into(),
        Err(error) => complain(&error, FAILED),
    }
}

fn complain(error: &dyn Display, status: u8) -> ExitCode {
    // Not `eprintln`, which panics when standard error is a closed pipe.
    let _ = writeln!(std::io::stderr(), "taupe: {error}");
    status.into()
}
