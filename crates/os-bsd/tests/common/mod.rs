//! Socket addresses as they are in messages, written out.

use taupe_os_bsd::{
    System::{self, FreeBsd, MacOs},
    routing::{Message, messages},
    socket_address::ZonedAddress,
};

/// Returns a `struct sockaddr_in`.
pub(crate) fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
    [16, 2, 0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Returns a `struct sockaddr_in6`, with 4 bytes of padding for FreeBSD.
pub(crate) fn v6(system: System, ip: &str, scope: u8) -> Vec<u8> {
    let (family, padding) = match system {
        FreeBsd => (28, 4),
        MacOs => (30, 0),
    };
    let ip: std::net::Ipv6Addr = ip.parse().unwrap();
    let mut bytes = vec![28, family, 0, 0, 0, 0, 0, 0];
    bytes.extend(ip.octets());
    bytes.extend([scope, 0, 0, 0]);
    bytes.resize(28 + padding, 0);
    bytes
}

/// Decodes a buffer that contains one message.
pub(crate) fn only(system: System, bytes: &[u8]) -> Message {
    let all: Vec<_> = messages(system, bytes).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone().unwrap()
}

pub(crate) fn zoned(ip: &str, zone: u16) -> ZonedAddress {
    ZonedAddress {
        ip: ip.parse().unwrap(),
        zone,
    }
}
