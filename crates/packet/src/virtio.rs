//! The header that precedes a packet on a TUN with `IFF_VNET_HDR` (virtio 1.2, section 5.1.6;
//! `struct virtio_net_hdr`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum at `csum_start + csum_offset` contains only the sum
/// of the pseudo header.
pub const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE`: an ordinary packet.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`: TCP over IPv4, to be divided at `gso_size`.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`: TCP over IPv6, to be divided at `gso_size`.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: datagrams of `gso_size` each (Linux 6.2).
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: an additional bit in the type, set if the TCP header has CWR.
pub const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`: 10 bytes, integers in native byte order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VirtioHeader {
    /// [`NEEDS_CSUM`] or 0.
    pub flags: u8,
    /// One of the `GSO_` types, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes before the payload. Readers must not rely on it: on forwarded packets Linux reports
    /// the length of the first segment.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Offset of the checksummed bytes.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

impl VirtioHeader {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<Self>();
}
