//! Address translation between an uplink's address, which applications have,
//! and the tunnel's.
//!
//! A chosen application's socket has the address of the uplink that the
//! kernel's routes chose for it. Its packets leave that uplink for a TUN; on the
//! way from there into the tunnel ([`Outgoing`]) they get the tunnel's address,
//! and what comes back ([`Incoming`]) gets the uplink's. So do those of others that are
//! forwarded, with whatever address they have there. The halves share one
//! table of flows, under a lock that is taken at most once per super-packet or
//! batch, and not at all while packets continue one of the latest flows.
//!
//! | a packet | is |
//! |---|---|
//! | of TCP, UDP or ICMP echo | translated, its checksums corrected by the difference (RFC 1624) |
//! | to port 53, if the tunnel has name servers | sent to one of them, and the answer comes back as from the one that was asked; refused if none is of its family |
//! | of TCP that opens a connection | translated, its maximum segment size lowered to the tunnel's |
//! | that is an ICMP error | translated with the packet it quotes |
//! | in fragments, on its way out | translated; later fragments as the first, or dropped if that has not been seen |
//! | in fragments, from the tunnel | put together, then translated as any other |
//! | too big for the tunnel | cut, or answered with ICMP if it must not be |
//! | from the tunnel and of no flow | sent to the main uplink, where the kernel's side gives it to a socket that waits for it or sends it back |
//! | that was sent back | refused inside the tunnel, as by a host where nobody listens, and its flow ends |
//! | of another protocol | translated if it has no checksum over the addresses, and a flow |
//!
//! Nothing here does I/O or knows the time: `now` is an argument.

#![forbid(unsafe_code)]

mod fragments;
mod incoming;
mod memory;
mod outgoing;
mod refusal;
mod rewrite;
mod servers;
pub mod tcp;
mod view;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
};

use taupe_packet::ip::{Family, V4_HEADER, V6_HEADER};
use taupe_packet::virtio::VirtioHeader;

pub use fragments::{Buffer, Packets};
pub use incoming::{Arrival, Batch, Incoming};
pub use outgoing::Outgoing;
pub use servers::Silence;
/// What is meant by `now`: the boot clock.
pub use taupe_protocol::time::Instant;

use crate::flows::{DatagramFlow, Forgotten, Refusal, Table};
use servers::Servers;

/// What a tunnel translates to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tunnel's IPv4 address, if it has any.
    pub v4: Option<Ipv4Addr>,
    /// The tunnel's IPv6 address, if it has any.
    pub v6: Option<Ipv6Addr>,
    /// Bytes of the longest packet that the tunnel carries.
    pub mtu: u16,
    /// The tunnel's name servers; the first of each family that answers is asked.
    pub dns: Vec<IpAddr>,
    /// Flows at most; see [`crate::flows::CAPACITY`].
    pub capacity: usize,
}

/// Why a packet is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No IP packet, or cut where its headers should be.
    #[error("not an IP packet, or cut inside its headers")]
    Malformed,
    /// A protocol or ICMP message that cannot be translated.
    #[error("a protocol or ICMP message that cannot be translated")]
    Unsupported,
    /// The tunnel has no address of the packet's family.
    #[error("the tunnel has no address of the packet's family")]
    NoAddress,
    /// Longer than the tunnel carries, and not to be fragmented.
    #[error("longer than the tunnel's MTU, and not to be fragmented")]
    TooBig,
    /// A fragment whose first has not been seen.
    #[error("a fragment of a packet whose first fragment has not been seen")]
    UnknownFragment,
    /// A packet that answers nothing and cannot open a flow.
    #[error("belongs to no flow, and cannot open one")]
    NoFlow,
    /// The table of flows is full.
    #[error("the table of flows is full")]
    TableFull,
    /// The tunnel's share of the table is used up.
    #[error("the share of flows that were opened from the tunnel is used up")]
    PeerShare,
    /// No port is free.
    #[error("no port of the tunnel's address is free for this flow")]
    NoPort,
    /// From the tunnel, and for an address that is not the tunnel's.
    #[error("from the tunnel for an address that is not its own")]
    NotOurs,
    /// From the tunnel, and in the name of its own address.
    #[error("from the tunnel in the name of its own address")]
    OwnSource,
    /// From the tunnel, and there is no uplink of its family.
    #[error("from the tunnel, when no uplink has an address of its family")]
    NoUplink,
    /// From the tunnel, for a port where no chosen application listens.
    #[error("from the tunnel for a port where no chosen application listens")]
    NobodyListens,
    /// A question for a name, when no name server of the tunnel is of its family.
    #[error("a question for a name, and no name server of the tunnel has an address of its family")]
    NoServer,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Malformed,
        Self::Unsupported,
        Self::NoAddress,
        Self::TooBig,
        Self::UnknownFragment,
        Self::NoFlow,
        Self::TableFull,
        Self::PeerShare,
        Self::NoPort,
        Self::NotOurs,
        Self::OwnSource,
        Self::NoUplink,
        Self::NobodyListens,
        Self::NoServer,
    ];
}

impl From<Refusal> for Reason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::TableFull,
            Refusal::PeerShare => Self::PeerShare,
            Refusal::Port => Self::NoPort,
        }
    }
}

