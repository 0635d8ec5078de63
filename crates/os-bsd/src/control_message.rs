//! Control messages of UDP datagrams: the local address of a received one, and the source address of
//! one to send.
//!
//! A control message is a header (`struct cmsghdr`), padding, data, and padding up to the next one.
//! Both systems pad to their own unit: 8 bytes on FreeBSD, 4 on macOS. Nothing here allocates, because
//! every datagram has such a message.
//!
//! | | received | sent |
//! |---|---|---|
//! | IPv4 on FreeBSD | `IP_RECVDSTADDR` | `IP_SENDSRCADDR` |
//! | IPv4 on macOS | `IP_PKTINFO`, the address in `ipi_addr` | `IP_PKTINFO`, the address in `ipi_spec_dst` |
//! | IPv6 | `IPV6_PKTINFO` | `IPV6_PKTINFO` |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    System,
    bytes::{array, put, u32_at},
    layout::{
        self, EADDRNOTAVAIL, EHOSTUNREACH, EINVAL, ENETDOWN, ENETUNREACH, ENXIO, IN_PKTINFO,
        IP_PKTINFO, IP_RECVDSTADDR, IP_SENDSRCADDR, IPPROTO_IP, IPPROTO_IPV6, IPV6_PKTINFO,
    },
    socket_address::{has_zone, without_zone},
};

/// Bytes of the longest message that [`encode`] returns: IPv6 on FreeBSD.
const LONGEST: usize = 40;

/// Bytes of a buffer for the control messages of a received datagram. There is room for several, as
/// macOS may add some that nobody asked for (`ip6_savecontrol_v4` in xnu's
/// `bsd/netinet6/ip6_input.c`).
pub const RECEIVE_LEN: usize = 128;

/// The local end of a datagram's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalEnd {
    /// The local address, without an embedded zone.
    pub address: IpAddr,
    /// The index of the interface; 0 if it is not known, or leaves the choice to the system.
    pub interface: u32,
}

/// A control message for one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    bytes: [u8; LONGEST],
    length: usize,
}

