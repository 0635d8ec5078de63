//! The kernel's table of flows, and how room is made in it.
//!
//! The kernel refuses a new flow if its owner already has as many flows as there are free entries.
//! The daemon makes room: it removes flows that have been idle for long. If an owner has been
//! refused a flow, it also removes that owner's unanswered flows and those that have been idle for
//! a minute. It never removes one owner's flows for the sake of another owner.

use std::collections::{HashMap as Counts, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, MapError};

use taupe_nat::flows::{End, Tuple};
use taupe_os_linux::netlink::SocketId;
use taupe_packet::ip::Family;

use super::{collect, ignore_missing, take};
use crate::error::TransparentError;
use crate::pins::Pins;
use crate::state::{FLOWS_MAX, Flow, FlowKey, FlowOwner, OPENED_BY_REMOTE, State};

/// Maximum idle time of a flow that was opened from the tunnel. It exceeds TIME_WAIT, the last
/// state that needs the flow. It is short because remote hosts can open many such flows.
const INBOUND_IDLE_MAX: Duration = Duration::from_secs(90);

/// Minimum idle time before a flow may be removed for another flow of the same owner. A reply or
/// the next packet may still be on its way.
pub(super) const UNANSWERED_IDLE_MIN: Duration = Duration::from_secs(1);
const ANSWERED_IDLE_MIN: Duration = Duration::from_secs(60);

/// Divisor of the number of an owner's flows that are removed at once.
pub(super) const EVICTION_DIVISOR: usize = 4;

/// Seconds after a refusal during which flows count as refused.
const REFUSAL_SECONDS: u64 = 10;

const SECOND: u64 = 1_000_000_000;

/// The table of flows, and the number of flows of each owner.
pub(crate) struct Flows {
    pub(super) flows: HashMap<MapData, FlowKey, Flow>,
    pub(super) owners: HashMap<MapData, FlowOwner, i32>,
    /// Second of the last refusal for which room has been made.
    handled_refusal: u32,
}

