//! Commands for Windows: the tunnel of a file on a packet filter or an adapter, in this process
//! (`taupe run`) or as a service (`taupe service`).

pub(crate) mod arguments;
pub(crate) mod run;
pub(crate) mod service;

mod adapter;
mod carrier;
mod event_log;
mod forwarding;
mod lock;
mod owners;
mod packet_filter;
mod pipe;
mod requests;
mod sockets;
mod tunnel;

pub use packet_filter::PacketFilter;

use taupe_transparent_windows::{PacketTap, TapError};

/// Access to a packet filter. Tests have an implementation of their own.
pub trait Driver: 'static {
    /// Source and destination of frames.
    type Tap: PacketTap;

    /// Opens the packet filter, without intercepting anything yet.
    ///
    /// # Errors
    ///
    /// Returns the reason and advice, for example if no packet filter is installed.
    fn open() -> Result<Self::Tap, TapError>;
}
