#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Requests of users without root. A root process, the *service*, executes them.
//!
//! ```text
//!   taupe up (user) ─► message bus ─► front (user taupe-dbus) ─► service (root) ─► taupe up (root)
//!                                       │  asks polkit             reads, decides the class
//! ```
//!
//! The front is the only client of the service's socket. It says for which user a request is, and which
//! class of authorisation polkit has granted. **The service computes itself which class a request
//! needs**, from the file that comes with it (`class.rs`), and refuses a request that was granted less.
//!
//! A connection carries one request:
//!
//! | front | service |
//! |---|---|
//! | [`FromFront::Prepare`], with descriptors | [`Answer::Needs`]: the class, and the reasons for it |
//! | [`FromFront::Execute`], with the granted class | [`Answer::Done`]: the output and exit status of the command |
//!
//! Each step can end with [`Answer::Refused`], which is one line. The service has read the descriptors
//! before it answers the first message, and executes that text: it opens no path and no descriptor of a
//! caller later.
//!
//! | file | content |
//! |---|---|
//! | `message.rs` | the messages |
//! | `name.rs` | names of tunnels in requests |
//! | `link.rs` | the socket between front and service |
//! | `sealed.rs` | files as sealed memory |
//! | `class.rs` | the class that a file needs |
//! | `passed.rs` | a file from its descriptors |
//! | `registry.rs` | owners of tunnels, and copies of their files |
//! | `listed.rs` | files that root lists for a group |
//! | `executor.rs` | execution of commands |
//! | `context.rs` | state that all requests share |
//! | `request.rs` | a request and the class that it needs |
//! | `audit.rs` | lines of the log |
//! | `server.rs` | connections |

mod link;
mod message;
mod name;
mod sealed;

#[cfg(feature = "server")]
mod audit;
#[cfg(feature = "server")]
pub mod class;
#[cfg(feature = "server")]
mod context;
#[cfg(feature = "server")]
mod executor;
#[cfg(feature = "testing")]
pub mod fuzzing;
#[cfg(feature = "server")]
mod listed;
#[cfg(feature = "server")]
mod passed;
#[cfg(feature = "server")]
mod registry;
#[cfg(feature = "server")]
mod request;
#[cfg(feature = "server")]
mod server;

pub use link::{Link, LinkError};
pub use message::{
    Answer, Class, FromFront, MAX_DESCRIPTORS, MAX_ERRORS, MAX_KEY_FILES, MAX_OUTPUT, MAX_PATH,
    MAX_TEXT, Request, Source, VERSION,
};
pub use name::{InvalidName, TunnelName};
pub use sealed::{SealError, read_sealed, seal};

#[cfg(feature = "server")]
pub use executor::{Executor, FlowView, Outcome, Running, Target};
#[cfg(feature = "server")]
pub use listed::Listed;
#[cfg(feature = "server")]
pub use registry::Registry;
#[cfg(feature = "server")]
pub use server::{Server, Settings};

/// Path of the service's socket.
pub const SOCKET: &str = "/run/taupe-service/socket";

/// The user as which the front runs.
pub const FRONT_USER: &str = "taupe-dbus";

/// The group whose members may bring up the tunnels in [`LISTED_FOLDER`].
pub const GROUP: &str = "taupe";

/// Folder of the files that root lists for [`GROUP`].
pub const LISTED_FOLDER: &str = "/etc/taupe/allowed";

/// Folder of the copies of users' files, and of their owners.
pub const REGISTRY_FOLDER: &str = "/run/taupe-service/tunnels";

/// Exit status of `taupe-dbus call` if there is no service to ask (`EX_UNAVAILABLE` of sysexits.h).
pub const UNAVAILABLE: u8 = 69;
