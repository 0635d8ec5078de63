#![forbid(unsafe_code)]
//! Taupe on the system's message bus.
//!
//! | called as | does |
//! |---|---|
//! | `taupe-dbus` | serves `org.taupe.Service1` as a user without rights ([`front`]) |
//! | `taupe-dbus call` | calls it for the `taupe` command ([`client`]) |
//! | `taupe-dbus available` | succeeds if the bus knows it, or can start it |

#[cfg(target_os = "linux")]
mod agent;
#[cfg(target_os = "linux")]
mod bus;
#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
mod front;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod methods;
#[cfg(target_os = "linux")]
mod polkit;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [] => match front::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("taupe-dbus: {error}");
                ExitCode::FAILURE
            }
        },
        [word] if word == "call" => client::main(),
        [word] if word == "available" => client::available(),
        _ => {
            eprintln!("taupe-dbus: the message bus starts this program without arguments");
            ExitCode::from(2)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("taupe-dbus: this program is for Linux");
    ExitCode::FAILURE
}
