//! Arithmetic with lists of networks, such as AllowedIPs without DisallowedIPs.
//!
//! The functions convert lists to sorted, merged ranges of addresses. So each takes O(n log n)
//! steps for n networks, and a result has at most 254 networks per input (the most that an IPv6
//! range needs).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use std::sync::LazyLock;

use ipnet::IpNet;
use taupe_packet::ip::Family;

use crate::prefix;

/// Returns the shortest list of networks with every address of `allowed` and none of `disallowed`,
/// sorted by family (IPv4 first) and address.
#[must_use]
pub fn subtract(allowed: &[IpNet], disallowed: &[IpNet]) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for family in [Family::V4, Family::V6] {
        for (first, last) in subtract_ranges(&ranges(allowed, family), &ranges(disallowed, family))
        {
            split(family, first, last, &mut networks);
        }
    }
    networks
}

/// Returns the shortest list of networks with the same addresses, sorted as by [`subtract`].
#[must_use]
pub fn aggregate(networks: &[IpNet]) -> Vec<IpNet> {
    subtract(networks, &[])
}

/// Returns true if `networks` together contain every address of `network`.
#[must_use]
pub fn covers(networks: &[IpNet], network: IpNet) -> bool {
    Addresses::from_networks(networks).contains(network)
}

/// Returns true if `networks` together contain every public address of a family. An address is
/// public unless IANA's special-purpose registries (RFC 6890) reserve it; in IPv6 only 2000::/3 is
/// public.
#[must_use]
pub fn covers_public(networks: &[IpNet], family: Family) -> bool {
    let all = (0, last_address(0, address_bits(family)));
    let missing = subtract_ranges(&[all], &ranges(networks, family));
    subtract_ranges(&missing, SPECIAL.ranges(family)).is_empty()
}

/// Returns true if no address of `network` is public.
#[must_use]
pub fn is_special(network: IpNet) -> bool {
    SPECIAL.contains(network)
}

/// Returns true if two networks overlap, which means that one contains the other.
#[must_use]
pub fn overlaps(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// Addresses of a list of networks, prepared for many queries.
pub struct Addresses {
    v4: Vec<Range>,
    v6: Vec<Range>,
}

impl Addresses {
    /// Prepares the addresses of `networks`.
    #[must_use]
    pub fn from_networks(networks: &[IpNet]) -> Self {
        Self {
            v4: ranges(networks, Family::V4),
            v6: ranges(networks, Family::V6),
        }
    }

    /// Returns true if `network` contains any of them.
    #[must_use]
    pub fn intersects(&self, network: IpNet) -> bool {
        let next = self.first_range_from(network);
        next.is_some_and(|next| next.0 <= range(network).1)
    }

    /// Returns true if they include all of `network`.
    #[must_use]
    pub fn contains(&self, network: IpNet) -> bool {
        let (first, last) = range(network);
        let next = self.first_range_from(network);
        next.is_some_and(|next| next.0 <= first && last <= next.1)
    }

    /// Returns the first range that does not end before `network` begins.
    fn first_range_from(&self, network: IpNet) -> Option<Range> {
        let ranges = self.ranges(family(network));
        let (first, _) = range(network);
        let next = ranges.partition_point(|range| range.1 < first);
        ranges.get(next).copied()
    }

    fn ranges(&self, family: Family) -> &[Range] {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

/// Returns the family of a network.
#[must_use]
pub fn family(network: IpNet) -> Family {
    Family::of(network.addr())
}

/// Reserved IPv4 networks: this network, private use, shared, loopback, link-local, protocol
/// assignments, documentation, relays, benchmarking, multicast, reserved.
const SPECIAL_V4: [&str; 15] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
];

/// Reserved IPv6 networks: before 2000::/3; protocol assignments, documentation, 6to4,
/// documentation; after 2000::/3.
const SPECIAL_V6: [&str; 7] = [
    "::/3",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "4000::/2",
    "8000::/1",
];

static SPECIAL: LazyLock<Addresses> = LazyLock::new(|| {
    let special = SPECIAL_V4.iter().chain(&SPECIAL_V6);
    let networks: Vec<IpNet> = special
        .filter_map(|text| prefix::parse(text).ok())
        .collect();
    Addresses::from_networks(&networks)
});

/// First and last address, as numbers.
type Range = (u128, u128);

fn range(network: IpNet) -> Range {
    let first = match network.network() {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => u128::from(address),
    };
    let host = address_bits(family(network)) - u32::from(network.prefix_len());
    (first, last_address(first, host))
}

/// Returns the addresses of a family as sorted ranges that neither touch nor overlap.
fn ranges(networks: &[IpNet], wanted: Family) -> Vec<Range> {
    let mut ranges: Vec<Range> = networks
        .iter()
        .filter(|network| family(**network) == wanted)
        .map(|network| range(*network))
        .collect();
    ranges.sort_unstable();
    ranges.dedup_by(|next, joined| {
        let touches = next.0 <= joined.1.saturating_add(1);
        if touches {
            joined.1 = joined.1.max(next.1);
        }
        touches
    });
    ranges
}

/// Returns `ranges` without `holes`. Both must be as from [`ranges`].
fn subtract_ranges(ranges: &[Range], mut holes: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    for &(first, last) in ranges {
        // Holes that end before this range do not affect later ranges either.
        let passed = holes.iter().take_while(|hole| hole.1 < first).count();
        holes = holes.get(passed..).unwrap_or_default();
        let mut rest = Some(first);
        for &(from, to) in holes.iter().take_while(|hole| hole.0 <= last) {
            if let Some(first) = rest.filter(|first| *first < from) {
                left.push((first, from - 1));
            }
            rest = to.checked_add(1).filter(|next| *next <= last);
        }
        left.extend(rest.map(|first| (first, last)));
    }
    left
}

/// Splits the addresses from `first` to `last` into the fewest networks: repeatedly takes the
/// largest network that begins at `first` and does not exceed `last`.
fn split(family: Family, mut first: u128, last: u128, into: &mut Vec<IpNet>) {
    let bits = address_bits(family);
    loop {
        let aligned = first.trailing_zeros();
        // The count overflows only if the range is all of IPv6.
        let fitting = (last - first).checked_add(1).map_or(128, u128::ilog2);
        let host = aligned.min(fitting).min(bits);
        into.extend(network(family, first, bits - host));
        match last_address(first, host).checked_add(1) {
            Some(next) if next <= last => first = next,
            _ => return,
        }
    }
}

fn network(family: Family, first: u128, length: u32) -> Option<IpNet> {
    let address: IpAddr = match family {
        Family::V4 => Ipv4Addr::from(u32::try_from(first).ok()?).into(),
        Family::V6 => Ipv6Addr::from(first).into(),
    };
    IpNet::new(address, u8::try_from(length).ok()?).ok()
}

fn address_bits(family: Family) -> u32 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// Returns the last address of the network that begins at `first` and has `host` host bits.
fn last_address(first: u128, host: u32) -> u128 {
    first | 1_u128.checked_shl(host).map_or(u128::MAX, |size| size - 1)
}

#[cfg(test)]
mod tests;