impl Flows {
    pub(super) fn take(
        map: &mut impl FnMut(&'static str) -> Result<Map, TransparentError>,
    ) -> Result<Self, TransparentError> {
        Ok(Self {
            flows: take(map, "flows")?,
            owners: take(map, "flow_owners")?,
            handled_refusal: 0,
        })
    }

    /// Removes flows that had no packet for `idle`, and flows opened from the tunnel that had none
    /// for [`INBOUND_IDLE_MAX`]. Returns the number of flows left.
    pub(crate) fn expire(
        &mut self,
        state: &State,
        idle: Duration,
    ) -> Result<usize, TransparentError> {
        let now = monotonic();
        self.remove(state, |flows| {
            let is_old = |flow: &Flow| {
                let life = match flow.owner.opener {
                    OPENED_BY_REMOTE => idle.min(INBOUND_IDLE_MAX),
                    _ => idle,
                };
                flow.idle(now) > life
            };
            let old = flows.iter().filter(|(_, flow)| is_old(flow));
            Ok(old.map(|(key, _)| *key).collect())
        })
    }

    /// If flows have been refused since the last call, removes some flows of the owners that were
    /// refused. `forget` tells the translator before the kernel's entries go. Otherwise the
    /// translator would deliver a reply for a flow that the kernel no longer knows, and the
    /// kernel's own response without a socket (a reset, for example) would leave outside the
    /// tunnel.
    pub(crate) fn make_room(
        &mut self,
        state: &State,
        forget: impl FnOnce(&[FlowKey]) -> Result<(), TransparentError>,
    ) -> Result<(), TransparentError> {
        let refused = state.flow_refused_at.load(Ordering::Relaxed);
        if refused == self.handled_refusal {
            return Ok(());
        }
        self.handled_refusal = refused;
        let now = monotonic();
        self.remove(state, |flows| {
            let evicted = evicted(flows, FLOWS_MAX, now);
            forget(&evicted)?;
            Ok(evicted)
        })
        .map(drop)
    }

    /// Returns true if a flow has been refused in the last [`REFUSAL_SECONDS`] seconds.
    pub(crate) fn are_flows_refused(state: &State) -> bool {
        let refused = u64::from(state.flow_refused_at.load(Ordering::Relaxed));
        refused != 0 && monotonic() / SECOND <= refused + REFUSAL_SECONDS
    }

    /// Removes the flows that `which` selects from the whole list, and counts the rest again, since
    /// the kernel may have opened or ended flows meanwhile. Returns the number of flows left.
    fn remove(
        &mut self,
        state: &State,
        which: impl FnOnce(&[(FlowKey, Flow)]) -> Result<Vec<FlowKey>, TransparentError>,
    ) -> Result<usize, TransparentError> {
        let flows = self.list()?;
        let removed = which(&flows)?;
        for key in &removed {
            ignore_missing(self.flows.remove(key))
                .map_err(TransparentError::map("removing a flow"))?;
        }
        let are_gone: HashSet<&FlowKey> = removed.iter().collect();
        let mut counts: Counts<FlowOwner, i32> = Counts::new();
        for (_, flow) in flows.iter().filter(|(key, _)| !are_gone.contains(key)) {
            *counts.entry(flow.owner).or_default() += 1;
        }
        let left: i32 = counts.values().sum();
        for owner in collect(self.owners.keys())? {
            let counted = match counts.get(&owner) {
                Some(count) => self.owners.insert(owner, count, 0),
                None => ignore_missing(self.owners.remove(&owner)),
            };
            counted.map_err(TransparentError::map("counting flows"))?;
        }
        state.flow_count.store(left, Ordering::Relaxed);
        Ok(usize::try_from(left).unwrap_or(0))
    }

    fn list(&self) -> Result<Vec<(FlowKey, Flow)>, TransparentError> {
        let mut flows = Counts::new();
        // A listing restarts when the kernel removes an entry meanwhile.
        for entry in self.flows.iter().take(2 * FLOWS_MAX) {
            match entry {
                Ok((key, flow)) => drop(flows.insert(key, flow)),
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(TransparentError::map("listing flows")(error)),
            }
        }
        Ok(flows.into_iter().collect())
    }
}

/// Opens the pinned flows, of this version or another one.
///
/// # Errors
///
/// [`TransparentError::Map`]: there are none, or their layout is another one.
pub(crate) fn open_pinned_flows(
    pins: &Pins,
) -> Result<HashMap<MapData, FlowKey, Flow>, TransparentError> {
    let map = MapData::from_pin(pins.map("flows")).and_then(Map::from_map_data);
    let flows = map.and_then(HashMap::try_from);
    flows.map_err(TransparentError::map("opening the pinned flows"))
}

/// The keys of flows that are pinned.
pub(crate) struct PinnedFlows(HashSet<FlowKey>);

impl PinnedFlows {
    /// Reads them, of this version or another one.
    ///
    /// # Errors
    ///
    /// As [`open_pinned_flows`].
    pub(crate) fn read(pins: &Pins) -> Result<Self, TransparentError> {
        let flows = open_pinned_flows(pins)?;
        let listed = collect(flows.keys().take(2 * FLOWS_MAX))?;
        Ok(Self(listed.into_iter().collect()))
    }

    pub(crate) fn has_protocol(&self, protocol: u8) -> bool {
        let mut flows = self.0.iter();
        flows.any(|flow| flow.protocol == u32::from(protocol))
    }

