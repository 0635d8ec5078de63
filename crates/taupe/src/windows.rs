//! What is Windows's: the tunnel of a file on a packet filter or an adapter, in this process
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

/// What the command needs of a packet filter. Tests have another.
pub trait Driver: 'static {
    /// Where frames come from and go to.
    type Tap: PacketTap;

    /// Opens it; nothing is intercepted yet.
    ///
    /// # Errors
    ///
    /// What, why and what to do: that there is none, for one.
    fn open() -> Result<Self::Tap, TapError>;
}
