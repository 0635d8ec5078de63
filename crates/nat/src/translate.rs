//! Address translation between the uplink's address, which applications use, and the tunnel's.
//!
//! A selected application's socket has the address of the uplink that the kernel's routes chose for
//! it. Its packets leave by that uplink and are redirected to the TUN. On the way into the tunnel
//! ([`Outgoing`]) they get the tunnel's address. Replies ([`Incoming`]) get the uplink's address
//! again. Forwarded packets are translated in the same way, whatever their address is. Both halves
//! share one table of flows behind a lock. A half takes the lock at most once per super-packet or
//! batch, and not at all for further packets of a recent flow.
//!
//! | a packet | is |
//! |---|---|
//! | of TCP, UDP or ICMP echo | translated, its checksums corrected by the difference (RFC 1624) |
//! | to port 53, if the tunnel has name servers | sent to one of them; the reply appears to come from the server that was queried; refused if no server has an address of its family |
//! | a TCP SYN | translated, its maximum segment size lowered to the tunnel's |
//! | an ICMP error | translated together with the packet that it quotes |
//! | an outgoing fragment | translated; later fragments like the first, or dropped if the first has not been seen |
//! | a fragment from the tunnel | reassembled, then translated like any other packet |
//! | too big for the tunnel | fragmented, or answered with an ICMP error if it must not be fragmented |
//! | from the tunnel without a flow | sent to the main uplink; transparent mode delivers it to a socket that waits for it, or sends it back |
//! | sent back by transparent mode | refused in the tunnel, as by a host with a closed port, and its flow ends |
//! | of another protocol | translated if it has a flow, and no checksum that covers addresses |
//!
//! Nothing here does I/O or reads a clock: `now` is an argument.

#![forbid(unsafe_code)]

mod fragments;
mod incoming;
mod outgoing;
mod refusal;
mod rewrite;
mod rewrite_cache;
mod servers;
mod view;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
};

use taupe_packet::ip::{Family, V4_HEADER, V6_HEADER};
use taupe_packet::virtio::VirtioHeader;

pub use incoming::{Batch, Incoming, Received};
pub use outgoing::Outgoing;
pub use servers::SilentServers;
/// The time type of `now`: the boot clock.
pub use taupe_protocol::time::Instant;

use crate::flows::{DatagramFlow, ExpiringFlows, OpenError, Table};
use crate::fragmentation::Packets;
use servers::Servers;

/// Addresses and limits of a tunnel's translation.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Settings {
    /// The tunnel's IPv4 address, if it has one.
    pub v4: Option<Ipv4Addr>,
    /// The tunnel's IPv6 address, if it has one.
    pub v6: Option<Ipv6Addr>,
    /// The tunnel's MTU in bytes.
    pub mtu: u16,
    /// The tunnel's name servers. Queries go to the first of their family that answers.
    pub dns: Vec<IpAddr>,
    /// Maximum number of flows; see [`crate::flows::CAPACITY`].
    pub capacity: usize,
}

/// The reason why a packet is dropped or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropReason {
    /// Not an IP packet, or truncated within its headers.
    #[error("not an IP packet, or truncated within its headers")]
    Malformed,
    /// A protocol or ICMP message that cannot be translated.
    #[error("a protocol or ICMP message that cannot be translated")]
    Unsupported,
    /// The tunnel has no address of the packet's family.
    #[error("the tunnel has no address of the packet's family")]
    NoAddress,
    /// Longer than the tunnel's MTU, and not to be fragmented.
    #[error("longer than the tunnel's MTU, and not to be fragmented")]
    TooBig,
    /// A fragment of a packet whose first fragment has not been seen.
    #[error("a fragment of a packet whose first fragment has not been seen")]
    UnknownFragment,
    /// A packet that belongs to no flow and cannot open one.
    #[error("belongs to no flow, and cannot open one")]
    NoFlow,
    /// The table of flows is full.
    #[error("the table of flows is full")]
    TableFull,
    /// The share of flows opened from the tunnel is used up.
    #[error("the share of flows that were opened from the tunnel is used up")]
    PeerShare,
    /// No port of the tunnel's address is free for the flow.
    #[error("no port of the tunnel's address is free for this flow")]
    NoPort,
    /// A packet from the tunnel to an address that is not the tunnel's.
    #[error("from the tunnel, to an address that is not the tunnel's")]
    NotOurs,
    /// A packet from the tunnel with the tunnel's own address as its source.
    #[error("from the tunnel, with the tunnel's own address as its source")]
    OwnSource,
    /// A packet from the tunnel, and no uplink has an address of its family.
    #[error("from the tunnel, and no uplink has an address of its family")]
    NoUplink,
    /// A packet from the tunnel to a port where no selected application listens.
    #[error("from the tunnel, to a port where no selected application listens")]
    NobodyListens,
    /// A DNS query, and no name server of the tunnel has an address of its family.
    #[error("a DNS query, and no name server of the tunnel has an address of its family")]
    NoServer,
}

impl DropReason {
    /// All reasons, in the order of their counters.
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

impl From<OpenError> for DropReason {
    fn from(refusal: OpenError) -> Self {
        match refusal {
            OpenError::Full => Self::TableFull,
            OpenError::PeerShare => Self::PeerShare,
            OpenError::Port => Self::NoPort,
        }
    }
}

/// The result of translating a packet from the TUN.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Forward the packet, which has been changed in place, with this header.
    Forward(VirtioHeader),
    /// Forward these complete packets instead: its fragments, or the refusal of a packet that had
    /// come from the tunnel.
    Replace(Packets<'a>),
    /// Forward nothing, and write this packet to the TUN.
    Reply(Vec<u8>, DropReason),
    /// Drop the packet.
    Drop(DropReason),
}

/// Operations by which a watch of the system's network controls a translator, which may be in another
/// process.
pub trait TranslatorControl: fmt::Debug + Send {
    /// Sets the destination of packets without a flow: the addresses of the uplink with the default
    /// route of each family.
    fn set_main_uplink(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>);

