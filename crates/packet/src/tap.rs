//! What may stand between the interface and the tunnel.

use std::ops::Range;

use crate::virtio::VirtioHeader;

/// Changes packets on their way between the TUN and the tunnel, where the
/// interface has no address of its own: those who use it have others.
///
/// `now` is a clock that never jumps, in nanoseconds.
///
/// A device asks for one [`TapOut`], and for a [`TapIn`] for each socket.
pub trait Tap: Send + Sync {
    /// For packets from the TUN.
    fn outgoing(&self) -> Box<dyn TapOut>;

    /// For packets from one socket.
    fn incoming(&self) -> Box<dyn TapIn>;

    /// The interface's MTU is this many bytes from now on.
    fn set_mtu(&self, mtu: usize);
}

/// The way out of a [`Tap`].
pub trait TapOut: Send {
    /// Takes a packet that was read from the TUN; it may have been changed
    /// when this returns. Hands `carry` what is to go into the tunnel: the
    /// packet itself, others in its place, or nothing. What is returned is
    /// written to the TUN, as an answer.
    fn take(
        &mut self,
        now: u64,
        header: VirtioHeader,
        packet: &mut [u8],
        carry: &mut dyn FnMut(VirtioHeader, &[u8]),
    ) -> Option<Vec<u8>>;
}

/// The way in of a [`Tap`].
pub trait TapIn: Send {
    /// Takes the packets that `packets` are the places of in `buffer`, in the
    /// order in which they came, and changes them where they are. Those that
    /// are not to be written to the TUN are removed from `packets`. Hands `together`
    /// each packet that came in several, to be written before the others.
    fn take(
        &mut self,
        now: u64,
        buffer: &mut [u8],
        packets: &mut Vec<Range<usize>>,
        together: &mut dyn FnMut(&[u8]),
    );
}
