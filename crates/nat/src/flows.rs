//! The table of flows whose addresses are translated.
//!
//! A flow has two tuples: the *inner* one, which its application sees, and the *outer* one, which
//! the tunnel sees. The table finds it by either in constant time. A flow keeps its local port
//! unless another flow has that port. If the daemon restarts, the next packets therefore restore
//! the table as it was.
//!
//! A sender in the tunnel is treated as an attacker. Flows opened from the tunnel have a bounded
//! share of the table, expire within seconds unless an application answers, and displace no flow
//! that an application has opened.

#![forbid(unsafe_code)]

mod idle;

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::HashTable;
use taupe_packet::ip::{self, Family};
use taupe_protocol::time::Instant;

pub use idle::FlowState;
use idle::{Link, List, NONE};

use crate::tcp;

/// Default capacity of a table, in flows.
pub const CAPACITY: usize = 65_536;

/// Flows opened from the tunnel may fill the capacity divided by this number.
const PEER_SHARE: usize = 2;
/// Unanswered flows from the tunnel may fill the capacity divided by this number.
const UNANSWERED_SHARE: usize = 8;
/// Maximum number of expired flows that are removed when a flow is opened. It is more than one, so
/// that a backlog of expired flows shrinks.
const EXPIRED_AT_ONCE: usize = 4;
/// Ports for a flow whose own port is taken (RFC 6335 section 6: dynamic ports).
const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Number of these ports that are tried.
const TRIED_PORTS: u16 = 128;

const DNS_PORT: u16 = 53;

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct End {
    /// The address as a number; for IPv4 in the low 32 bits.
    pub ip: u128,
    /// The port. In an ICMP query the local end has the query's identifier, and the remote end 0. In
    /// protocols without ports it is 0.
    pub port: u16,
}

/// A flow as one side of the translation sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tuple {
    /// The address family.
    pub family: Family,
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The application's end.
    pub local: End,
    /// The remote end.
    pub remote: End,
}

impl Tuple {
    /// Returns true if the flow carries DNS queries.
    pub fn is_dns(&self) -> bool {
        self.remote.port == DNS_PORT && matches!(self.protocol, ip::UDP | ip::TCP)
    }

    fn hash(&self, state: &RandomState) -> u64 {
        let mut hasher = state.build_hasher();
        let kind = u8::from(self.family == Family::V6);
        let ports = u32::from(self.local.port) << 16 | u32::from(self.remote.port);
        match self.family {
            Family::V4 => {
                let ips = (self.local.ip as u64) << 32 | self.remote.ip as u64;
                hasher.write_u64(ips);
            }
            Family::V6 => {
                hasher.write_u128(self.local.ip);
                hasher.write_u128(self.remote.ip);
            }
        }
        hasher.write_u64(u64::from(ports) << 16 | u64::from(self.protocol) << 8 | u64::from(kind));
        hasher.finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From an application into the tunnel.
    Out,
    /// From the tunnel to an application.
    In,
}

/// The side that sent a flow's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    Application,
    /// A host behind the tunnel, not the WireGuard peer itself.
    Peer,
}

/// Flows that the kernel's table is about to remove, as their applications see them.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExpiringFlows(pub Vec<Tuple>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The table is full of flows that must not be displaced.
    Full,
    /// The share of flows from the tunnel is used up.
    PeerShare,
    /// No port is free, or the application already uses this inner tuple in another flow.
    Port,
}

/// Payload bytes of a UDP flow, which the kernel does not count. The two directions
/// may be counted by different threads.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: Count,
    pub(crate) received: Count,
}

/// A counter in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A UDP flow as its application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramFlow {
    /// The application's end.
    pub local: SocketAddr,
    /// The remote end.
    pub remote: SocketAddr,
    /// Payload bytes sent and received. Later fragments of outgoing packets are not counted.
    pub bytes: [u64; 2],
}

#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) inner: Tuple,
    pub(crate) outer: Tuple,
    /// `None` unless UDP.
    traffic: Option<Arc<Traffic>>,
    opener: Opener,
    seen: Seen,
    link: Link,
}

impl Flow {
    pub(crate) fn state(&self) -> FlowState {
        self.link.state
    }

    pub(crate) fn traffic(&self) -> Option<&Arc<Traffic>> {
        self.traffic.as_ref()
    }

