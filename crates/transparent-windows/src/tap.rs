//! The interface to an operating system's packet filter, which delivers and sends frames. Each
//! filter has a module of its own.

use std::time::Duration;

use ipnet::IpNet;
use thiserror::Error;

/// A packet filter between the TCP/IP stack and the network cards. Dropping it releases the
/// adapters.
pub trait PacketTap {
    /// Lists the adapters. From then on frames of all adapters in `taken` are intercepted.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn adapters(&mut self) -> Result<Adapters, TapError>;

    /// Waits for frames, at most for `wait`, and passes them to `judge` in their order. Sends on
    /// unchanged the frames that pass, and discards the others.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn read(
        &mut self,
        wait: Duration,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError>;

    /// Sends frames in their order. A frame that the system does not accept is lost, as on a cable.
    ///
    /// # Errors
    ///
    /// The system's error if it accepts no more frames at all.
    fn inject(&mut self, frames: &[Injection]) -> Result<(), TapError>;

    /// Makes every adapter report an MTU that is lower by `bytes`, so that applications send
    /// packets that fit the tunnel. 0 restores it. The change may take effect only when an adapter
    /// restarts.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn set_mtu_decrement(&mut self, bytes: u16) -> Result<(), TapError>;
}

/// The adapters of a machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Adapters {
    /// The adapters whose frames are intercepted.
    pub taken: Vec<Adapter>,
    /// Display names of the connections that lead out and that the packet filter does not cover.
    /// Packets that leave by them are not seen.
    pub missed: Vec<String>,
}

/// The reason why a tap does not work, as a message for the user.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TapError(pub String);

/// The event that ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Frames were read, or the time is over.
    Read,
    /// The adapters have changed and must be listed again.
    Adapters,
}

/// A network adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// Its index, which is stable while the adapter exists.
    pub index: u32,
    /// Its display name.
    pub name: String,
    /// The kind of its frames.
    pub medium: Medium,
    /// Its hardware address; zeros without Ethernet.
    pub mac: [u8; 6],
    /// Its MTU in bytes.
    pub mtu: u16,
    /// The machine's addresses on it, each with the prefix length of its network. If the list is
    /// empty, all its packets count as this machine's.
    pub addresses: Vec<IpNet>,
    /// True if a default route uses it. Clients, for which the machine is a router, are only behind
    /// other adapters.
    pub leads_out: bool,
}

/// The kind of an adapter's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Ethernet II.
    Ethernet,
    /// Bare IP packets: another tunnel's adapter, or a modem's.
    Ip,
    /// Unknown frames. None of them pass, in either direction.
    Unknown,
}

/// Direction of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Towards {
    /// Sent by the system.
    Card,
    /// Received by the card.
    System,
}

/// An intercepted frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Index of the adapter.
    pub adapter: u32,
    /// Its direction.
    pub towards: Towards,
    /// The frame from the link header on.
    pub bytes: &'a [u8],
}

/// The verdict on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// Send it on unchanged.
    Pass,
    /// Discard it.
    Taken,
}

/// A frame made by the pipeline.
#[derive(Clone, Debug)]
pub struct Injection {
    /// Index of the adapter.
    pub adapter: u32,
    /// Its direction.
    pub towards: Towards,
    pub(super) buffer: Vec<u8>,
    pub(super) start: usize,
}

impl Injection {
    /// Returns the frame from the link header on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }
}
