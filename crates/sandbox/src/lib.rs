#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Sandbox for a command: a user, a network and a mount namespace in which a TUN is the only path
//! out for IP. It does not need root.
//!
//! ```text
//! this process                       its child, in the sandbox
//! create_sandbox ── fork ──────────► namespaces, network, files
//!    ◄─ TUN, watch, namespaces ───── sends what it has opened, and waits
//! (a device begins to serve the TUN)
//! PendingChild::release ───────────► gives up all rights, becomes the command
//! ```
//!
//! The device sends its datagrams from this process's network namespace. This process holds the
//! last descriptor of the TUN: when it ends for any reason, the TUN disappears, and the sandbox can
//! no longer send anything.
//!
//! Another command [joins](join) the sandbox through its namespaces. The process that created it
//! passes them over a socket that only its user can reach ([`Rendezvous`]).
//!
//! | file | content |
//! |---|---|
//! | `config.rs`, `create.rs`, `process.rs` | what a sandbox has, its creation, and its child as the parent sees it |
//! | `child.rs` | the child, from fork to exec |
//! | `network.rs` | TUN, addresses, routes, ping; also without a sandbox, for a tunnel through another tunnel ([`set_up_network`]) |
//! | `files.rs` | mounts: name servers, no program that gains rights |
//! | `hidden.rs` | services that are hidden |
//! | `rights.rs` | capabilities that the command loses |
//! | `setup_error.rs`, `obstacle.rs` | reasons for failure, and obstacles that can be removed |
//! | `rendezvous.rs` | how other commands find a running sandbox |

mod child;
mod config;
mod create;
mod files;
mod hidden;
mod network;
mod obstacle;
mod process;
mod rendezvous;
mod rights;
mod setup_error;

pub use child::{NOT_EXECUTABLE, NOT_FOUND, NOT_SET_UP, join};
pub use config::SandboxConfig;
pub use create::create_sandbox;
pub use network::{NetworkError, OpenedTun, TunNetwork, set_up_network};
pub use obstacle::Obstacle;
pub use process::{Child, Namespaces, PendingChild, PendingSandbox, SandboxError};
pub use rendezvous::{
    JoinError, JoinListener, JoinRequest, Rendezvous, RendezvousError, user_folder,
};
