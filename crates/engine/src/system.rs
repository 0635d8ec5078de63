//! Operations of a running device that take rights or open something. A device whose process has given
//! up its rights asks another process for them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::BindError;
use taupe_os_linux::watch::{LinkState, LinkWatch};
use taupe_runtime::resolver::Resolver;
use taupe_runtime::saved_state::SavedState;
use thiserror::Error;

use crate::sockets::{BindRequest, BoundSockets};

/// Operations of the control loop that take rights or open something.
pub trait System: Send {
    /// Binds UDP sockets in the network that carries the device's datagrams.
    ///
    /// # Errors
    /// See [`BindError`].
    fn bind(&mut self, request: &BindRequest) -> Result<BoundSockets, BindError>;

    /// Sets the mark of datagrams that leave by these sockets.
    ///
    /// # Errors
    /// [`MarkError`]. Some sockets may have the new mark then.
    fn set_mark(&mut self, sockets: &[BorrowedFd<'_>], mark: u32) -> Result<(), MarkError>;

    /// Discards the notifications of `watch`, and returns the state of the TUN's interface in whatever
    /// network namespace it is. Returns `None` if it was deleted.
    ///
    /// # Errors
    /// The system's.
    fn link_state(&mut self, tun: &Tun, watch: &mut LinkWatch) -> io::Result<Option<LinkState>>;

    /// Loads the filter that drops floods of handshakes in the kernel.
    ///
    /// # Errors
    /// The reason why this system does not take it.
    fn load_flood_filter(&mut self) -> Result<Box<dyn LoadedFilter>, String>;
}

/// A filter that drops floods of handshakes in the kernel, loaded.
pub trait LoadedFilter: Send {
    /// Attaches the filter to handshake sockets, or detaches it.
    ///
    /// # Errors
    /// The reason why a socket refuses it. The others have it then.
    fn attach(&mut self, sockets: &[BorrowedFd<'_>], on: bool) -> Result<(), String>;

    /// Makes the filter keep answers to a message of this device. `index` is the message's sender
    /// index.
    fn expect_answer(&mut self, index: u32);

    /// Returns the number of datagrams dropped so far, or `None` if it is unknown.
    fn dropped(&mut self) -> Option<u64>;
}

/// Error of setting a mark.
#[derive(Debug, Error)]
pub enum MarkError {
    /// A socket refuses it.
    #[error(transparent)]
    Sockets(#[from] io::Error),
    /// The outer device refuses it.
    #[error("{0}")]
    Outer(String),
}

/// The other processes and files that a device relies on.
pub struct Environment {
    /// Operations that take rights.
    pub system: Box<dyn System>,
    /// Looks endpoint names up.
    pub resolver: Arc<dyn Resolver>,
    /// The place where handshake timestamps and post-quantum pins are saved.
    pub saved: Box<dyn SavedState>,
}
