//! The probes, and their destinations. No probe goes to a third party: destinations are the machine's
//! own resolvers and routers, and addresses for documentation (RFC 5737, RFC 3849), which go nowhere.

use super::probe::Kind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use taupe_inspect::prove::Uplinks;

/// Destinations that go nowhere.
pub(super) const NOWHERE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
pub(super) const NOWHERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x7a70, 0, 0, 0, 0, 7);

/// The service `discard`.
pub(super) const DISCARD: u16 = 9;

const DNS: u16 = 53;
const STUN: u16 = 3478;
const MDNS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251)), 5353);

/// The address of systemd-resolved's stub.
const STUB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

/// A probe to be sent.
pub(super) struct PlannedProbe {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) destination: Option<SocketAddr>,
    /// Local address or interface, for the kinds that need one.
    pub(super) binding: Option<String>,
    /// Reason why it is not tried.
    pub(super) skipped: Option<String>,
}

/// All probes.
pub(super) struct Plan {
    pub(super) probes: Vec<PlannedProbe>,
}

impl Plan {
    /// `endpoints` are those of the tunnel's device. `has_route` checks that packets of an application
    /// that is not selected could leave.
    pub(super) fn new(
        uplinks: &Uplinks,
        endpoints: &[SocketAddr],
        stun: Option<SocketAddr>,
        mut has_route: impl FnMut(SocketAddr) -> bool,
    ) -> Self {
        let nowhere = SocketAddr::from((NOWHERE_V4, DISCARD));
        let nowhere_v6 = SocketAddr::from((NOWHERE_V6, DISCARD));
        let remote = uplinks.resolvers.iter().filter(|one| !one.is_loopback());
        let routers = uplinks
            .gateways
            .iter()
            .map(|(one, link)| (*one, Some(*link)));
        let resolver = remote.map(|one| (*one, None)).chain(routers).next();
        let main = uplinks.v6.map(|(link, _)| link);
        let resolver = resolver.map(|(one, link)| on_link(one, DNS, link.or(main)));
        let local = uplinks.resolvers.iter().find(|one| one.is_loopback());
        let local = SocketAddr::new(local.copied().unwrap_or(STUB.into()), DNS);
        let stun = stun.unwrap_or((NOWHERE_V4, STUN).into());
        let link = uplinks
            .v4
            .map(|(index, _)| index)
            .or(uplinks.v6.map(|(index, _)| index));
        let interface = uplinks.links.iter().find(|(index, _)| Some(*index) == link);
        let interface = interface.map(|(_, name)| name.clone());
        let address = uplinks.v4.map(|(_, address)| address.to_string());
        let endpoint = endpoints.first();
        let mut probes = vec![
            probe("udp", Kind::Udp, Some(nowhere)),
            probe("tcp", Kind::Tcp, Some(nowhere)),
            probe("udp-ipv6", Kind::Udp, Some(nowhere_v6)),
            probe("dns-udp", Kind::Dns, resolver),
            probe("dns-tcp", Kind::Tcp, resolver),
            probe("dns-local", Kind::Dns, Some(local)),
            PlannedProbe {
                binding: address,
                ..probe("bound-address", Kind::BoundAddress, Some(nowhere))
            },
            PlannedProbe {
                binding: interface.clone(),
                ..probe("bound-interface", Kind::BoundInterface, Some(nowhere))
            },
            probe("stun", Kind::Stun, Some(stun)),
            probe("ping", Kind::Ping, Some(nowhere)),
            probe("mark", Kind::Mark, Some(nowhere)),
            probe("multicast-dns", Kind::Dns, Some(MDNS)),
            // Only the tunnel's own datagrams may leave to the endpoint's address.
            probe(
                "endpoint",
                Kind::Udp,
                endpoint.map(|one| {
                    let mut one = *one;
                    one.set_port(DISCARD);
                    one
                }),
            ),
            PlannedProbe {
                binding: interface,
                ..probe("packet-socket", Kind::PacketSocket, Some(nowhere))
            },
        ];
        for probe in &mut probes {
            let is_bound = matches!(
                probe.kind,
                Kind::BoundAddress | Kind::BoundInterface | Kind::PacketSocket
            );
            probe.skipped = match probe.destination {
                None => Some("there is no such address on this machine".into()),
                Some(to) if !has_route(to) => Some("this machine has no route to it".into()),
                Some(_) if is_bound && probe.binding.is_none() => {
                    Some("this machine has no default route".into())
                }
                Some(_) => None,
            };
        }
        probes.push(PlannedProbe {
            skipped: Some("a probe cannot have been connected before".into()),
            ..probe("earlier-connection", Kind::Tcp, None)
        });
        Self { probes }
    }
}

/// Returns the end of a machine. A link-local address needs the index of the link.
fn on_link(address: IpAddr, port: u16, link: Option<u32>) -> SocketAddr {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, port, 0, link.unwrap_or_default()).into()
        }
        address => SocketAddr::new(address, port),
    }
}

fn probe(name: &'static str, kind: Kind, destination: Option<SocketAddr>) -> PlannedProbe {
    PlannedProbe {
        name,
        kind,
        destination,
        binding: None,
        skipped: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(uplinks: &Uplinks, has_route: impl FnMut(SocketAddr) -> bool) -> Vec<PlannedProbe> {
        let endpoints = ["[2001:db8::9]:51820".parse().unwrap()];
        Plan::new(uplinks, &endpoints, None, has_route).probes
    }

    #[test]
    fn a_probe_without_a_route_is_not_tried() {
        let all = plan(&Uplinks::default(), |to| to.is_ipv6());
        for probe in &all {
            let is_tried = probe.skipped.is_none();
            let expected = probe.destination.is_some_and(|to| to.is_ipv6());
            assert_eq!(is_tried, expected, "{}", probe.name);
        }
        let endpoint = all.iter().find(|one| one.name == "endpoint").unwrap();
        assert_eq!(endpoint.destination, "[2001:db8::9]:9".parse().ok());
    }

    #[test]
    fn a_link_local_router_has_its_link() {
        let uplinks = Uplinks {
            gateways: vec![("fe80::1".parse().unwrap(), 3)],
            ..Uplinks::default()
        };
        let all = plan(&uplinks, |_| true);
        let dns = all.iter().find(|one| one.name == "dns-tcp").unwrap();
        assert_eq!(dns.destination, "[fe80::1%3]:53".parse().ok());
    }
}
