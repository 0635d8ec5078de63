//! The MTU of a tunnel's interface.
//!
//! Linux removes IPv6 with all its addresses and routes from an interface whose MTU falls below
//! 1280, without an error. Packets for the tunnel's IPv6 networks would then leave through the
//! uplink. Therefore no tunnel that carries IPv6 gets such an MTU, neither from the file nor
//! computed.

use crate::file::{File, MIN_IPV6_MTU};

/// Bytes that an encrypted packet adds to an IPv6 packet of 0 bytes: 40 (IPv6) + 8 (UDP) +
/// 32 (transport data, whitepaper §5.4.6). `wg-quick` always takes the larger of the two
/// families.
const OVERHEAD: u32 = 80;

/// The largest IP packet in bytes; the loopback interface has an MTU of one byte more.
const LARGEST: u32 = 65535;

/// The MTU of Ethernet, where that of the path is unknown.
const ETHERNET: u32 = 1500;

/// An MTU, and how it was determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunnelMtu {
    /// The MTU in bytes.
    pub mtu: u32,
    /// The path's MTU, if it is too small for an IPv6 packet in one datagram.
    split: Option<u32>,
}

impl TunnelMtu {
    /// Returns the file's MTU, or what fits through a path of `path` bytes (`None`: unknown). If
    /// the tunnel carries IPv6, a computed MTU is at least [`MIN_IPV6_MTU`], which a file's must
    /// be, too. A datagram that exceeds the path's MTU is then sent in fragments.
    #[must_use]
    pub fn of(file: &File, path: Option<u32>, ipv6: bool) -> Self {
        let inside = mtu_inside(path);
        match file.interface.mtu {
            Some(mtu) => Self { mtu, split: None },
            None if ipv6 && inside < MIN_IPV6_MTU => Self {
                mtu: MIN_IPV6_MTU,
                split: path,
            },
            None => Self {
                mtu: inside,
                split: None,
            },
        }
    }

    /// Returns a note for the user if packets may be fragmented on the path.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        self.split.map(|path| {
            format!(
                "MTU {MIN_IPV6_MTU}, the least that IPv6 needs: the path to a peer carries \
                 packets of at most {path} bytes, and WireGuard may use {OVERHEAD} of them, so \
                 full packets may travel in two fragments"
            )
        })
    }
}

/// Returns the MTU in bytes of a tunnel over a path with the given MTU, without a minimum for IPv6.
#[must_use]
pub fn mtu_inside(path: Option<u32>) -> u32 {
    path.unwrap_or(ETHERNET)
        .min(LARGEST)
        .saturating_sub(OVERHEAD)
}
