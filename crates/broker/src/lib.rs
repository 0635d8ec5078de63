#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Runs a device in an unprivileged process, the packet process. Its parent, the broker, keeps the
//! privileges and serves its requests.
//!
//! ```text
//!        broker (root)                                packet process (no rights)
//!   ┌──────────────────────┐      requests       ┌──────────────────────────────┐
//!   │ Server: binds, marks,│ ◄────────────────── │ Broker ◄─ engine: packets,   │
//!   │ looks up, saves      │ ──────────────────► │           handshakes, timers │
//!   │ PacketProcess        │  answers, commands  │           configuration      │
//!   └──────────────────────┘                     └──────────────────────────────┘
//! ```
//!
//! The broker starts the packet process by running this program again, and sends it a [`Start`]. The
//! packet process opens the TUN, the configuration socket and its watches, gives up its rights, starts
//! the device and reports that it has started. From then on it can only ask.
//!
//! A request is data of a fixed type. **The broker does not trust the packet process**: requests
//! are bounded in size, look-ups and saved state in number, and an invalid one ends the packet process.
//! If either process ends, the other ends too.
//!
//! | file | content |
//! |---|---|
//! | `message.rs` | the messages |
//! | `link.rs` | the socket between the two processes |
//! | `log.rs` | the log of the packet process |
//! | `start.rs` | options of a device as a message |
//! | `process.rs` | the packet process as its broker sees it |
//! | `control.rs` | commands to the packet process |
//! | `server.rs` | the broker's answers to requests |
//! | `client.rs` | the broker as the packet process sees it |
//! | `translator.rs` | the translator in the packet process as its broker sees it |
//! | `environment.rs` | the engine's operations by requests |

mod client;
mod control;
mod environment;
#[cfg(any(test, feature = "testing"))]
mod fakes;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod link;
mod log;
mod message;
mod process;
mod server;
mod start;
mod translator;

pub use client::{Broker, Command};
pub use link::LinkError;
pub use log::CopiedLog;
pub use message::VERSION;
pub use process::PacketProcess;
pub use start::{Start, StartOptions};
pub use translator::RemoteTranslator;
