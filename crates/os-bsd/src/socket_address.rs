//! Socket addresses as routing messages and requests contain them.
//!
//! Three properties make them easy to get wrong:
//!
//! - In messages, a length is rounded up to a multiple of 8 bytes on FreeBSD (`SA_SIZE` in
//!   `sys/net/route.h`) and of 4 bytes on macOS (`ROUNDUP32` in `bsd/net/rtsock.c`). The length 0
//!   takes one unit.
//! - macOS cuts the zeros at the end of a netmask, and its family is any number (`rtm_scrub` in
//!   `bsd/net/rtsock.c`). The mask 255.255.0.0 has 6 bytes, and the mask of the default route has
//!   length 0. So may its destination.
//! - KAME's IPv6 stack keeps the zone of a link-local address in the second 16 bits of the address.
//!   macOS shows these bits to programs and expects them from programs (`route.tproj/route.c` in
//!   Apple's network_cmds). FreeBSD moves them to `sin6_scope_id` (`sa6_recoverscope` in
//!   `sys/net/rtsock.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use taupe_packet::ip::Family;

use crate::{
    System,
    bytes::{array, put, text, u8_at, u16_at, u32_at},
    layout::{self, AF_INET, AF_LINK},
};

/// An IP address and, if it is link-local, its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZonedAddress {
    /// The address, without KAME's embedded zone.
    pub ip: IpAddr,
    /// The index of the interface on which a link-local address is valid; 0 if it is not known, and
    /// for all other addresses.
    pub zone: u16,
}

impl From<IpAddr> for ZonedAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, zone: 0 }
    }
}

/// Error of encoding an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZoneError {
    /// The address has a zone and is not link-local.
    #[error("{0} is not link-local, so it cannot have a zone")]
    NotLinkLocal(IpAddr),
    /// The kernel would take bits of the address for its zone.
    #[error("bits 16 to 31 of the link-local address {0} are not 0")]
    NotZero(Ipv6Addr),
}

/// An interface's socket address (`struct sockaddr_dl`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkAddress {
    pub(crate) index: u16,
    pub(crate) medium: u8,
    pub(crate) name: String,
    pub(crate) address: Vec<u8>,
}

/// Returns the number of an address family.
pub(crate) fn address_family(system: System, family: Family) -> u8 {
    match family {
        Family::V4 => AF_INET as u8,
        Family::V6 => layout::of(system).numbers.af_inet6 as u8,
    }
}

/// Returns true if KAME embeds the zone of this address (`IN6_IS_SCOPE_EMBED` in
/// `bsd/netinet6/in6.h`): a link-local unicast address, or a multicast address of link-local or
/// interface-local scope. Addresses by RFC 3306, which have a prefix length in these bits, are
/// exempt.
pub(crate) fn has_zone(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.octets();
    ip.is_unicast_link_local()
        || first == 0xff && matches!(second & 0x0f, 1 | 2) && second & 0x30 == 0
}

/// Splits an embedded zone off. The zone is 0 if there is none.
pub(crate) fn without_zone(ip: Ipv6Addr) -> (Ipv6Addr, u16) {
    if !has_zone(ip) {
        return (ip, 0);
    }
    let mut octets = ip.octets();
    let zone = u16::from_be_bytes([octets[2], octets[3]]);
    octets[2..4].fill(0);
    (octets.into(), zone)
}

/// Encodes an address without padding.
pub(crate) fn encode(system: System, address: ZonedAddress) -> Result<Vec<u8>, ZoneError> {
    let ip = match address.ip {
        IpAddr::V6(ip) if has_zone(ip) => ip,
        ip if address.zone != 0 => return Err(ZoneError::NotLinkLocal(ip)),
        ip => return Ok(encode_plain(system, ip)),
    };
    if ip.segments()[1] != 0 {
        return Err(ZoneError::NotZero(ip));
    }
    let fields = &layout::of(system).sockaddr_in6;
    let mut bytes = encode_plain(system, ip.into());
    match system {
        System::FreeBsd => put(
            &mut bytes,
            fields.scope,
            &u32::from(address.zone).to_le_bytes(),
        ),
        System::MacOs => put(&mut bytes, fields.address + 2, &address.zone.to_be_bytes()),
    }
    Ok(bytes)
}

