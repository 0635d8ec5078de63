//! The packet filter that tunnels run on.

use super::Driver;
use std::convert::Infallible;
use std::time::Duration;
use taupe_transparent::frames::{Adapter, Event, Frame, Injection, PacketTap, TapError, Verdict};

/// Windows Packet Filter (ndisrd).
pub struct PacketFilter(Infallible);

impl Driver for PacketFilter {
    type Tap = Self;

    fn open() -> Result<Self, TapError> {
        Err(TapError(
            "this program was built without a packet filter".into(),
        ))
    }
}

impl PacketTap for PacketFilter {
    fn adapters(&mut self) -> Result<Vec<Adapter>, TapError> {
        match self.0 {}
    }

    fn read(
        &mut self,
        _wait: Duration,
        _judge: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError> {
        match self.0 {}
    }

    fn inject(&mut self, _frames: &[Injection]) -> Result<(), TapError> {
        match self.0 {}
    }

    fn set_mtu_decrement(&mut self, _bytes: u16) -> Result<(), TapError> {
        match self.0 {}
    }
}