    /// Returns true if a socket may have sent the packets of a flow. An unconnected UDP socket may have
    /// sent to any remote address, and by any local address unless it is bound to one.
    pub(crate) fn has_flow_of(&self, socket: &SocketId) -> bool {
        let wanted = FlowKey::of_socket(socket);
        let is_connected = wanted.remote_port != [0; 2];
        if is_connected || i32::from(socket.protocol) == libc::IPPROTO_TCP {
            return self.0.contains(&wanted);
        }
        let is_bound = !Ipv6Addr::from(wanted.local).to_canonical().is_unspecified();
        self.0.iter().any(|flow| {
            (flow.protocol, flow.local_port) == (wanted.protocol, wanted.local_port)
                && (!is_bound || flow.local == wanted.local)
        })
    }
}

/// Selects the flows to remove: a share of each owner that has about as many flows as there are
/// free entries of `capacity`. Unanswered flows come first, then those that have been idle longest.
pub(super) fn evicted(flows: &[(FlowKey, Flow)], capacity: usize, now: u64) -> Vec<FlowKey> {
    let free = capacity.saturating_sub(flows.len());
    let mut owners: Counts<FlowOwner, Vec<(FlowKey, Flow)>> = Counts::new();
    for (key, flow) in flows {
        owners.entry(flow.owner).or_default().push((*key, *flow));
    }
    let mut evicted = Vec::new();
    for mut flows in owners.into_values() {
        // The kernel's counts and this list may differ slightly.
        if flows.len() < free - free / 8 {
            continue;
        }
        let max_processes = flows.len().div_ceil(EVICTION_DIVISOR);
        flows.retain(|(_, flow)| {
            let life = match flow.is_answered {
                0 => UNANSWERED_IDLE_MIN,
                _ => ANSWERED_IDLE_MIN,
            };
            flow.idle(now) >= life
        });
        flows.sort_unstable_by_key(|(_, flow)| (flow.is_answered, flow.last_seen));
        evicted.extend(flows.into_iter().take(max_processes).map(|(key, _)| key));
    }
    evicted
}

impl FlowKey {
    /// Returns the key of a socket's flow, without address translation.
    pub(crate) fn of_socket(socket: &SocketId) -> Self {
        let [local, remote] = socket
            .addresses
            .map(|address| match (socket.family, address) {
                (Family::V4, [a, b, c, d, ..]) => {
                    Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets()
                }
                (Family::V6, address) => address,
            });
        let [local_port, remote_port] = socket.ports.map(u16::to_be_bytes);
        Self {
            remote,
            local,
            local_port,
            remote_port,
            protocol: u32::from(socket.protocol),
        }
    }

