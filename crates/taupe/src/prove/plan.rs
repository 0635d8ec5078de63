//! The probes, and their destinations. No probe goes to a third party: destinations are the machine's
//! own resolvers and routers, and addresses for documentation (RFC 5737, RFC 3849), which go nowhere.

use super::probe::Kind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use taupe_inspect::prove::{ProofTarget, Uplinks};

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
    pub(super) fn new(target: &ProofTarget, uplinks: &Uplinks, stun: Option<SocketAddr>) -> Self {
        let nowhere = SocketAddr::from((NOWHERE_V4, DISCARD));
        let nowhere_v6 = SocketAddr::from((NOWHERE_V6, DISCARD));
        let remote = uplinks.resolvers.iter().filter(|one| !one.is_loopback());
        let resolver = remote.chain(&uplinks.gateways).next();
        let resolver = resolver.map(|one| SocketAddr::new(*one, DNS));
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
        let endpoint = target.endpoints().into_iter().find(SocketAddr::is_ipv4);
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
                endpoint.map(|one| SocketAddr::new(one.ip(), DISCARD)),
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
            let has_route = match probe.destination {
                Some(SocketAddr::V6(_)) => uplinks.v6.is_some(),
                _ => true,
            };
            probe.skipped = match probe.destination {
                None => Some("there is no such address on this machine".into()),
                Some(_) if !has_route => Some("this machine has no IPv6 default route".into()),
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

fn probe(name: &'static str, kind: Kind, destination: Option<SocketAddr>) -> PlannedProbe {
    PlannedProbe {
        name,
        kind,
        destination,
        binding: None,
        skipped: None,
    }
}
