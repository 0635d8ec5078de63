//! Routing loops: datagrams of a device that a route leads back into it.
//!
//! The session shows a loop over one device: a datagram that this device has sealed for a peer is
//! routed to that very peer. It does not show a loop over several devices of this machine, where
//! each has its peer behind the next: each device sees only datagrams that the others have
//! sealed. There the hop limit counts how many tunnels a packet is in:
//!
//! ```text
//! application ─► wg0 ─ 64 ─► wg1 ─ 63 ─► wg0 ─ 62 ─► wg1 ─ 61 ─► wg0 ✗
//! ```
//!
//! Only datagrams that enter another tunnel on this machine have the count, and that tunnel
//! encrypts them. Datagrams that leave by any other interface have the system's own hop limit, so
//! that an observer sees neither the count nor the hop limit of a packet inside.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use taupe_os_linux::netlink::{Link, Medium, System, SystemError};
use taupe_protocol::Peer;
use taupe_runtime::nested::NestedPacket;
use tracing::{debug, warn};

use crate::shared::Shared;

/// The hop limit at which the count of tunnels begins. The system's own may be another.
const OUTERMOST: u8 = 64;

/// Tunnels of this machine that a datagram may be in besides its own. The kernel's WireGuard
/// takes a packet through as many devices (`dev_recursion_level`).
const MAX_DEPTH: u8 = 3;

/// Endpoints whose routes are remembered, at most.
const MAX_ENDPOINTS: usize = 1024;

/// Recognises routing loops.
#[derive(Default)]
pub(crate) struct Loops {
    network: Option<Network>,
    has_warned: bool,
}

/// Verdict on a packet that is routed to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The packet goes in a loop: drop it.
    Loop,
    /// Carry the packet in a datagram with the system's hop limit.
    SystemHopLimit,
    /// Carry the packet in a datagram with this hop limit, which counts tunnels.
    HopLimit(u8),
}

impl Loops {
    /// Checks a packet that is routed to `peer`.
    pub(crate) fn check(&mut self, shared: &Shared, packet: &[u8], peer: &Peer) -> Verdict {
        let Some(inner) = NestedPacket::parse(packet) else {
            return Verdict::SystemHopLimit;
        };
        let Some(endpoint) = peer.endpoint() else {
            return Verdict::SystemHopLimit;
        };
        let own_port = shared.sockets.load().port();
        if inner.is_sealed_for(own_port, peer, endpoint.remote) {
            self.warn(
                endpoint.remote,
                "a route leads to a peer's endpoint through the tunnel to that peer",
            );
            return Verdict::Loop;
        }
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

    /// Returns this machine's network, read anew if it has changed. `None` if it cannot be read.
    fn network(&mut self, shared: &Shared) -> Option<&mut Network> {
        if shared.surroundings.is_elsewhere {
            return None;
        }
        let changes = shared.surroundings.changes();
        if self.network.as_ref().is_none_or(|it| it.changes != changes) {
            let network = Network::look(changes);
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

/// Counts one more tunnel around a datagram. It is in a loop if it is in too many already.
fn nested(hop_limit: u8) -> Verdict {
    let depth = OUTERMOST.checked_sub(hop_limit);
    match depth.filter(|depth| *depth <= MAX_DEPTH) {
        Some(MAX_DEPTH) => Verdict::Loop,
        Some(depth) => Verdict::HopLimit(OUTERMOST - depth - 1),
        // The system's own hop limit is another.
        None => Verdict::HopLimit(OUTERMOST - 1),
    }
}

/// This machine's network after its last change.
struct Network {
    system: System,
    changes: u64,
    addresses: HashSet<IpAddr>,
    /// The indices of interfaces of tunnels.
    tunnels: HashSet<u32>,
    endpoints: HashMap<IpAddr, bool>,
}

impl Network {
    fn look(changes: u64) -> Result<Self, SystemError> {
        let mut system = System::open()?;
        let addresses = system.addresses()?;
        let links = system.links()?;
        let tunnels = links.iter().filter(|link| is_tunnel(link));
        Ok(Self {
            changes,
            addresses: addresses.iter().map(|it| it.network.addr()).collect(),
            tunnels: tunnels.map(|link| link.index).collect(),
            endpoints: HashMap::new(),
            system,
        })
    }

    /// Checks whether datagrams to an endpoint leave by a tunnel of this machine.
    fn leads_into_tunnel(&mut self, shared: &Shared, endpoint: IpAddr) -> bool {
        if let Some(known) = self.endpoints.get(&endpoint) {
            return *known;
        }
        let mark = shared.surroundings.mark.load(Ordering::Relaxed);
        let route = self.system.route_to(endpoint, mark);
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

/// Checks whether a link is a TUN device or the kernel's WireGuard. Mobile broadband has no
/// header either (`qmi_wwan` in raw IP mode), but there observers would see the count.
fn is_tunnel(link: &Link) -> bool {
    link.medium == NO_HEADER && matches!(link.kind.as_deref(), Some("tun" | "wireguard"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tunnel_counts_and_the_fourth_within_others_is_one_too_many() {
        for (hops, expected) in [(64, 63), (63, 62), (62, 61)] {
            assert_eq!(nested(hops), Verdict::HopLimit(expected));
        }
        assert_eq!(nested(61), Verdict::Loop);
        // Systems with another default, or a packet that has come far.
        for hops in [1, 32, 60, 65, 128, 255] {
            assert_eq!(nested(hops), Verdict::HopLimit(63), "{hops}");
        }
    }

    #[test]
    fn mobile_broadband_is_no_tunnel() {
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