/// Encodes an address that has no zone, or a netmask.
pub(crate) fn encode_plain(system: System, ip: IpAddr) -> Vec<u8> {
    let layout = layout::of(system);
    match ip {
        IpAddr::V4(ip) => {
            let fields = &layout.sockaddr_in;
            let mut bytes = start(fields.size, fields.length, fields.family, AF_INET as u8);
            put(&mut bytes, fields.address, &ip.octets());
            bytes
        }
        IpAddr::V6(ip) => {
            let fields = &layout.sockaddr_in6;
            let family = address_family(system, Family::V6);
            let mut bytes = start(fields.size, fields.length, fields.family, family);
            put(&mut bytes, fields.address, &ip.octets());
            bytes
        }
    }
}

/// Encodes an interface by its index.
pub(crate) fn encode_link(system: System, index: u16) -> Vec<u8> {
    let fields = &layout::of(system).sockaddr_dl;
    let mut bytes = start(fields.size, fields.length, fields.family, AF_LINK as u8);
    put(&mut bytes, fields.index, &index.to_le_bytes());
    bytes
}

fn start(size: usize, length: usize, family: usize, number: u8) -> Vec<u8> {
    let mut bytes = vec![0; size];
    put(&mut bytes, length, &[size as u8]);
    put(&mut bytes, family, &[number]);
    bytes
}

/// Returns the family of an address, or `None` if it is not IPv4 or IPv6.
pub(crate) fn family(system: System, bytes: &[u8]) -> Option<Family> {
    let number = u8_at(bytes, layout::of(system).sockaddr_in.family)?;
    Family::ALL
        .into_iter()
        .find(|&family| address_family(system, family) == number)
}

/// Decodes an IPv4 or IPv6 address. Bytes behind the end are zero.
pub(crate) fn decode(system: System, bytes: &[u8]) -> Option<ZonedAddress> {
    let layout = layout::of(system);
    Some(match family(system, bytes)? {
        Family::V4 => {
            let octets: [u8; 4] = padded(bytes, layout.sockaddr_in.address);
            IpAddr::V4(octets.into()).into()
        }
        Family::V6 => {
            let octets: [u8; 16] = padded(bytes, layout.sockaddr_in6.address);
            if !has_zone(octets.into()) {
                return Some(IpAddr::V6(octets.into()).into());
            }
            let (ip, embedded) = without_zone(octets.into());
            let scope = u32_at(bytes, layout.sockaddr_in6.scope).unwrap_or(0);
            ZonedAddress {
                ip: IpAddr::V6(ip),
                zone: match embedded {
                    // An index that does not fit is none of an interface.
                    0 => u16::try_from(scope).unwrap_or(0),
                    zone => zone,
                },
            }
        }
    })
}

/// Decodes a netmask, whose family is that of its destination and which may be cut. `None` if the
/// ones are not contiguous.
pub(crate) fn decode_mask(system: System, family: Family, bytes: &[u8]) -> Option<u8> {
    let layout = layout::of(system);
    let mask = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from(padded::<4>(
            bytes,
            layout.sockaddr_in.address,
        ))),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(padded::<16>(
            bytes,
            layout.sockaddr_in6.address,
        ))),
    };
    ipnet::ip_mask_to_prefix(mask).ok()
}

/// Decodes an interface's address, or returns `None` if it is another kind of address.
pub(crate) fn decode_link(system: System, bytes: &[u8]) -> Option<LinkAddress> {
    let fields = &layout::of(system).sockaddr_dl;
    if u32::from(u8_at(bytes, fields.family)?) != AF_LINK {
        return None;
    }
    let name_length = usize::from(u8_at(bytes, fields.name_length).unwrap_or(0));
    let address_length = usize::from(u8_at(bytes, fields.address_length).unwrap_or(0));
    let (name, rest) = bytes
        .get(fields.data..)
        .and_then(|data| data.split_at_checked(name_length))
        .unwrap_or_default();
    Some(LinkAddress {
        index: u16_at(bytes, fields.index).unwrap_or(0),
        medium: u8_at(bytes, fields.medium).unwrap_or(0),
        name: text(name),
        address: rest.get(..address_length).unwrap_or_default().to_vec(),
    })
}

/// Returns the bytes that an address of this length occupies in a message.
pub(crate) fn rounded(system: System, length: usize) -> usize {
    length.max(1).next_multiple_of(layout::of(system).alignment)
}

