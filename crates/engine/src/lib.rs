#![forbid(unsafe_code)]
//! A running WireGuard device on Linux: its threads, sockets and configuration socket.
//!
//! A device has these threads:
//!
//! ```text
//! out      read batch (TUN) → route → reserve → seal → send batch (UDP)      one per lane
//! in4, in6 receive batch (UDP) → open → check → merge → write batch (TUN)    one per lane and family
//! both     all of these, for all lanes that have little to carry             one
//! control  handshakes, timers, configuration, link and route changes         one
//! uapi     accepts connections; one short-lived thread for each              one
//! names    looks up one silent peer's endpoint, and ends                     ≤ one
//! ```
//!
//! A lane is a queue of the TUN with its data sockets (`lane.rs`). The number of lanes is a power of
//! two, by default at most half the number of processors: one lane on two processors, two on four.
//! A flow is always on the same lane.
//!
//! The thread that reads a packet also sends it. While a lane has little to carry, the thread
//! `both` reads from its sources, and its `out`, `in4` and `in6` sleep (`schedule.rs`). The threads
//! of the second lane are called `out-1`, `in4-1` and `in6-1`, and so on. The packet threads share
//! with each other and with `control` the protocol's locks of each peer, and a bounded queue that
//! takes handshake messages to `control`.
//!
//! | file | content |
//! |---|---|
//! | `options.rs`, `lifecycle.rs` | options; start and end |
//! | `opened.rs` | everything that a device opens before it starts |
//! | `system.rs`, `this_process.rs` | operations of a running device that take rights or open something; their execution in this process |
//! | `watched_socket.rs` | the watch on the configuration socket's file |
//! | `shared.rs` | state that all threads share |
//! | `lane.rs` | a TUN queue with its data sockets and threads |
//! | `outbound.rs` | TUN to network, in packet order |
//! | `outbound/backlog.rs` | packets that wait for the network, in a fair queue |
//! | `batch.rs` | the messages that one send carries |
//! | `inbound.rs` | network to TUN, in packet order |
//! | `schedule.rs`, `schedule/` | which thread waits for which source |
//! | `control.rs`, `control/` | the control loop: handshakes, timers, configuration |
//! | `sockets.rs` | the UDP sockets, bound and replaced together |
//! | `source.rs` | the source address of datagrams to a peer that has sent nothing yet |
//! | `underlay.rs`, `underlay/` | the network of the datagrams: its changes, their mark, and a cache of sources |
//! | `loops.rs` | detection of routing loops |
//! | `flood.rs`, `flood_filter.rs` | detection of handshake floods, and the filter that drops them in the kernel |
//! | `timer.rs` | the control loop's timer |

mod batch;
mod control;
mod flood;
mod flood_filter;
mod inbound;
mod lane;
mod lifecycle;
mod loops;
mod opened;
mod options;
mod outbound;
mod schedule;
mod shared;
mod sockets;
mod source;
mod system;
mod this_process;
mod timer;
mod underlay;
mod watched_socket;

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::control::Control;
use crate::shared::{Command, Shared};
pub use lifecycle::{Exit, StartError};
pub use opened::OpenedDevice;
pub use options::{Offloads, Options, OuterMark, TunSource, UapiSource, Underlay};
pub use sockets::{BindRequest, BoundSockets};
pub use system::{Environment, LoadedFilter, MarkError, System};
pub use taupe_protocol::Notice;
pub use taupe_runtime::resolver::{Resolver, SystemResolver, ask_servers, system_servers};

/// A running device.
pub struct Engine {
    shared: Arc<Shared>,
    control: JoinHandle<Exit>,
}

impl Engine {
    /// Starts a device. Its configuration socket answers when this returns.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        Self::start_with(options, Arc::new(SystemResolver::default()))
    }

    /// Starts a device like [`Engine::start`], but looks endpoint names up with `resolver`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(
        mut options: Options,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, StartError> {
        let failed = lifecycle::system_error("cannot copy the descriptor of a network namespace");
        let underlay = options.underlay.try_clone().map_err(failed)?;
        let outer_mark = options.outer_mark.take();
        let state_dir = options.state_dir.take();
        let environment =
            Environment::of_this_process(underlay, outer_mark, resolver, state_dir.as_deref());
        Self::start_opened(OpenedDevice::open(options)?, environment)
    }

    /// Starts a device that has opened everything. Its configuration socket answers when this
    /// returns.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_opened(
        opened: OpenedDevice,
        environment: Environment,
    ) -> Result<Self, StartError> {
        let (control, shared) = Control::new(opened, environment)?;
        let control = lifecycle::spawn("control", move || control.run())?;
        Ok(Self { shared, control })
    }

    /// Returns a handle with which another thread can end the device.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// Waits until the device has ended. By then it has removed the socket and the interface that
    /// it created (a persistent interface stays). A socket or TUN that was passed in is left to
    /// its owner.
    #[must_use]
    pub fn run(self) -> Exit {
        let exit = self.control.join();
        exit.unwrap_or_else(|_| Exit::Failed("the control thread panicked".into()))
    }
}

/// Handle that ends a device.
#[derive(Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// Asks the device to end; [`Engine::run`] returns soon after.
    pub fn stop(&self) {
        self.0.send(Command::Stop);
    }
}