/// What is to be done with a packet from the TUN.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Carry it; it has been changed in place, and this is its header now.
    Carry(VirtioHeader),
    /// Carry these instead, which are complete: its fragments, or a refusal of
    /// what had come from the tunnel.
    Instead(Packets<'a>),
    /// Write this packet to the TUN; there is nothing to carry.
    Answer(Vec<u8>, Reason),
    /// Nothing.
    Drop(Reason),
}

/// The translation of one tunnel, from which its halves are made.
#[derive(Clone, Debug)]
pub struct Translator {
    shared: Arc<Shared>,
}

impl Translator {
    /// A translation without flows.
    pub fn new(settings: &Settings) -> Self {
        let generation = Arc::new(AtomicU64::new(0));
        let state = State {
            table: Table::new(settings.capacity, Arc::clone(&generation)),
            uplink: PerVersion { v4: None, v6: None },
            servers: Servers::new(&settings.dns),
        };
        let shared = Shared {
            address: PerVersion {
                v4: settings.v4.map(|address| number(address.into()).1),
                v6: settings.v6.map(|address| number(address.into()).1),
            },
            lacks_server: [Family::V4, Family::V6].map(|version| {
                let mut servers = settings.dns.iter().map(|&server| number(server).0);
                !settings.dns.is_empty() && !servers.any(|other| other == version)
            }),
            mtu: AtomicU16::new(settings.mtu),
            generation,
            state: Mutex::new(state),
            dropped: Default::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The half for the thread that reads the TUN.
    pub fn outgoing(&self) -> Outgoing {
        Outgoing::new(Arc::clone(&self.shared))
    }

    /// A half for a thread that receives from the network. Each has its own; all
    /// fragments of a packet must come to the same.
    pub fn incoming(&self) -> Incoming {
        Incoming::new(Arc::clone(&self.shared))
    }

    /// Says where packets of no flow go: the addresses of the uplink that has
    /// the default route of each family.
    pub fn set_main_uplink(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) {
        self.shared.lock().uplink = PerVersion {
            v4: v4.map(|address| number(address.into()).1),
            v6: v6.map(|address| number(address.into()).1),
        };
    }

    /// Changes the length, in bytes, of the longest packet that the tunnel
    /// carries.
    pub fn set_mtu(&self, mtu: u16) {
        self.shared.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Flows there are, with those that have expired and have not been in the
    /// way of others since.
    pub fn flow_count(&self) -> usize {
        self.shared.lock().table.len()
    }

    /// The flows of UDP there are, as their applications see them.
    pub fn datagram_flows(&self) -> Vec<DatagramFlow> {
        /// So many at once: packets wait for the lock.
        const PLACES: usize = 256;
        let mut all = Vec::new();
        for from in (0..).step_by(PLACES) {
            match self.shared.lock().table.datagrams(from, PLACES) {
                Some(flows) => all.extend(flows),
                None => break,
            }
        }
        all
    }

    /// Forgets flows that the kernel's part is about to forget.
    pub fn forget(&self, flows: &Forgotten) {
        /// So many at once: packets wait for the lock.
        const FLOWS: usize = 256;
        for some in flows.0.chunks(FLOWS) {
            let mut state = self.shared.lock();
            some.iter().for_each(|flow| state.table.forget(flow));
        }
    }

    /// The name servers that do not answer, where no other of their family does.
    pub fn silent_servers(&self, now: Instant) -> Vec<Silence> {
        self.shared.lock().servers.silent(now)
    }

    /// Packets that were not carried, by reason.
    pub fn dropped(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counters = Reason::ALL.iter().zip(&self.shared.dropped);
        counters.map(|(&reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

/// Something of each family.
#[derive(Clone, Copy, Debug)]
struct PerVersion {
    v4: Option<u128>,
    v6: Option<u128>,
}

impl PerVersion {
    fn of(&self, version: Family) -> Option<u128> {
        match version {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

#[derive(Debug)]
struct Shared {
    address: PerVersion,
    /// Whether there are name servers, and none of IPv4; and the same of IPv6.
    lacks_server: [bool; 2],
    mtu: AtomicU16,
    /// The table's, to be read without the lock.
    generation: Arc<AtomicU64>,
    state: Mutex<State>,
    dropped: [AtomicU64; Reason::ALL.len()],
}

#[derive(Debug)]
struct State {
    table: Table,
    uplink: PerVersion,
    servers: Servers,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are name servers, but none of this family.
    fn lacks_server(&self, version: Family) -> bool {
        let [v4, v6] = self.lacks_server;
        match version {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed).into()
    }

    /// The most payload that a TCP segment through the tunnel has, without
    /// options (RFC 6691).
    fn mss(&self, version: Family) -> u16 {
        let headers = view::TCP_HEADER
            + match version {
                Family::V4 => V4_HEADER,
                Family::V6 => V6_HEADER,
            };
        self.mtu().saturating_sub(headers) as u16
    }

    fn count(&self, reason: Reason) {
        self.dropped[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// An address as a number, in the low 32 bits for IPv4.
fn number(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(address) => (Family::V4, u32::from(address).into()),
        IpAddr::V6(address) => (Family::V6, address.into()),
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