    /// Removes flows that the kernel's table is about to remove. When this returns, the translator
    /// delivers no more packets to them.
    ///
    /// # Errors
    /// The process of the translator ends or does not answer: it may still deliver packets to them.
    fn forget(&self, flows: &ExpiringFlows) -> io::Result<()>;
}

/// The translator of a tunnel, from which the two halves are made.
#[derive(Clone, Debug)]
pub struct Translator {
    shared: Arc<Shared>,
}

impl Translator {
    /// Creates a translator without flows.
    pub fn new(settings: &Settings) -> Self {
        let generation = Arc::new(AtomicU64::new(0));
        let state = State {
            table: Table::new(settings.capacity, Arc::clone(&generation)),
            uplink: PerFamily { v4: None, v6: None },
            servers: Servers::new(&settings.dns),
        };
        let shared = Shared {
            address: PerFamily {
                v4: settings.v4.map(|address| number(address.into()).1),
                v6: settings.v6.map(|address| number(address.into()).1),
            },
            lacks_server: [Family::V4, Family::V6].map(|family| {
                let mut servers = settings.dns.iter().map(|&server| number(server).0);
                !settings.dns.is_empty() && !servers.any(|other| other == family)
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

    /// Returns a half for a thread that reads a queue of the TUN. Each thread needs its own, and all
    /// fragments of a packet must go to the same half.
    pub fn outgoing(&self) -> Outgoing {
        Outgoing::new(Arc::clone(&self.shared))
    }

    /// Returns a half for a thread that receives from the network. Each thread needs its own, and
    /// all fragments of a packet must go to the same half.
    pub fn incoming(&self) -> Incoming {
        Incoming::new(Arc::clone(&self.shared))
    }

    /// Sets the destination of packets without a flow: the addresses of the uplink with the default
    /// route of each family.
    pub fn set_main_uplink(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) {
        self.shared.lock().uplink = PerFamily {
            v4: v4.map(|address| number(address.into()).1),
            v6: v6.map(|address| number(address.into()).1),
        };
    }

    /// Sets the tunnel's MTU in bytes.
    pub fn set_mtu(&self, mtu: u16) {
        self.shared.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Returns the number of flows, including expired flows that have not been removed yet.
    pub fn flow_count(&self) -> usize {
        self.shared.lock().table.len()
    }

    /// Returns all UDP flows as their applications see them.
    pub fn datagram_flows(&self) -> Vec<DatagramFlow> {
        /// Slots per lock, since packets wait for the lock.
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

    /// Removes flows that the kernel's table is about to remove.
    pub fn forget(&self, flows: &ExpiringFlows) {
        /// Flows per lock, since packets wait for the lock.
        const FLOWS: usize = 256;
        for some in flows.0.chunks(FLOWS) {
            let mut state = self.shared.lock();
            some.iter().for_each(|flow| state.table.forget(flow));
        }
    }

    /// Returns the name servers of each family in which no server answers.
    pub fn silent_servers(&self, now: Instant) -> Vec<SilentServers> {
        self.shared.lock().servers.silent(now)
    }

    /// Returns the number of packets that were not carried, by reason.
    pub fn dropped(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let counters = DropReason::ALL.iter().zip(&self.shared.dropped);
        counters.map(|(&reason, count)| (reason, count.load(Ordering::Relaxed)))
    }
}

impl TranslatorControl for Translator {
    fn set_main_uplink(&self, v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) {
        self.set_main_uplink(v4, v6);
    }

    fn forget(&self, flows: &ExpiringFlows) -> io::Result<()> {
        self.forget(flows);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct PerFamily {
    v4: Option<u128>,
    v6: Option<u128>,
}

impl PerFamily {
    fn of(&self, family: Family) -> Option<u128> {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

#[derive(Debug)]
struct Shared {
    address: PerFamily,
    /// For IPv4 and IPv6: true if there are name servers, but none of the family.
    lacks_server: [bool; 2],
    mtu: AtomicU16,
    /// The table's generation, readable without the lock.
    generation: Arc<AtomicU64>,
    state: Mutex<State>,
    dropped: [AtomicU64; DropReason::ALL.len()],
}

#[derive(Debug)]
struct State {
    table: Table,
    uplink: PerFamily,
    servers: Servers,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if there are name servers, but none of this family.
    fn lacks_server(&self, family: Family) -> bool {
        let [v4, v6] = self.lacks_server;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn mtu(&self) -> usize {
        self.mtu.load(Ordering::Relaxed).into()
    }

    /// Returns the maximum payload of a TCP segment through the tunnel, without options (RFC 6691).
    fn mss(&self, family: Family) -> u16 {
        let headers = view::TCP_HEADER
            + match family {
                Family::V4 => V4_HEADER,
                Family::V6 => V6_HEADER,
            };
        self.mtu().saturating_sub(headers) as u16
    }

    fn count(&self, reason: DropReason) {
        self.dropped[reason as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns an address as a number, for IPv4 in the low 32 bits.
fn number(address: IpAddr) -> (Family, u128) {
    match address {
        IpAddr::V4(address) => (Family::V4, u32::from(address).into()),
        IpAddr::V6(address) => (Family::V6, address.into()),
    }
}

// loom switches stacks, which the Windows runtime of a panic does not survive.
#[cfg(all(test, unix, target_arch = "x86_64"))]
mod cache_model;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