    pub(crate) fn tuple(&self) -> Tuple {
        let end = |address: [u8; 16], port: [u8; 2]| {
            let ip = match Ipv6Addr::from(address).to_ipv4_mapped() {
                Some(v4) => u32::from(v4).into(),
                None => u128::from_be_bytes(address),
            };
            End {
                ip,
                port: u16::from_be_bytes(port),
            }
        };
        let is_v4 = Ipv6Addr::from(self.local).to_ipv4_mapped().is_some();
        Tuple {
            family: if is_v4 { Family::V4 } else { Family::V6 },
            // The IP header's protocol field has eight bits.
            protocol: self.protocol as u8,
            local: end(self.local, self.local_port),
            remote: end(self.remote, self.remote_port),
        }
    }
}

impl Flow {
    pub(super) fn idle(&self, now: u64) -> Duration {
        Duration::from_nanos(now.saturating_sub(self.last_seen))
    }
}

/// Returns the time of the clock by which the eBPF programs date flows, in nanoseconds.
fn monotonic() -> u64 {
    u64::try_from(taupe_runtime::system::kernel_monotonic().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Application;

    const NOW: u64 = 1000 * SECOND;

    /// Returns `count` flows of one application that have been idle for `idle` seconds.
    fn of(inode: u64, count: u32, is_answered: u32, idle: u64) -> Vec<(FlowKey, Flow)> {
        let flow = |number: u32| {
            let mut remote = [0; 16];
            remote[..4].copy_from_slice(&number.to_ne_bytes());
            remote[4..12].copy_from_slice(&inode.to_ne_bytes());
            remote[12] = is_answered as u8;
            remote[13] = idle as u8;
            let key = FlowKey {
                remote,
                local: [0; 16],
                local_port: [0; 2],
                remote_port: [0; 2],
                protocol: 17,
            };
            let owner = FlowOwner {
                opener: 0,
                interface: 0,
                application: Application {
                    inode,
                    device: 1,
                    user: 0,
                },
            };
            let flow = Flow {
                last_seen: NOW - idle * SECOND,
                ifindex: 2,
                is_answered,
                owner,
            };
            (key, flow)
        };
        (0..count).map(flow).collect()
    }

    fn inode(key: &FlowKey) -> u64 {
        u64::from_ne_bytes(key.remote[4..12].try_into().unwrap())
    }

    #[test]
    fn an_unconnected_socket_may_have_any_flow_of_its_port() {
        let mapped = |address: [u8; 4]| Ipv4Addr::from(address).to_ipv6_mapped().octets();
        let flow = FlowKey {
            remote: mapped([198, 51, 100, 1]),
            local: mapped([192, 0, 2, 2]),
            local_port: 4711_u16.to_be_bytes(),
            remote_port: 80_u16.to_be_bytes(),
            protocol: libc::IPPROTO_UDP as u32,
        };
        let flows = PinnedFlows(HashSet::from([flow]));
        let has = |protocol: i32, local: [u8; 4], remote: [u8; 4], ports| {
            let addresses = [local, remote].map(|[a, b, c, d]| {
                let mut address = [0; 16];
                address[..4].copy_from_slice(&[a, b, c, d]);
                address
            });
            flows.has_flow_of(&SocketId {
                protocol: protocol as u8,
                family: Family::V4,
                addresses,
                ports,
                interface: 0,
                cookie: 7,
            })
        };
        let (own, other, any) = ([192, 0, 2, 2], [192, 0, 2, 3], [0; 4]);
        let remote = [198, 51, 100, 1];
        let udp = libc::IPPROTO_UDP;
        assert!(has(udp, own, remote, [4711, 80]));
        assert!(!has(udp, own, remote, [4711, 81]));
        assert!(has(udp, own, any, [4711, 0]));
        assert!(has(udp, any, any, [4711, 0]));
        assert!(!has(udp, other, any, [4711, 0]));
        assert!(!has(udp, any, any, [4712, 0]));
        assert!(!has(libc::IPPROTO_TCP, any, any, [4711, 0]));
        assert!(!has(libc::IPPROTO_TCP, own, remote, [4711, 80]));
        assert!(flows.has_protocol(17) && !flows.has_protocol(6));
        // A socket of IPv6 that also has IPv4.
        assert!(flows.has_flow_of(&SocketId {
            protocol: udp as u8,
            family: Family::V6,
            addresses: [[0; 16]; 2],
            ports: [4711, 0],
            interface: 0,
            cookie: 7,
        }));
    }

    #[test]
    fn flows_of_other_owners_are_not_evicted() {
        let half = FLOWS_MAX as u32 / 2;
        let flows = [of(1, half, 0, 5), of(2, 100, 0, 50), of(3, 100, 1, 200)].concat();
        let evicted = evicted(&flows, FLOWS_MAX, NOW);
        assert_eq!(evicted.len(), FLOWS_MAX / 8);
        assert!(evicted.iter().all(|key| inode(key) == 1));
    }

    #[test]
    fn unanswered_flows_are_evicted_first() {
        let quarter = FLOWS_MAX as u32 / 4;
        let answered = [of(1, quarter, 1, 90), of(1, 100, 1, 59)].concat();
        let flows = [answered.clone(), of(1, 10, 0, 3), of(1, quarter, 0, 0)].concat();
        let ignore_missing = evicted(&flows, FLOWS_MAX, NOW);
        assert_eq!(ignore_missing.len(), flows.len().div_ceil(EVICTION_DIVISOR));
        assert_eq!(
            ignore_missing
                .iter()
                .filter(|key| key.remote[12] == 0)
                .count(),
            10
        );
        assert!(ignore_missing[..10].iter().all(|key| key.remote[12] == 0));
        assert!(ignore_missing[10..].iter().all(|key| key.remote[13] == 90));
    }

    #[test]
    fn owners_below_their_share_keep_all_flows() {
        let third = FLOWS_MAX as u32 / 3;
        assert_eq!(evicted(&of(1, third, 0, 5), FLOWS_MAX, NOW), []);
        let two = [of(1, third, 0, 5), of(2, third, 0, 5)].concat();
        let ignore_missing = evicted(&two, FLOWS_MAX, NOW);
        assert!(
            [1, 2]
                .iter()
                .all(|owner| ignore_missing.iter().any(|key| inode(key) == *owner))
        );
    }
}
