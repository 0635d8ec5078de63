//! Addresses and prefixes of simulated hosts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use taupe_protocol::update::AllowedIpChange;
use taupe_protocol::{Endpoint, LocalAddress};

use crate::ledger::inner_addresses;
use crate::random::Random;

/// Returns an address that no host has used.
pub(crate) fn new_address(host: usize, random: &mut Random) -> SocketAddr {
    let number = random.below(1 << 24) as u32;
    let port = random.between(1024, 65536) as u16;
    if random.once_in(3) {
        let segments = [
            0x2001,
            0xdb8,
            host as u16,
            0,
            0,
            0,
            (number >> 16) as u16,
            number as u16,
        ];
        SocketAddr::from((Ipv6Addr::from(segments), port))
    } else {
        let [_, a, b, c] = number.to_be_bytes();
        SocketAddr::from((Ipv4Addr::new(100 + host as u8, a, b, c), port))
    }
}

/// Returns the number of the host that has or had `address`.
#[must_use]
pub(crate) fn owner(address: SocketAddr) -> Option<usize> {
    match address.ip() {
        IpAddr::V4(v4) => v4.octets()[0]
            .checked_sub(100)
            .map(usize::from)
            .filter(|n| *n < 8),
        IpAddr::V6(v6) => Some(usize::from(v6.segments()[2])).filter(|n| *n < 8),
    }
}

/// Returns the endpoint of a sender, as seen by a device at a local address.
#[must_use]
pub(crate) fn endpoint(remote: SocketAddr, local: SocketAddr) -> Endpoint {
    Endpoint {
        remote,
        local: Some(LocalAddress {
            address: local.ip(),
            interface: 1,
        }),
    }
}

/// Returns the inner prefixes of a host.
#[must_use]
pub(crate) fn prefixes(host: usize) -> Vec<AllowedIpChange> {
    let (v4, v6) = inner_addresses(host);
    [IpAddr::V4(v4), IpAddr::V6(v6)]
        .map(|address| AllowedIpChange::Add(address.into()))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_an_address_is_found() {
        let mut random = Random::new(3, 3);
        for host in 0..8 {
            for _ in 0..20 {
                assert_eq!(owner(new_address(host, &mut random)), Some(host));
            }
        }
        assert_eq!(owner(SocketAddr::from(([203, 0, 113, 1], 5))), None);
    }
}