    fn datagrams(&self) -> Option<DatagramFlow> {
        let traffic = self.traffic.as_ref()?;
        let end = |end: End| {
            let address = match self.inner.family {
                Family::V4 => IpAddr::V4(Ipv4Addr::from(end.ip as u32)),
                Family::V6 => IpAddr::V6(Ipv6Addr::from(end.ip)),
            };
            SocketAddr::new(address, end.port)
        };
        Some(DatagramFlow {
            local: end(self.inner.local),
            remote: end(self.inner.remote),
            bytes: [traffic.sent.get(), traffic.received.get()],
        })
    }

    /// Returns true if the flow carries DNS queries of an application.
    pub(crate) fn is_dns(&self) -> bool {
        self.opener == Opener::Application && self.inner.is_dns()
    }
}

/// Packets seen in a flow, by direction and TCP flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// True after an outgoing packet; for TCP, after one with ACK.
    out: bool,
    /// The same for incoming packets.
    incoming: bool,
    fin_out: bool,
    fin_in: bool,
    reset: bool,
}

impl Seen {
    fn closing(self) -> bool {
        self.reset || (self.fin_out && self.fin_in)
    }

    fn state(self, flow: &Tuple, opener: Opener) -> FlowState {
        let both = self.out && self.incoming;
        match flow.protocol {
            _ if opener == Opener::Peer && !self.out => FlowState::Unanswered,
            ip::TCP if both && !self.closing() => FlowState::Established,
            ip::TCP => FlowState::Transitory,
            ip::UDP if opener == Opener::Peer => FlowState::UdpFromPeer,
            ip::UDP if flow.remote.port == DNS_PORT => FlowState::Dns,
            ip::UDP if both => FlowState::Udp,
            ip::UDP => FlowState::UdpUnanswered,
            ip::ICMP | ip::ICMPV6 => FlowState::Icmp,
            _ => FlowState::Other,
        }
    }
}

/// A flow's position in the table, valid until the generation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index(u32);

/// The table of flows; see the module.
#[derive(Debug)]
pub(crate) struct Table {
    capacity: usize,
    slots: Vec<Option<Flow>>,
    free: Vec<u32>,
    inner: HashTable<u32>,
    outer: HashTable<u32>,
    hashing: RandomState,
    lists: [List; FlowState::COUNT],
    opened_by_peers: usize,
    next_port: u16,
    generation: Arc<AtomicU64>,
}

