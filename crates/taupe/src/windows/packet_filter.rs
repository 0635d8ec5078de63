//! The packet filter for tunnels.

use super::Driver;
use taupe_transparent_windows::TapError;
use taupe_transparent_windows::ndisapi::NdisapiTap;

/// Windows Packet Filter.
pub struct PacketFilter;

impl Driver for PacketFilter {
    type Tap = NdisapiTap;

    fn open() -> Result<NdisapiTap, TapError> {
        NdisapiTap::open()
    }
}
