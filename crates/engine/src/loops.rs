//! Detection of routing loops: a route leads a device's own datagrams back into the device.
//!
//! A loop over one device shows in the session: the TUN delivers a datagram that this device has
//! sealed for a peer, and routes it to that very peer. A loop over several devices of this machine
//! does not, because each device sees only datagrams that another one has sealed. There the hop
//! limit counts the tunnels around a packet:
//!
//! ```text
//! application ─► wg0 ─ 64 ─► wg1 ─ 63 ─► wg0 ─ 62 ─► wg1 ─ 61 ─► wg0 ✗
//! ```
//!
//! Only datagrams that enter another tunnel on this machine carry the count, and that tunnel
//! encrypts them. Datagrams that leave by any other interface have the system's default hop limit,
//! so an observer sees neither the count nor the hop limit of the packet inside.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use taupe_os_linux::netlink::{Link, Medium, NetlinkError, NetworkReader, RouteQuery};
use taupe_packet::ip::Packet;
use taupe_protocol::Peer;
use taupe_runtime::nested::NestedPacket;
use tracing::{debug, warn};

use crate::lane::Lane;
use crate::shared::Shared;

/// The hop limit at which the count of tunnels begins. The system's default may differ.
const OUTERMOST: u8 = 64;

/// The largest number of tunnels of this machine around a datagram, besides its own. The kernel's
/// WireGuard has the same limit (`dev_recursion_level`).
const MAX_DEPTH: u8 = 3;

/// Endpoints whose routes are cached, at most.
const MAX_ENDPOINTS: usize = 1024;

#[derive(Default)]
pub(crate) struct LoopDetector {
    network: Option<Network>,
    has_warned: bool,
}

/// Verdict on a packet that is routed to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The packet is in a loop: drop it.
    Loop,
    /// Send the packet in a datagram with the system's hop limit.
    SystemHopLimit,
    /// Send the packet in a datagram with this hop limit, which counts tunnels.
    HopLimit(u8),
}

impl LoopDetector {
    pub(crate) fn check(&mut self, lane: &Lane, packet: &Packet<'_>, peer: &Peer) -> Verdict {
        let Some(inner) = NestedPacket::parse(packet) else {
            return Verdict::SystemHopLimit;
        };
        let Some(endpoint) = peer.endpoint() else {
            return Verdict::SystemHopLimit;
        };
        let own_port = lane.sockets.load().port();
        if inner.is_sealed_for(own_port, peer, endpoint.remote) {
            self.warn(
                endpoint.remote,
                "a route leads to a peer's endpoint through the tunnel to that peer",
            );
            return Verdict::Loop;
        }
        let shared = &lane.shared;
        let Some(network) = self.network(shared) else {
            return Verdict::SystemHopLimit;
        };
        let counts = network.addresses.contains(&inner.source)
            && network.leads_into_tunnel(shared, endpoint.remote.ip());
        if !counts {
            return Verdict::SystemHopLimit;
        }
        let verdict = nested(inner.hop_limit);
        if verdict == Verdict::Loop {
            self.warn(
                endpoint.remote,
                "the endpoints of several tunnels are routed through each other",
            );
        }
        verdict
    }

    /// Returns this machine's network, which it reads again after a change. `None` if that fails.
    fn network(&mut self, shared: &Shared) -> Option<&mut Network> {
        if shared.underlay.is_other_namespace {
            return None;
        }
        let changes = shared.underlay.changes.count();
        if self.network.as_ref().is_none_or(|it| it.changes != changes) {
            let network = Network::read(&shared.underlay.network, changes);
            let network = network.inspect_err(|error| debug!(%error, "loops go unrecognised"));
            self.network = network.ok();
        }
        self.network.as_mut()
    }

    fn warn(&mut self, endpoint: SocketAddr, what: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            warn!(
                %endpoint,
                "{what}: set a FwMark and a routing rule for it, or add a route to the endpoint \
                 outside the tunnel"
            );
        }
    }
}

/// Counts one more tunnel around a datagram. Too many tunnels are a loop.
fn nested(hop_limit: u8) -> Verdict {
    let depth = OUTERMOST.checked_sub(hop_limit);
    match depth.filter(|depth| *depth <= MAX_DEPTH) {
        Some(MAX_DEPTH) => Verdict::Loop,
        Some(depth) => Verdict::HopLimit(OUTERMOST - depth - 1),
        // The default hop limit of another system, or a packet that has been forwarded.
        None => Verdict::HopLimit(OUTERMOST - 1),
    }
}

/// Snapshot of this machine's network.
struct Network {
    changes: u64,
    addresses: HashSet<IpAddr>,
    /// Interface indices of tunnels.
    tunnels: HashSet<u32>,
    /// For each known endpoint, true if its datagrams enter a tunnel.
    endpoints: HashMap<IpAddr, bool>,
}

impl Network {
    fn read(system: &NetworkReader, changes: u64) -> Result<Self, NetlinkError> {
        let addresses = system.addresses()?;
        let links = system.links()?;
        let tunnels = links.iter().filter(|link| is_tunnel(link));
        Ok(Self {
            changes,
            addresses: addresses.iter().map(|it| it.network.addr()).collect(),
            tunnels: tunnels.map(|link| link.index).collect(),
            endpoints: HashMap::new(),
        })
    }

    /// Checks whether datagrams to an endpoint enter a tunnel of this machine.
    fn leads_into_tunnel(&mut self, shared: &Shared, endpoint: IpAddr) -> bool {
        if let Some(known) = self.endpoints.get(&endpoint) {
            return *known;
        }
        let underlay = &shared.underlay;
        let query = RouteQuery::to(endpoint, underlay.changes.mark());
        let route = underlay.network.route(&query);
        let leads = route.is_ok_and(|route| self.tunnels.contains(&route.interface));
        if self.endpoints.len() >= MAX_ENDPOINTS {
            self.endpoints.clear();
        }
        self.endpoints.insert(endpoint, leads);
        leads
    }
}

/// The medium of links without a header (`ARPHRD_NONE`).
const NO_HEADER: Medium = Medium::Other(0xfffe);

/// Checks whether a link is a TUN device or the kernel's WireGuard. Mobile broadband
/// (`qmi_wwan` in raw IP mode) has no link header either, but is no tunnel: observers would see
/// the count there.
fn is_tunnel(link: &Link) -> bool {
    link.medium == NO_HEADER && matches!(link.kind.as_deref(), Some("tun" | "wireguard"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_passes_three_tunnels_and_not_a_fourth() {
        for (hops, expected) in [(64, 63), (63, 62), (62, 61)] {
            assert_eq!(nested(hops), Verdict::HopLimit(expected));
        }
        assert_eq!(nested(61), Verdict::Loop);
        // Other defaults, or a packet that has been forwarded many times.
        for hops in [1, 32, 60, 65, 128, 255] {
            assert_eq!(nested(hops), Verdict::HopLimit(63), "{hops}");
        }
    }

    #[test]
    fn mobile_broadband_and_tap_interfaces_are_not_tunnels() {
        let link = |kind: Option<&str>, medium| Link {
            index: 1,
            name: "any".to_owned(),
            up: true,
            mtu: 1500,
            kind: kind.map(str::to_owned),
            medium,
            controller: None,
        };
        assert!(is_tunnel(&link(Some("tun"), NO_HEADER)));
        assert!(is_tunnel(&link(Some("wireguard"), NO_HEADER)));
        assert!(!is_tunnel(&link(None, NO_HEADER)), "qmi_wwan");
        assert!(
            !is_tunnel(&link(Some("tun"), Medium::Ethernet([2; 6]))),
            "TAP"
        );
    }
}
