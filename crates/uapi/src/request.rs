//! Requests of clients, and their limits.

use taupe_protocol::update::DeviceUpdate;

/// The longest line without its end, in bytes.
pub const MAX_LINE: usize = 4096;

/// The longest request, in bytes: about a million peers.
pub const MAX_REQUEST: usize = 256 << 20;

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// `get=1`.
    Get,
    /// `set=1`.
    Set,
}

/// A complete, valid request.
pub enum Request {
    /// Return the state of the device.
    Get,
    /// Change the device.
    Set(SetRequest),
}

/// The content of a `set`.
#[derive(Default)]
pub struct SetRequest {
    /// Binds the sockets to this UDP port; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// Marks the outer packets; 0 is off.
    pub fwmark: Option<u32>,
    /// Changes to keys and peers. The private key's `timestamp_floor` is zero: the UAPI does not
    /// transmit it.
    pub device: DeviceUpdate,
}

/// Returns the index of an interface by its name; `None` if there is no such interface.
pub type ScopeLookup<'a> = &'a dyn Fn(&str) -> Option<u32>;
