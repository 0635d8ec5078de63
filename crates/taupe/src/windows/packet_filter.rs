//! The packet filter that tunnels run on.

use super::Driver;
use taupe_transparent::frames::TapError;
use taupe_transparent::windows::ndisapi::NdisapiTap;

/// Windows Packet Filter.
pub struct PacketFilter;

impl Driver for PacketFilter {
    type Tap = NdisapiTap;

    fn open() -> Result<NdisapiTap, TapError> {
        NdisapiTap::open()
    }
}
