//! Where frames come from and go to: what a packet filter of an operating system has to
//! provide. Each is a module of its own.

use std::{net::IpAddr, time::Duration};

use thiserror::Error;

/// A packet filter between the TCP/IP stack and the network cards. What it has taken
/// from the stack and the cards it gives back when it is dropped.
pub trait PacketTap {
    /// The adapters there are now. From then on frames of all that are taken are intercepted.
    ///
    /// # Errors
    ///
    /// The system's reason.
    fn adapters(&mut self) -> Result<Adapters, TapError>;

    /// Waits for frames, `wait` at most, shows those there are to `judge` in their order, and
    /// sends on, as they are, those that pass; the others are gone.
    ///
    /// # Errors
    ///
    /// The system's reason.
    fn read(
        &mut self,
        wait: Duration,
        judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError>;

    /// Sends frames that have been made, in their order. One that the system does not take is
    /// lost, as on a cable.
    ///
    /// # Errors
    ///
    /// The system's reason when it takes none any more.
    fn inject(&mut self, frames: &[Injection]) -> Result<(), TapError>;

    /// Has every adapter say to the stack that its MTU is so many bytes less than it is, so that
    /// applications send packets that fit into the tunnel. 0 takes it back. May take hold only
    /// when an adapter is started anew.
    ///
    /// # Errors
    ///
    /// The system's reason.
    fn set_mtu_decrement(&mut self, bytes: u16) -> Result<(), TapError>;
}

/// The adapters of a machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Adapters {
    /// Those whose frames are intercepted.
    pub taken: Vec<Adapter>,
    /// What people call the connections that lead out past the packet filter: what leaves by them
    /// is not seen.
    pub missed: Vec<String>,
}

/// Why a tap does not work, for a person: what, why, and what to do.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct TapError(pub String);

/// What has ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Frames, or nothing.
    Read,
    /// The adapters have changed: ask for them.
    Adapters,
}

/// A network adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adapter {
    /// Its number, as long as it is there.
    pub index: u32,
    /// What people call it.
    pub name: String,
    /// What its frames are.
    pub medium: Medium,
    /// Its hardware address; zeros without Ethernet.
    pub mac: [u8; 6],
    /// Bytes of the longest packet that it carries.
    pub mtu: u16,
    /// The machine's addresses on it, each with the length of its network's prefix. Without any,
    /// all that it carries is taken for this machine's.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether a default route leads to it. Clients, for whom the machine is a router,
    /// are only behind adapters without.
    pub leads_out: bool,
}

/// What the frames of an adapter are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Ethernet II.
    Ethernet,
    /// IP packets alone: another tunnel's adapter, or a modem's.
    Ip,
    /// Nothing that can be read. None of its frames pass, whoever sends or receives them.
    Unknown,
}

/// Which way a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Towards {
    /// It has been sent.
    Card,
    /// It has been received.
    System,
}

/// A frame that has been intercepted.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The adapter's number.
    pub adapter: u32,
    /// Which way it goes.
    pub towards: Towards,
    /// From the link header on.
    pub bytes: &'a [u8],
}

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// It goes on as it is.
    Pass,
    /// It does not.
    Taken,
}

/// A frame that has been made.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The adapter's number.
    pub adapter: u32,
    /// Which way it goes.
    pub towards: Towards,
    pub(super) buffer: Vec<u8>,
    /// Where in the buffer it begins.
    pub(super) start: usize,
}

impl Injection {
    /// From the link header on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }
}
