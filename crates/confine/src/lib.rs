#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]
//! Takes rights away from the running process, which can never regain them.
//!
//! A process of Taupe parses bytes from the network and holds keys. Once it has opened everything that
//! it needs, it gives up the rest, in two steps:
//!
//! ```text
//! before threads start  restrict_thread   no_new_privs, capabilities, core files, paths (Landlock)
//! after the last opening restrict_calls   system calls (seccomp), of all threads at once
//! ```
//!
//! Landlock and capabilities belong to a thread and to the threads that it starts. So the first step
//! comes before the first thread, or a thread takes it for itself ([`Rights::none`]).
//!
//! Each step reports which layers hold ([`LayerStatus`]). A kernel that lacks a layer is no error: the
//! other layers stay.
//!
//! | file | content |
//! |---|---|
//! | `layer.rs` | the layers, and whether each holds |
//! | `available.rs` | layers of the running kernel, for `taupe doctor` |
//! | `rights.rs`, `thread.rs` | rights that stay, and the first step |
//! | `capabilities.rs`, `paths.rs` | its layers |
//! | `root.rs` | an empty root directory, where the process may have one |
//! | `user.rs` | a user that no other process has |
//! | `resolver.rs` | files that the C library reads to look names up |
//! | `calls.rs`, `filter.rs` | lists of calls as data; the second step |
//! | `lists.rs`, `lists/` | the list of each process |

mod available;
mod calls;
mod capabilities;
mod filter;
mod layer;
pub mod lists;
mod paths;
mod resolver;
mod rights;
mod root;
mod thread;
mod user;

pub use available::available;
pub use calls::{AllowedCall, CallList, Condition};
pub use filter::{OnViolation, restrict_calls};
pub use layer::{Layer, LayerState, LayerStatus};
pub use resolver::resolver_paths;
pub use rights::Rights;
pub use root::enter_empty_root;
pub use thread::restrict_thread;
pub use user::enter_unused_user;
