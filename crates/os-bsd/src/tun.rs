//! TUN devices: FreeBSD's requests on `/dev/tun`, and the header in front of every packet.

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
mod device;
mod open_error;

#[cfg(any(target_os = "freebsd", target_os = "macos"))]
pub use self::device::Tun;
pub use self::open_error::{Circumstances, Jail, MissingDevice, MissingRight, OpenError, OpenStep};

use taupe_packet::ip::Family;

use crate::{
    System,
    interface::IoctlRequest,
    layout::{
        self, IFF_BROADCAST, IFF_MULTICAST, IFF_POINTOPOINT, TUNGIFNAME, TUNSIFHEAD, TUNSIFMODE,
        TUNSIFPID, TUNSTRANSIENT,
    },
    socket_address::address_family,
};

/// Bytes of the header in front of every packet: the address family, most significant byte first.
///
/// macOS: `utun_ctl_send` and `utun_output` in xnu's `bsd/net/if_utun.c`. FreeBSD: tun(4), after
/// [`use_header`].
pub const HEADER: usize = 4;

/// Error of decoding the header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// There is no room for a header.
    #[error("packet of {0} bytes has no header of 4 bytes")]
    Short(usize),
    /// The packet is neither IPv4 nor IPv6.
    #[error("packet of address family {family} is not IPv4 or IPv6 of {system}")]
    Family {
        /// The system.
        system: System,
        /// The address family in the header.
        family: u32,
    },
}

/// Returns the header of packets of this family.
#[must_use]
pub fn header(system: System, family: Family) -> [u8; HEADER] {
    u32::from(address_family(system, family)).to_be_bytes()
}

/// Returns the family of a packet, or `None` if it is shorter than the header of its version.
#[must_use]
pub fn family_of(packet: &[u8]) -> Option<Family> {
    match (packet.first()? >> 4, packet.len()) {
        (4, 20..) => Some(Family::V4),
        (6, 40..) => Some(Family::V6),
        _ => None,
    }
}

/// Splits bytes that were read into the family and the packet.
///
/// # Errors
///
/// [`HeaderError`] if there is no header, or another family in it.
pub fn split(system: System, bytes: &[u8]) -> Result<(Family, &[u8]), HeaderError> {
    let short = HeaderError::Short(bytes.len());
    let (&start, packet) = bytes.split_first_chunk::<HEADER>().ok_or(short)?;
    let family = Family::ALL
        .into_iter()
        .find(|&family| header(system, family) == start);
    match family {
        Some(family) => Ok((family, packet)),
        None => Err(HeaderError::Family {
            system,
            family: u32::from_be_bytes(start),
        }),
    }
}

/// Returns FreeBSD's request for the name of a TUN's interface (`TUNGIFNAME`), which
/// [`IoctlRequest::interface_name`] reads from the answer.
pub fn get_name() -> IoctlRequest {
    let size = layout::of(System::FreeBsd).ifreq.size;
    IoctlRequest::new(TUNGIFNAME, vec![0; size])
}

/// Returns FreeBSD's request to put the header in front of every packet (`TUNSIFHEAD`). Without it, a
/// TUN takes IPv4 only.
pub fn use_header() -> IoctlRequest {
    IoctlRequest::new(TUNSIFHEAD, 1_u32.to_le_bytes().to_vec())
}

/// Returns FreeBSD's request to delete a TUN's interface when its last descriptor is closed
/// (`TUNSTRANSIENT`, FreeBSD 15), also that of a process that was killed.
pub fn delete_on_close() -> IoctlRequest {
    IoctlRequest::new(TUNSTRANSIENT, 1_u32.to_le_bytes().to_vec())
}

/// Mode of a FreeBSD TUN's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunMode {
    /// The link has two ends, and an IPv4 address needs that of the other end.
    PointToPoint,
    /// The link is a network, and addresses need no peer. wireguard-go uses this mode.
    Broadcast,
}

/// Returns FreeBSD's request to set the mode of an interface that is down (`TUNSIFMODE`).
pub fn set_mode(mode: TunMode) -> IoctlRequest {
    let flags = IFF_MULTICAST
        | match mode {
            TunMode::PointToPoint => IFF_POINTOPOINT,
            TunMode::Broadcast => IFF_BROADCAST,
        };
    IoctlRequest::new(TUNSIFMODE, flags.to_le_bytes().to_vec())
}

/// Returns FreeBSD's request to make this process the TUN's owner (`TUNSIFPID`), which `ifconfig`
/// shows. A process that got the descriptor from another one sends it.
pub fn become_owner() -> IoctlRequest {
    IoctlRequest::new(TUNSIFPID, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_family_in_network_byte_order() {
        assert_eq!(header(System::FreeBsd, Family::V4), [0, 0, 0, 2]);
        assert_eq!(header(System::MacOs, Family::V4), [0, 0, 0, 2]);
        assert_eq!(header(System::FreeBsd, Family::V6), [0, 0, 0, 28]);
        assert_eq!(header(System::MacOs, Family::V6), [0, 0, 0, 30]);
        for system in System::ALL {
            for family in Family::ALL {
                let bytes = [&header(system, family)[..], &[0x45]].concat();
                assert_eq!(split(system, &bytes), Ok((family, &[0x45][..])));
            }
        }
    }

    #[test]
    fn packets_without_a_complete_header_have_no_family() {
        let packet = |first, length| [vec![first], vec![0; length]].concat();
        assert_eq!(family_of(&packet(0x45, 19)), Some(Family::V4));
        assert_eq!(family_of(&packet(0x60, 39)), Some(Family::V6));
        for packet in [
            vec![],
            packet(0x45, 18),
            packet(0x60, 38),
            packet(0x00, 99),
            packet(0x55, 99),
        ] {
            assert_eq!(family_of(&packet), None);
        }
    }

    #[test]
    fn the_other_systems_family_is_refused() {
        let bytes = header(System::MacOs, Family::V6);
        let error = split(System::FreeBsd, &bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "packet of address family 30 is not IPv4 or IPv6 of FreeBSD"
        );
        let error = split(System::FreeBsd, &[0, 0, 2]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "packet of 3 bytes has no header of 4 bytes"
        );
        // Host byte order.
        assert!(split(System::MacOs, &[2, 0, 0, 0]).is_err());
    }

    /// Numbers as wireguard-go has them (`tun/tun_freebsd.go`).
    #[test]
    fn numbers_are_those_of_a_published_program() {
        let requests = [
            (use_header(), 0x8004_7460, 4),
            (set_mode(TunMode::Broadcast), 0x8004_745e, 4),
            (become_owner(), 0x2000_745f, 0),
            (delete_on_close(), 0x8004_7462, 4),
            (get_name(), 0x4020_745d, 32),
        ];
        for (request, number, size) in requests {
            assert_eq!((request.number(), request.argument().len()), (number, size));
        }
    }
}