impl Table {
    /// Creates a table of at most `capacity` flows. `generation` changes whenever cached
    /// information about a flow may have become wrong.
    pub(crate) fn new(capacity: usize, generation: Arc<AtomicU64>) -> Self {
        Self {
            capacity: capacity.min(1 << 24),
            slots: Vec::new(),
            free: Vec::new(),
            inner: HashTable::new(),
            outer: HashTable::new(),
            hashing: RandomState::new(),
            lists: [List::EMPTY; FlowState::COUNT],
            opened_by_peers: 0,
            next_port: *DYNAMIC_PORTS.start(),
            generation,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the UDP flows among `count` slots, beginning with slot `start`. Returns `None` if
    /// `start` is behind the last slot.
    pub(crate) fn datagrams(&self, start: usize, count: usize) -> Option<Vec<DatagramFlow>> {
        let rest = self.slots.get(start..).filter(|rest| !rest.is_empty())?;
        let flows = rest.iter().take(count).flatten();
        Some(flows.filter_map(Flow::datagrams).collect())
    }

    pub(crate) fn flow(&self, index: Index) -> &Flow {
        flow(&self.slots, index.0)
    }

    pub(crate) fn find_inner(&mut self, now: Instant, tuple: &Tuple) -> Option<Index> {
        let hash = tuple.hash(&self.hashing);
        let slots = &self.slots;
        let index = *(self.inner).find(hash, |&index| flow(slots, index).inner == *tuple)?;
        self.unless_expired(now, index)
    }

    pub(crate) fn find_outer(&mut self, now: Instant, tuple: &Tuple) -> Option<Index> {
        let hash = tuple.hash(&self.hashing);
        let slots = &self.slots;
        let index = *(self.outer).find(hash, |&index| flow(slots, index).outer == *tuple)?;
        self.unless_expired(now, index)
    }

    fn unless_expired(&mut self, now: Instant, index: u32) -> Option<Index> {
        if flow(&self.slots, index).link.expired(now) {
            self.remove(Index(index));
            return None;
        }
        Some(Index(index))
    }

    pub(crate) fn forget(&mut self, tuple: &Tuple) {
        let hash = tuple.hash(&self.hashing);
        let slots = &self.slots;
        let found = (self.inner).find(hash, |&index| flow(slots, index).inner == *tuple);
        if let Some(&index) = found {
            self.remove(Index(index));
        }
    }

    /// Opens a flow that is not in the table: the caller has looked for it, with
    /// [`Self::find_inner`] if an application opens it, and otherwise with [`Self::find_outer`]. If
    /// the local port of `outer` is taken, a flow of an application gets another one.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        inner: Tuple,
        outer: Tuple,
        opener: Opener,
    ) -> Result<Index, OpenError> {
        self.expire(now, EXPIRED_AT_ONCE);
        let outer = match opener {
            Opener::Application => self.with_free_port(now, outer).ok_or(OpenError::Port)?,
            Opener::Peer if self.find_inner(now, &inner).is_some() => return Err(OpenError::Port),
            Opener::Peer => outer,
        };
        self.make_room(opener)?;
        let seen = Seen::default();
        let flow = Flow {
            inner,
            outer,
            traffic: (inner.protocol == ip::UDP).then(Arc::default),
            opener,
            seen,
            link: Link {
                state: seen.state(&inner, opener),
                used: now,
                older: NONE,
                newer: NONE,
            },
        };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        let (inner, outer) = (inner.hash(&self.hashing), outer.hash(&self.hashing));
        self.slots[index as usize] = Some(flow);
        let (slots, hashing) = (&self.slots, &self.hashing);
        self.inner.insert_unique(inner, index, |&index| {
            flow_hash(slots, index, hashing, |flow| &flow.inner)
        });
        self.outer.insert_unique(outer, index, |&index| {
            flow_hash(slots, index, hashing, |flow| &flow.outer)
        });
        self.opened_by_peers += usize::from(opener == Opener::Peer);
        self.link(index);
        Ok(Index(index))
    }

    /// Records a packet of the flow. `flags` are those of TCP.
    pub(crate) fn touch(&mut self, now: Instant, index: Index, direction: Direction, flags: u8) {
        let flow = flow_mut(&mut self.slots, index.0);
        if flow.state() == FlowState::Unanswered && direction == Direction::In {
            return;
        }
        let before = flow.seen;
        let seen = &mut flow.seen;
        if flow.inner.protocol == ip::TCP {
            // A SYN begins a new connection between the same ports. A SYN from the tunnel does so
            // only after the old connection has closed. Otherwise anybody could make a living
            // flow expire.
            let opens = flags & (tcp::SYN | tcp::ACK | tcp::RST) == tcp::SYN;
            if opens && (direction == Direction::Out || seen.closing()) {
                *seen = Seen::default();
            }
            let (acknowledged, fin) = match direction {
                Direction::Out => (&mut seen.out, &mut seen.fin_out),
                Direction::In => (&mut seen.incoming, &mut seen.fin_in),
            };
            *acknowledged |= flags & tcp::ACK != 0;
            *fin |= flags & tcp::FIN != 0;
            seen.reset |= flags & tcp::RST != 0;
        } else {
            match direction {
                Direction::Out => seen.out = true,
                Direction::In => seen.incoming = true,
            }
        }
        let state = match flow.seen.state(&flow.inner, flow.opener) {
            // The application has answered, although without ACK.
            FlowState::Unanswered => FlowState::Transitory,
            state => state,
        };
        let forgot = before.out && !flow.seen.out || before.incoming && !flow.seen.incoming;
        self.unlink(index.0);
        let link = &mut flow_mut(&mut self.slots, index.0).link;
        link.state = state;
        link.used = link.used.max(now);
        self.link(index.0);
        if forgot {
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes a flow. Its index may then be reused for another flow.
    pub(crate) fn remove(&mut self, index: Index) {
        let Index(index) = index;
        self.unlink(index);
        let Some(flow) = self.slots[index as usize].take() else {
            return;
        };
        let is_it = |&other: &u32| other == index;
        let hash = flow.inner.hash(&self.hashing);
        if let Ok(entry) = self.inner.find_entry(hash, is_it) {
            entry.remove();
        }
        let hash = flow.outer.hash(&self.hashing);
        if let Ok(entry) = self.outer.find_entry(hash, is_it) {
            entry.remove();
        }
        self.opened_by_peers -= usize::from(flow.opener == Opener::Peer);
        self.free.push(index);
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn expire(&mut self, now: Instant, most: usize) {
        let mut left = most;
        for state in 0..FlowState::COUNT {
            while left > 0
                && self.lists[state].oldest != NONE
                && (flow(&self.slots, self.lists[state].oldest).link).expired(now)
            {
                self.remove(Index(self.lists[state].oldest));
                left -= 1;
            }
        }
    }

    /// Returns `outer`, with another port if its port is taken.
    fn with_free_port(&mut self, now: Instant, outer: Tuple) -> Option<Tuple> {
        if self.find_outer(now, &outer).is_none() {
            return Some(outer);
        }
        if !has_ports(outer.protocol) {
            return None;
        }
        (0..TRIED_PORTS).find_map(|_| {
            let mut other = outer;
            other.local.port = self.next_port;
            self.next_port = match self.next_port.checked_add(1) {
                Some(port) => port,
                None => *DYNAMIC_PORTS.start(),
            };
            self.find_outer(now, &other).is_none().then_some(other)
        })
    }

    /// Makes room for one more flow. If necessary it removes the flow that has been idle longest
    /// among those that `opener` may displace.
    fn make_room(&mut self, opener: Opener) -> Result<(), OpenError> {
        match opener {
            Opener::Application if self.len() >= self.capacity => {
                self.displace(&FlowState::EXPENDABLE).ok_or(OpenError::Full)
            }
            Opener::Application => Ok(()),
            Opener::Peer => {
                let unanswered = self.lists[FlowState::Unanswered as usize].len;
                if unanswered >= self.capacity / UNANSWERED_SHARE {
                    self.displace(&[FlowState::Unanswered])
                        .ok_or(OpenError::PeerShare)?;
                }
                if self.opened_by_peers >= self.capacity / PEER_SHARE {
                    self.displace(&FlowState::OF_PEERS)
                        .ok_or(OpenError::PeerShare)?;
                }
                if self.len() >= self.capacity {
                    self.displace(&FlowState::OF_PEERS).ok_or(OpenError::Full)?;
                }
                Ok(())
            }
        }
    }

    fn displace(&mut self, states: &[FlowState]) -> Option<()> {
        let oldest = states
            .iter()
            .map(|&state| self.lists[state as usize].oldest)
            .filter(|&index| index != NONE)
            .min_by_key(|&index| flow(&self.slots, index).link.used)?;
        self.remove(Index(oldest));
        Some(())
    }

    /// Appends a flow to the list of its state.
    fn link(&mut self, index: u32) {
        let state = flow(&self.slots, index).state() as usize;
        let list = &mut self.lists[state];
        let newest = std::mem::replace(&mut list.newest, index);
        list.len += 1;
        if newest == NONE {
            list.oldest = index;
        } else {
            flow_mut(&mut self.slots, newest).link.newer = index;
        }
        let link = &mut flow_mut(&mut self.slots, index).link;
        (link.older, link.newer) = (newest, NONE);
    }

    fn unlink(&mut self, index: u32) {
        let Link {
            state,
            older,
            newer,
            ..
        } = flow(&self.slots, index).link;
        let list = &mut self.lists[state as usize];
        list.len -= 1;
        match older {
            NONE => list.oldest = newer,
            older => flow_mut(&mut self.slots, older).link.newer = newer,
        }
        match newer {
            NONE => list.newest = older,
            newer => flow_mut(&mut self.slots, newer).link.older = older,
        }
    }
}

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, ip::TCP | ip::UDP | ip::ICMP | ip::ICMPV6)
}

/// Returns the flow in a slot. Indices and lists refer only to slots in use.
fn flow(slots: &[Option<Flow>], index: u32) -> &Flow {
    slots[index as usize].as_ref().expect("a slot in use")
}

fn flow_mut(slots: &mut [Option<Flow>], index: u32) -> &mut Flow {
    slots[index as usize].as_mut().expect("a slot in use")
}

fn flow_hash(
    slots: &[Option<Flow>],
    index: u32,
    hashing: &RandomState,
    tuple: impl Fn(&Flow) -> &Tuple,
) -> u64 {
    tuple(flow(slots, index)).hash(hashing)
}

#[cfg(test)]
mod tests;
