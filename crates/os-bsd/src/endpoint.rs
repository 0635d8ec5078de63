//! Socket addresses of datagrams: [`SocketAddr`]s as the kernels' bytes. Nothing here allocates.
//!
//! Unlike in messages of routing sockets, macOS has the zone of a link-local address in
//! `sin6_scope_id` here (`in6_recoverscope` in xnu's `bsd/netinet6/scope6.c`). An embedded zone is
//! decoded nevertheless.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use taupe_packet::ip::Family;

use crate::{
    System,
    bytes::{array, put, u32_at},
    layout,
    socket_address::{address_family, family, without_zone},
};

/// Bytes of the longest address (`struct sockaddr_in6`).
pub const LONGEST: usize = 28;

/// The bytes of a socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointBytes {
    bytes: [u8; LONGEST],
    length: usize,
}

impl EndpointBytes {
    /// Returns a `struct sockaddr_in` or `struct sockaddr_in6`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Encodes a socket address. The flow label is 0: the kernel chooses it.
#[must_use]
pub fn encode(system: System, address: SocketAddr) -> EndpointBytes {
    let layout = layout::of(system);
    let (v4, v6) = (&layout.sockaddr_in, &layout.sockaddr_in6);
    let mut bytes = [0; LONGEST];
    let family = address_family(system, Family::of(address.ip()));
    // The first fields of both are equal.
    put(&mut bytes, v4.family, &[family]);
    put(&mut bytes, v4.port, &address.port().to_be_bytes());
    let length = match address {
        SocketAddr::V4(address) => {
            put(&mut bytes, v4.address, &address.ip().octets());
            v4.size
        }
        SocketAddr::V6(address) => {
            put(&mut bytes, v6.address, &address.ip().octets());
            put(&mut bytes, v6.scope, &address.scope_id().to_le_bytes());
            v6.size
        }
    };
    put(&mut bytes, v4.length, &[length as u8]);
    EndpointBytes { bytes, length }
}

/// Decodes a socket address, or returns `None` if it is neither IPv4 nor IPv6, or cut.
#[must_use]
pub fn decode(system: System, bytes: &[u8]) -> Option<SocketAddr> {
    let layout = layout::of(system);
    let (v4, v6) = (&layout.sockaddr_in, &layout.sockaddr_in6);
    let port = array(bytes, v4.port).map(u16::from_be_bytes)?;
    match family(system, bytes)? {
        Family::V4 => {
            let ip: [u8; 4] = array(bytes, v4.address)?;
            Some((IpAddr::from(Ipv4Addr::from(ip)), port).into())
        }
        Family::V6 => {
            let ip: [u8; 16] = array(bytes, v6.address)?;
            let (ip, zone) = without_zone(Ipv6Addr::from(ip));
            let scope = match u32_at(bytes, v6.scope)? {
                0 => zone.into(),
                scope => scope,
            };
            Some(SocketAddrV6::new(ip, port, 0, scope).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_bytes_of_the_system() {
        let v4: SocketAddr = "192.0.2.7:51820".parse().unwrap();
        for system in System::ALL {
            assert_eq!(
                encode(system, v4).as_bytes(),
                [16, 2, 0xca, 0x6c, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0]
            );
        }
        let v6: SocketAddr = "[fe80::1%258]:51820".parse().unwrap();
        for (system, family) in [(System::FreeBsd, 28), (System::MacOs, 30)] {
            let mut expected = vec![28, family, 0xca, 0x6c, 0, 0, 0, 0, 0xfe, 0x80];
            expected.resize(23, 0);
            expected.extend([1, 2, 1, 0, 0]);
            assert_eq!(encode(system, v6).as_bytes(), expected);
            assert_eq!(decode(system, &expected), Some(v6));
        }
    }

    #[test]
    fn an_embedded_zone_is_moved_out_of_the_address() {
        for system in System::ALL {
            let embedded = encode(system, "[fe80:9::1]:1".parse().unwrap());
            let expected: SocketAddr = "[fe80::1%9]:1".parse().unwrap();
            assert_eq!(decode(system, embedded.as_bytes()), Some(expected));
        }
    }

    #[test]
    fn cut_and_foreign_addresses_are_refused() {
        for system in System::ALL {
            let v6 = encode(system, "[2001:db8::1]:1".parse().unwrap());
            for cut in 0..v6.as_bytes().len() {
                assert_eq!(decode(system, &v6.as_bytes()[..cut]), None);
            }
            let mut other = v6.as_bytes().to_vec();
            other[1] = 18;
            assert_eq!(decode(system, &other), None);
        }
    }
}
