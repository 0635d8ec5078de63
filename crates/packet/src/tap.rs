//! Interface for code that changes packets between the TUN and the tunnel.

use std::ops::Range;

use crate::virtio::VirtioHeader;

/// Changes packets between the TUN and the tunnel, for an interface without addresses of its own.
/// The applications that use it have the addresses of other interfaces, so packets must be
/// translated.
///
/// `now` is a monotonic clock in nanoseconds.
///
/// A device requests a [`TapOut`] for each queue of its TUN, and a [`TapIn`] for each socket. All
/// fragments of a packet go to the same handler.
pub trait Tap: Send + Sync {
    /// Returns the handler for packets from the TUN.
    fn outgoing(&self) -> Box<dyn TapOut>;

    /// Returns the handler for packets from one socket.
    fn incoming(&self) -> Box<dyn TapIn>;

    /// Sets the interface's MTU in bytes.
    fn set_mtu(&self, mtu: usize);
}

/// The outbound direction of a [`Tap`].
pub trait TapOut: Send {
    /// Processes a packet that was read from the TUN, possibly changing it in place. Calls `forward`
    /// with the packets to send through the tunnel: the packet itself, others instead, or none. The
    /// caller writes the returned packet, if there is one, to the TUN as an answer.
    fn handle(
        &mut self,
        now: u64,
        header: VirtioHeader,
        packet: &mut [u8],
        forward: &mut dyn FnMut(VirtioHeader, &[u8]),
    ) -> Option<Vec<u8>>;
}

/// The inbound direction of a [`Tap`].
pub trait TapIn: Send {
    /// Processes packets from the tunnel, in order of arrival, and changes them in place. `packets`
    /// are their ranges in `buffer`; the ranges of packets that must not be written to the TUN are
    /// removed. Calls `reassembled` with each packet reassembled from several, to be written before
    /// the others.
    fn handle(
        &mut self,
        now: u64,
        buffer: &mut [u8],
        packets: &mut Vec<Range<usize>>,
        reassembled: &mut dyn FnMut(&[u8]),
    );
}
