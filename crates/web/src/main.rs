//! `taupe-web`: serves the pages of `taupe web`.
//!
//! This process parses requests from browsers, so it has no rights. Its parent, `taupe web`, gives it
//! listening sockets, and the state of tunnels whenever it asks.
//!
//! | file | content |
//! |---|---|
//! | `process.rs` | start, confinement and end of the process |
//! | `parent.rs` | messages of the parent |
//! | `live.rs` | the newest state, which all browsers share |
//! | `connections.rs` | connections and their limits |
//! | `guard.rs` | requests that are refused; headers of all answers |
//! | `sessions.rs` | the token and the session |
//! | `site.rs` | answers to requests |
//! | `form.rs`, `switches.rs` | forms of the page; changes that the parent makes |
//! | `events.rs` | streams of events |
//! | `facts.rs`, `text.rs` | the state as it is received |
//! | `history.rs` | rates of the last two minutes |
//! | `page.rs`, `page/` | the page |

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod connections;
#[cfg(target_os = "linux")]
mod events;
#[cfg(target_os = "linux")]
mod facts;
#[cfg(target_os = "linux")]
mod form;
#[cfg(target_os = "linux")]
mod guard;
#[cfg(target_os = "linux")]
mod history;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod page;
#[cfg(target_os = "linux")]
mod parent;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod sessions;
#[cfg(target_os = "linux")]
mod site;
#[cfg(target_os = "linux")]
mod switches;
#[cfg(target_os = "linux")]
mod text;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    process::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("taupe-web: there is no `taupe web` on this system");
    std::process::ExitCode::FAILURE
}