/// Returns `N` bytes at an offset, with zeros in place of bytes that are missing.
fn padded<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    array(bytes, offset).unwrap_or_else(|| {
        let mut all = [0; N];
        put(&mut all, 0, bytes.get(offset..).unwrap_or_default());
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zoned(ip: &str, zone: u16) -> ZonedAddress {
        ZonedAddress {
            ip: ip.parse().unwrap(),
            zone,
        }
    }

    #[test]
    fn macos_embeds_the_zone_and_freebsd_does_not() {
        let address = zoned("fe80::1", 0x1234);
        let freebsd = encode(System::FreeBsd, address).unwrap();
        assert_eq!(freebsd[..12], [28, 28, 0, 0, 0, 0, 0, 0, 0xfe, 0x80, 0, 0]);
        assert_eq!(freebsd[24..], [0x34, 0x12, 0, 0]);
        let macos = encode(System::MacOs, address).unwrap();
        assert_eq!(
            macos[..12],
            [28, 30, 0, 0, 0, 0, 0, 0, 0xfe, 0x80, 0x12, 0x34]
        );
        assert_eq!(macos[24..], [0; 4]);
        for (system, bytes) in [(System::FreeBsd, freebsd), (System::MacOs, macos)] {
            assert_eq!(decode(system, &bytes), Some(address));
        }
    }

    #[test]
    fn an_embedded_zone_is_taken_out_on_both_systems() {
        for system in System::ALL {
            let ip = "ff02:7::fb".parse().unwrap();
            let bytes = encode_plain(system, ip);
            assert_eq!(decode(system, &bytes), Some(zoned("ff02::fb", 7)));
            // Bits 24 to 31 of an address by RFC 3306 are a prefix length.
            let ip = "ff32:40:2001:db8::1".parse().unwrap();
            let bytes = encode_plain(system, ip);
            assert_eq!(decode(system, &bytes), Some(ip.into()));
        }
    }

    #[test]
    fn zones_that_the_kernel_would_misread_are_refused() {
        for system in System::ALL {
            let error = encode(system, zoned("2001:db8::1", 1)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "2001:db8::1 is not link-local, so it cannot have a zone"
            );
            let error = encode(system, zoned("fe80:1::1", 0)).unwrap_err();
            assert_eq!(
                error.to_string(),
                "bits 16 to 31 of the link-local address fe80:1::1 are not 0"
            );
        }
    }

    #[test]
    fn lengths_are_rounded_to_the_unit_of_the_system() {
        let lengths = [0, 1, 4, 5, 8, 9, 16, 28, 54];
        let rounded = |system| lengths.map(|length| rounded(system, length));
        assert_eq!(rounded(System::FreeBsd), [8, 8, 8, 8, 8, 16, 16, 32, 56]);
        assert_eq!(rounded(System::MacOs), [4, 4, 4, 8, 8, 12, 16, 28, 56]);
    }

    #[test]
    fn netmasks_may_be_cut() {
        let prefix = |family, bytes: &[u8]| decode_mask(System::MacOs, family, bytes);
        assert_eq!(prefix(Family::V4, &[]), Some(0));
        assert_eq!(prefix(Family::V4, &[5, 0xff, 0xff, 0xff, 0xff]), Some(8));
        assert_eq!(prefix(Family::V4, &[6, 0, 0, 0, 255, 192]), Some(10));
        assert_eq!(prefix(Family::V4, &[7, 0, 0, 0, 255, 0, 255]), None);
        let mut bytes = vec![0xff; 16];
        bytes[0] = 16;
        assert_eq!(prefix(Family::V6, &bytes), Some(64));
    }

    #[test]
    fn names_and_hardware_addresses_of_interfaces_are_decoded() {
        let mut bytes = vec![20, 18, 4, 0, 6, 3, 6, 0];
        bytes.extend(b"en0\x02\x00\x00\x00\x00\x01");
        let link = decode_link(System::MacOs, &bytes).unwrap();
        assert_eq!((link.index, link.medium, &*link.name), (4, 6, "en0"));
        assert_eq!(link.address, [2, 0, 0, 0, 0, 1]);
        // The lengths may exceed the address.
        bytes[5] = 200;
        let link = decode_link(System::MacOs, &bytes).unwrap();
        assert_eq!((&*link.name, link.address.len()), ("", 0));
    }
}
