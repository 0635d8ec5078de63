//! Sets of networks with longest-prefix lookup.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};

use crate::prefix;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use taupe_packet::ip::Family;

/// A set of networks without host bits.
///
/// A lookup costs one hash lookup for each prefix length among the members, so that hundreds of
/// thousands of networks can be checked against each other.
#[derive(Clone, Debug, Default)]
pub struct NetworkSet {
    members: HashSet<IpNet>,
    /// Number of members with each prefix length.
    v4: Vec<usize>,
    v6: Vec<usize>,
}

impl NetworkSet {
    /// Adds a network. Host bits are cleared.
    pub fn insert(&mut self, network: IpNet) {
        let network = network.trunc();
        if self.members.insert(network) {
            let length = usize::from(network.prefix_len());
            let lengths = self.lengths_mut(Family::of(network.addr()));
            if lengths.len() <= length {
                lengths.resize(length + 1, 0);
            }
            if let Some(count) = lengths.get_mut(length) {
                *count += 1;
            }
        }
    }

    /// Removes a network.
    pub fn remove(&mut self, network: &IpNet) {
        if self.members.remove(network) {
            let length = usize::from(network.prefix_len());
            let lengths = self.lengths_mut(Family::of(network.addr()));
            if let Some(count) = lengths.get_mut(length) {
                *count -= 1;
            }
        }
    }

    /// Returns true if the network is a member.
    #[must_use]
    pub fn contains(&self, network: &IpNet) -> bool {
        self.members.contains(network)
    }

    /// Returns the longest member that contains all of `network`.
    #[must_use]
    pub fn holding(&self, network: &IpNet) -> Option<IpNet> {
        let lengths = match Family::of(network.addr()) {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let longest = usize::from(network.prefix_len());
        let used = lengths.iter().enumerate().take(longest + 1).rev();
        used.filter(|(_, count)| **count > 0)
            .filter_map(|(length, _)| prefix::network(network.addr(), u8::try_from(length).ok()?))
            .find(|candidate| self.members.contains(candidate))
    }

    fn lengths_mut(&mut self, family: Family) -> &mut Vec<usize> {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

impl FromIterator<IpNet> for NetworkSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        let mut set = Self::default();
        networks.into_iter().for_each(|network| set.insert(network));
        set
    }
}

/// The network of link-local IPv6 addresses, which every interface has (RFC 4291 §2.5.6).
pub const LINK_LOCAL: IpNet = IpNet::V6(Ipv6Net::new_assert(
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
    64,
));

/// Returns the network that contains only one address.
#[must_use]
pub fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

/// Returns the network of all addresses of a family.
#[must_use]
pub fn everything(family: Family) -> IpNet {
    match family {
        Family::V4 => IpNet::V4(Ipv4Net::default()),
        Family::V6 => IpNet::V6(Ipv6Net::default()),
    }
}

/// Returns the two halves of a network; `None` for a single address.
#[must_use]
pub fn halves(network: &IpNet) -> Option<[IpNet; 2]> {
    let mut halves = network.subnets(network.prefix_len() + 1).ok()?;
    Some([halves.next()?, halves.next()?])
}

#[cfg(test)]
mod tests {
    use super::{NetworkSet, halves};
    use ipnet::IpNet;

    fn net(text: &str) -> IpNet {
        text.parse().expect(text)
    }

    #[test]
    fn the_longest_holder_is_found() {
        let mut set: NetworkSet = [
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "fd00::/8",
            "::1/128",
        ]
        .map(net)
        .into_iter()
        .collect();
        let holder = |set: &NetworkSet, text| set.holding(&net(text)).map(|net| net.to_string());
        let is =
            |found: Option<String>, expected: &str| assert_eq!(found.as_deref(), Some(expected));
        is(holder(&set, "10.1.2.3/32"), "10.1.0.0/16");
        is(holder(&set, "10.1.0.0/16"), "10.1.0.0/16");
        is(holder(&set, "10.0.0.0/15"), "10.0.0.0/8");
        is(holder(&set, "8.0.0.0/7"), "0.0.0.0/0");
        is(holder(&set, "::1/128"), "::1/128");
        assert_eq!(holder(&set, "::/0"), None);
        set.remove(&net("10.1.0.0/16"));
        is(holder(&set, "10.1.2.3/32"), "10.0.0.0/8");
        set.insert(net("10.1.2.3/16"));
        is(holder(&set, "10.1.2.3/32"), "10.1.0.0/16");
    }

    #[test]
    fn a_network_has_two_halves_but_an_address_has_none() {
        let halves = |text| halves(&net(text)).map(|halves| halves.map(|net| net.to_string()));
        assert_eq!(
            halves("192.168.1.0/24"),
            Some(["192.168.1.0/25".into(), "192.168.1.128/25".into()])
        );
        assert_eq!(halves("::/0"), Some(["::/1".into(), "8000::/1".into()]));
        assert_eq!(halves("192.0.2.1/32"), None);
        assert_eq!(halves("::1/128"), None);
    }
}