impl ControlMessage {
    /// Returns the message with its padding.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Returns the message that makes a datagram leave from a local address.
///
/// It contains the interface only if the address is link-local. With an interface, FreeBSD refuses
/// the datagram with `EHOSTUNREACH` if the route to its destination leads through another one
/// (`in6_selectroute` in `sys/netinet6/in6_src.c`), as where traffic arrives and leaves by different
/// interfaces. For IPv4, macOS would ignore the address (`udp_check_pktinfo` in xnu's
/// `bsd/netinet/udp_usrreq.c`).
#[must_use]
pub fn encode(system: System, from: LocalEnd) -> ControlMessage {
    match (from.address, system) {
        (IpAddr::V4(address), System::FreeBsd) => {
            message(system, IPPROTO_IP, IP_SENDSRCADDR, &address.octets())
        }
        (IpAddr::V4(address), System::MacOs) => {
            let mut info = [0; IN_PKTINFO.size];
            put(&mut info, IN_PKTINFO.source, &address.octets());
            message(system, IPPROTO_IP, IP_PKTINFO, &info)
        }
        (IpAddr::V6(address), _) => {
            let fields = &layout::of(system).in6_pktinfo;
            let mut info = [0; 20];
            put(&mut info, fields.address, &address.octets());
            if has_zone(address) {
                put(&mut info, fields.interface, &from.interface.to_le_bytes());
            }
            message(system, IPPROTO_IPV6, IPV6_PKTINFO, &info)
        }
    }
}

/// Returns true if a datagram with this error may be sent without its source. The address or the
/// interface is gone, the kernel cannot use the address (0.0.0.0), or the interface that has it no
/// longer leads to the destination.
#[must_use]
pub const fn may_be_due_to_source(error: i32) -> bool {
    matches!(
        error.cast_unsigned(),
        EADDRNOTAVAIL | EINVAL | ENXIO | ENETDOWN | ENETUNREACH | EHOSTUNREACH
    )
}

/// Returns the local address in the control messages of a received datagram, or `None` if there is
/// none. Messages behind one whose length contradicts the buffer are ignored.
#[must_use]
pub fn decode(system: System, messages: &[u8]) -> Option<LocalEnd> {
    let layout = layout::of(system);
    let data = layout.numbers.control_data as usize;
    let mut rest = messages;
    loop {
        let length = u32_at(rest, layout.control.length)? as usize;
        let message = rest.get(..length).filter(|_| length >= data)?;
        let level = u32_at(message, layout.control.level)?;
        let kind = u32_at(message, layout.control.kind)?;
        let found = local_end(system, level, kind, message.get(data..)?);
        if found.is_some() {
            return found;
        }
        rest = rest.get(layout.control_space(length - data)..)?;
    }
}

fn message(system: System, level: u32, kind: u32, content: &[u8]) -> ControlMessage {
    let layout = layout::of(system);
    let data = layout.numbers.control_data as usize;
    let mut bytes = [0; LONGEST];
    // `CMSG_LEN`: without the padding behind the data.
    let length = (data + content.len()) as u32;
    put(&mut bytes, layout.control.length, &length.to_le_bytes());
    put(&mut bytes, layout.control.level, &level.to_le_bytes());
    put(&mut bytes, layout.control.kind, &kind.to_le_bytes());
    put(&mut bytes, data, content);
    let length = layout.control_space(content.len());
    ControlMessage { bytes, length }
}

fn local_end(system: System, level: u32, kind: u32, data: &[u8]) -> Option<LocalEnd> {
    let v4 = |offset| {
        let octets: [u8; 4] = array(data, offset)?;
        Some(LocalEnd {
            address: Ipv4Addr::from(octets).into(),
            // Neither system uses it for sending.
            interface: 0,
        })
    };
    match (system, level, kind) {
        (_, IPPROTO_IP, IP_RECVDSTADDR) => v4(0),
        (System::MacOs, IPPROTO_IP, IP_PKTINFO) => v4(IN_PKTINFO.destination),
        (_, IPPROTO_IPV6, IPV6_PKTINFO) => {
            let fields = &layout::of(system).in6_pktinfo;
            let octets: [u8; 16] = array(data, fields.address)?;
            let (address, zone) = without_zone(Ipv6Addr::from(octets));
            Some(LocalEnd {
                address: address.into(),
                interface: match u32_at(data, fields.interface)? {
                    0 => zone.into(),
                    interface => interface,
                },
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: &str, interface: u32) -> LocalEnd {
        LocalEnd {
            address: address.parse().unwrap(),
            interface,
        }
    }

    /// `struct cmsghdr` with its padding, and data with the padding of the system.
    fn written_out(system: System, length: u8, level: u8, kind: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![length, 0, 0, 0, level, 0, 0, 0, kind, 0, 0, 0];
        let unit = match system {
            System::FreeBsd => 8,
            System::MacOs => 4,
        };
        bytes.resize(bytes.len().next_multiple_of(unit), 0);
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(unit), 0);
        bytes
    }

    #[test]
    fn messages_to_send_have_the_bytes_of_the_system() {
        let v4 = end("192.0.2.7", 0);
        let bytes = written_out(System::FreeBsd, 20, 0, 7, &[192, 0, 2, 7]);
        assert_eq!(bytes.len(), 24);
        assert_eq!(encode(System::FreeBsd, v4).as_bytes(), bytes);
        let info = [0, 0, 0, 0, 192, 0, 2, 7, 0, 0, 0, 0];
        let bytes = written_out(System::MacOs, 24, 0, 26, &info);
        assert_eq!(bytes.len(), 24);
        assert_eq!(encode(System::MacOs, v4).as_bytes(), bytes);

        let v6 = end("fe80::1", 0x0302);
        let mut info = vec![0xfe, 0x80];
        info.resize(15, 0);
        info.extend([1, 2, 3, 0, 0]);
        for (system, length, size) in [(System::FreeBsd, 36, 40), (System::MacOs, 32, 32)] {
            let bytes = written_out(system, length, 41, 46, &info);
            assert_eq!(bytes.len(), size);
            assert_eq!(encode(system, v6).as_bytes(), bytes);
            assert_eq!(decode(system, &bytes), Some(v6));
        }
    }

    /// With an interface index, macOS ignores an IPv4 address, and FreeBSD sends IPv6 datagrams by
    /// this interface or not at all.
    #[test]
    fn only_a_link_local_source_has_an_interface() {
        for system in System::ALL {
            for address in ["192.0.2.7", "2001:db8::1"] {
                let with = encode(system, end(address, 5));
                assert_eq!(with, encode(system, end(address, 0)), "{address}");
            }
            let with = encode(system, end("fe80::1", 5));
            assert_ne!(with, encode(system, end("fe80::1", 0)));
        }
    }

    #[test]
    fn a_datagram_that_is_too_long_or_has_no_room_is_not_sent_again() {
        for error in [6, 22, 49, 50, 51, 65] {
            assert!(may_be_due_to_source(error), "{error}");
        }
        // EPERM, EAGAIN, EMSGSIZE, ENOBUFS, on both systems.
        for error in [0, 1, 35, 40, 55, -1] {
            assert!(!may_be_due_to_source(error), "{error}");
        }
    }

    #[test]
    fn received_ipv4_destinations_are_decoded() {
        let bytes = written_out(System::FreeBsd, 20, 0, 7, &[192, 0, 2, 7]);
        assert_eq!(decode(System::FreeBsd, &bytes), Some(end("192.0.2.7", 0)));
        // `ipi_spec_dst` is 0 in received ones (`ip_savecontrol` in xnu's
        // `bsd/netinet/ip_input.c`).
        let info = [5, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7];
        let bytes = written_out(System::MacOs, 24, 0, 26, &info);
        assert_eq!(decode(System::MacOs, &bytes), Some(end("192.0.2.7", 0)));
    }

    #[test]
    fn an_embedded_zone_becomes_the_interface() {
        for (system, length) in [(System::FreeBsd, 36), (System::MacOs, 32)] {
            let mut info = vec![0xfe, 0x80, 0, 9];
            info.resize(15, 0);
            info.extend([1, 0, 0, 0, 0]);
            let bytes = written_out(system, length, 41, 46, &info);
            assert_eq!(decode(system, &bytes), Some(end("fe80::1", 9)));
        }
    }

    #[test]
    fn other_messages_are_skipped() {
        for system in System::ALL {
            // `IP_RECVTTL` of one byte, in front.
            let (length, kind) = match system {
                System::FreeBsd => (17, 65),
                System::MacOs => (13, 24),
            };
            let mut bytes = written_out(system, length, 0, kind, &[64]);
            assert_eq!(decode(system, &bytes), None);
            let v6 = end("fe80::1", 3);
            bytes.extend(encode(system, v6).as_bytes());
            assert_eq!(decode(system, &bytes), Some(v6));
        }
    }

    #[test]
    fn lengths_that_contradict_the_buffer_end_the_decoding() {
        for system in System::ALL {
            let message = encode(system, end("2001:db8::1", 3));
            let bytes = message.as_bytes();
            // Cut anywhere, also in the data.
            let needed = match system {
                System::FreeBsd => 36,
                System::MacOs => 32,
            };
            for cut in 0..needed {
                assert_eq!(decode(system, &bytes[..cut]), None);
            }
            // Without its padding, it is the last one.
            assert!(decode(system, &bytes[..needed]).is_some());
            for length in [0, 11, 41, u32::MAX] {
                let mut bytes = bytes.to_vec();
                bytes[..4].copy_from_slice(&length.to_le_bytes());
                assert_eq!(decode(system, &bytes), None);
            }
        }
    }
}
