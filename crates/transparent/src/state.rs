//! The data that the eBPF programs and the daemon share: `bpf/state.h` in Rust.
//!
//! The state is one page of memory that both have mapped. Single words change atomically. A set of
//! rules changes as a whole, by the generation number.

use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use aya::Pod;
use serde::{Deserialize, Serialize};
use taupe_config::file::Forwarded;

/// Number of the layout of the maps.
pub(crate) const SCHEMA: u32 = if cfg!(feature = "other-layout") {
    u32::MAX
} else {
    43
};

/// PIDs of the packet processes of a tunnel and of its outer device, if they have any, in the PID
/// namespace of the calling thread.
pub type PacketProcesses = [Option<u32>; 2];

/// Maximum number of path components that are compared (`PATH_DEPTH`).
pub(crate) const PATH_DEPTH: usize = 32;

/// Bits of a rule (`RULE_*`).
pub(crate) const ALLOW: u32 = 1 << 0;
pub(crate) const DISALLOW: u32 = 1 << 1;
/// Set in a record if the process has inherited its rule.
pub(crate) const INHERITED: u32 = 1 << 7;
/// Set in a record if the rules are about another user.
pub(crate) const OTHER_USER: u32 = 1 << 8;
/// In place of a user ID: rules about all users (`ANY_USER`).
pub(crate) const ANY_USER: u32 = u32::MAX;
/// Position of a rule's number in the values of `names` and `exact`, in bits.
pub(crate) const RULE_NUMBER_SHIFT: u32 = 32;

/// A kind of rule (`KIND_*`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    Name = 1 << 0,
    Path = 1 << 1,
    CgroupName = 1 << 2,
    CgroupPath = 1 << 3,
    User = 1 << 4,
    Directory = 1 << 5,
    Rule = 1 << 6,
}

/// Verdicts (`enum verdict`).
pub(crate) const DIRECT: u32 = 0;
pub(crate) const TUNNEL: u32 = 1;
pub(crate) const EXEMPT: u32 = 2;

/// Kill switch: the traffic that is blocked while the tunnel is down (`enum lock`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[repr(u32)]
pub enum Lock {
    /// Blocks the traffic of selected applications.
    #[default]
    Selected = 0,
    /// Blocks all traffic, as if every application were selected.
    All = 1,
    /// Blocks nothing: the traffic of selected applications bypasses the tunnel.
    Off = 2,
}

/// A clause that continues "the tunnel is down:".
impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Selected => "traffic of the selected applications is blocked",
            Self::All => "traffic of all applications is blocked",
            Self::Off => {
                "traffic of the selected applications bypasses the tunnel (KillSwitch = off)"
            }
        })
    }
}

impl Lock {
    pub(crate) fn of(number: u32) -> Self {
        match number {
            1 => Self::All,
            2 => Self::Off,
            _ => Self::Selected,
        }
    }
}

/// Handling of DNS queries of selected applications (`enum names`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DnsHandling {
    /// The tunnel has name servers with IPv4 addresses.
    pub v4: bool,
    /// The tunnel has name servers with IPv6 addresses.
    pub v6: bool,
    /// True if applications that a rule names may use the system bus, although systemd-resolved
    /// answers queries over it.
    pub bus: bool,
}

impl DnsHandling {
    /// Returns true if the tunnel has name servers. Without them DNS queries are not redirected.
    #[must_use]
    pub fn has_servers(self) -> bool {
        self.v4 || self.v6
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.v4) | u32::from(self.v6) << 1 | u32::from(self.bus) << 2
    }

    pub(crate) fn of(bits: u32) -> Self {
        Self {
            v4: bits & 1 != 0,
            v6: bits & 2 != 0,
            bus: bits & 4 != 0,
        }
    }
}

#[repr(C)]
pub(crate) struct RuleSet {
    pub(crate) kinds: AtomicU32,
    pub(crate) all_tasks: AtomicU32,
    pub(crate) default_verdict: AtomicU32,
    pub(crate) path_depths: AtomicU32,
    pub(crate) cgroup_depths: AtomicU32,
    pub(crate) children: AtomicU32,
    pub(crate) user: AtomicU32,
}

/// The fields up to `mark` are the same in every layout: another version may remove the programs, or
/// put its own in their place.
#[repr(C)]
pub(crate) struct State {
    pub(crate) schema: AtomicU32,
    pub(crate) up: AtomicU32,
    pub(crate) netns: AtomicU64,
    pub(crate) daemon: AtomicU32,
    pub(crate) tun: AtomicU32,
    pub(crate) mark: AtomicU32,
    pub(crate) generation: AtomicU32,
    pub(crate) lock: AtomicU32,
    pub(crate) lsm_active: AtomicU32,
    pub(crate) key: [AtomicU64; 2],
    pub(crate) rules: [RuleSet; 2],
    /// Number of entries in `flows`.
    pub(crate) flow_count: AtomicI32,
    /// The second in which a flow was last refused.
    pub(crate) flow_refused_at: AtomicU32,
    pub(crate) forwarded: AtomicU32,
    /// The bits of [`DnsHandling`].
    pub(crate) dns: AtomicU32,
    /// Number of processes in the tunnel's network namespace whose files could not be listed.
    pub(crate) unlisted_processes: AtomicU32,
    /// Not 0 while rules are being replaced and some processes still have the previous ones.
    pub(crate) learning_since: AtomicU32,
    /// 1 if the hook that records senders is attached.
    pub(crate) senders_traced: AtomicU32,
    /// 1 if another program decides on packets by NFQUEUE.
    pub(crate) nfqueue_active: AtomicU32,
    /// PIDs of the packet processes as the daemon has named them, or 0.
    pub(crate) named_packet_processes: [AtomicU32; 2],
    /// PIDs of the packet processes in the initial PID namespace, or 0.
    pub(crate) packet_processes: [AtomicU32; 2],
    /// The pass over open sockets that is permitted, and the generation for which it is: see
    /// [`permission`].
    pub(crate) permitted_pass: AtomicU64,
}

/// A pass over open sockets, which acts only while it is permitted (`enum pass`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Pass {
    Select = 1,
    MarkLeaving = 2,
    Release = 3,
    Pending = 4,
}

impl Pass {
    /// Returns the name of its iterator.
    pub(crate) const fn iterator(self) -> &'static str {
        match self {
            Self::Select => "taupe_classify",
            Self::MarkLeaving => "taupe_leaving",
            Self::Release => "taupe_release",
            Self::Pending => "taupe_pending",
        }
    }
}

/// Position of the generation in `permitted_pass`, in bits (`PASS_SHIFT`).
pub(crate) const PASS_SHIFT: u32 = 32;

/// Report of a pass: a socket bypasses the tunnel.
pub(crate) const UNMARKED: u8 = 1;
/// Report of a pass: one of the last two passes has selected a socket.
pub(crate) const SELECTED: u8 = 2;

/// A value of `permitted_pass` that permits no pass in any generation.
pub(crate) const NO_PASS: u64 = 0;

/// Returns the value of `permitted_pass` that permits a pass by the rules of a generation.
pub(crate) const fn permission(pass: Pass, generation: u32) -> u64 {
    (generation as u64) << PASS_SHIFT | pass as u64
}

impl State {
    /// Returns where forwarded packets go.
    pub(crate) fn forwarded(&self) -> Forwarded {
        match self.forwarded.load(Ordering::Relaxed) {
            0 => Forwarded::Direct,
            _ => Forwarded::Tunnel,
        }
    }

    /// Returns the handling of DNS queries.
    pub(crate) fn dns(&self) -> DnsHandling {
        DnsHandling::of(self.dns.load(Ordering::Relaxed))
    }

    pub(crate) fn key(&self) -> (u64, u64) {
        let [first, second] = &self.key;
        (
            first.load(Ordering::Relaxed),
            second.load(Ordering::Relaxed),
        )
    }

    /// Returns the only user whose processes the rules in use select, if they are about one.
    pub(crate) fn only_user(&self) -> Option<u32> {
        let generation = self.generation.load(Ordering::Acquire);
        let user = self.rules(generation).user.load(Ordering::Relaxed);
        Some(user).filter(|user| *user != ANY_USER)
    }

    pub(crate) fn rules(&self, generation: u32) -> &RuleSet {
        let [even, odd] = &self.rules;
        if generation & 1 == 0 { even } else { odd }
    }
}

/// The layouts that are the same in every version.
const _: () = {
    assert!(offset_of!(State, schema) == 0 && offset_of!(State, up) == 4);
    assert!(offset_of!(State, netns) == 8 && offset_of!(State, daemon) == 16);
    assert!(offset_of!(State, tun) == 20 && offset_of!(State, mark) == 24);
    assert!(offset_of!(FlowKey, remote) == 0 && offset_of!(FlowKey, local) == 16);
    assert!(offset_of!(FlowKey, local_port) == 32 && offset_of!(FlowKey, remote_port) == 34);
    assert!(offset_of!(FlowKey, protocol) == 36 && size_of::<FlowKey>() == 40);
    assert!(size_of::<Flow>() == 40);
};

/// The state, mapped into memory.
pub(crate) struct MappedState {
    page: NonNull<State>,
}

/// Size of the mapping, which the kernel rounds up to its page size (up to 64 KiB).
const PAGE: usize = 4096;
const _: () = assert!(size_of::<State>() <= PAGE);

impl MappedState {
    /// Maps the only element of an array map.
    pub(crate) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: the kernel chooses the address, so the call replaces no existing mapping.
        let page = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map,
                0,
            )
        }?;
        let page = NonNull::new(page.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { page })
    }
}

impl std::ops::Deref for MappedState {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: the page begins with a `State`, which is smaller than the page. The page is
        // aligned and stays mapped until `self` is dropped. Any bytes are a valid `State`. eBPF
        // programs change it meanwhile, which atomic fields allow. Nobody has an exclusive
        // reference to it.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for MappedState {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping. No reference to the page is left,
        // since each borrows `self`.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

// SAFETY: the memory holds atomic fields and does not move; any thread may use and unmap it.
unsafe impl Send for MappedState {}
// SAFETY: as above; shared references give access to atomics only.
unsafe impl Sync for MappedState {}

impl fmt::Debug for MappedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("up", &self.up)
            .field("tun", &self.tun)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// A key of `names`, without the prefix length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(C)]
pub(crate) struct NameKey {
    pub(crate) space: u32,
    pub(crate) name: [u8; NAME_SIZE],
}

/// Maximum length of a name that is compared, in bytes (`NAME_SIZE`).
pub(crate) const NAME_SIZE: usize = 240;

/// A key of `exact`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(C)]
pub(crate) struct ExactKey {
    pub(crate) space: u32,
    pub(crate) zero: u32,
    pub(crate) id: u64,
}

/// A key of `destinations`, without the prefix length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct DestinationKey {
    pub(crate) space: u32,
    pub(crate) address: [u8; 16],
}

/// Maximum number of flows (`FLOWS_MAX`).
pub(crate) const FLOWS_MAX: usize = 65_536;

/// A key of `flows`. The layout of this table is the same in every layout of the maps, since each
/// version reads the flows of others. To change it, give the map another name: the type is recognised
/// by its size only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct FlowKey {
    pub(crate) remote: [u8; 16],
    pub(crate) local: [u8; 16],
    pub(crate) local_port: [u8; 2],
    pub(crate) remote_port: [u8; 2],
    pub(crate) protocol: u32,
}

/// A value of `flows`: its size is the same in every layout, see [`FlowKey`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Flow {
    /// Time of the last packet in nanoseconds, with a resolution of one second.
    pub(crate) last_seen: u64,
    pub(crate) ifindex: u32,
    pub(crate) is_answered: u32,
    pub(crate) owner: FlowOwner,
}

/// The owner whose share of `flows` a flow takes (`struct flow_owner`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct FlowOwner {
    /// A selected socket, [`OPENED_BY_REMOTE`], or a client whose packets are forwarded.
    pub(crate) opener: u32,
    /// The interface by which a client's packets arrive.
    pub(crate) interface: u32,
    pub(crate) application: Application,
}

/// An executable and the user who runs it (`struct application`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct Application {
    pub(crate) inode: u64,
    pub(crate) device: u32,
    pub(crate) user: u32,
}

/// The opener of a flow (`enum opener`): a remote host in the tunnel.
pub(crate) const OPENED_BY_REMOTE: u32 = 1;

/// A key of `networks`, without the prefix length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(C)]
pub(crate) struct NetworkKey {
    pub(crate) address: [u8; 16],
}

/// A key of `services`: the path, padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct ServiceKey {
    pub(crate) path: [u8; SERVICE_SIZE],
}

/// Maximum length of a path with its terminating zero (`SERVICE_SIZE`).
pub(crate) const SERVICE_SIZE: usize = 56;

/// A value of `uplinks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct UplinkValue {
    pub(crate) mac: [u8; 6],
    pub(crate) has_ethernet: u8,
    pub(crate) has_default_route: u8,
    pub(crate) link_id: u32,
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        // SAFETY: the type consists of integers and arrays of integers without padding, so any
        // bytes are a valid value, and a value has no uninitialised bytes.
        unsafe impl Pod for $type {}
    )*};
}
plain!(
    NameKey,
    ExactKey,
    DestinationKey,
    FlowKey,
    Flow,
    FlowOwner,
    NetworkKey,
    ServiceKey,
    UplinkValue
);

/// Returns the first word of a rule's key: kind and generation.
pub(crate) const fn space(kind: Kind, generation: u32) -> u32 {
    (kind as u32) << 1 | (generation & 1)
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $code:literal $text:literal,)*) => {
        /// Drop reasons and other counters of the eBPF programs.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the counter's name in JSON, which never changes.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Returns a phrase that follows the count.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// No memory for the verdict on a socket.
    SocketWithoutStorage "socket-without-storage"
        "sockets for whose verdict the system had no memory: refused, or, if another process handed \
         them over and BPF LSM does not run, bypassing the tunnel",
    /// A selected application asked for MPTCP, SMC or SCTP.
    Protocol "protocol"
        "MPTCP, SMC and SCTP sockets refused, for programs to use TCP instead",
    /// A connection to an address family that the tunnel does not carry.
    ConnectRefused "connect-refused"
        "connections refused because the tunnel does not carry their address family",
    /// A connection attempt while the tunnel was down.
    ConnectDown "connect-down"
        "connections refused while the tunnel was down",
    /// A datagram to an address family that the tunnel does not carry.
    SendRefused "send-refused"
        "datagrams refused because the tunnel does not carry their address family",
    /// A datagram while the tunnel was down.
    SendDown "send-down"
        "datagrams refused while the tunnel was down",
    /// A packet sent into the tunnel.
    OutTunnel "out-tunnel"
        "packets sent into the tunnel",
    /// A packet dropped because no process reads the TUN.
    OutDown "out-down"
        "packets dropped while the tunnel was down",
    /// A multicast or broadcast packet, or one of a family that the tunnel does not carry.
    OutClass "out-class"
        "packets dropped because the tunnel does not carry their destination",
    /// The owner of the flow already has its full share of the table.
    OutFlowsFull "out-flows-full"
        "packets dropped because their application has as many flows as it may",
    /// A packet dropped by the second layer.
    OutUnguarded "out-unguarded"
        "packets dropped on their way to an interface that was not guarded yet",
    /// A packet delivered from the tunnel.
    InDelivered "in-delivered"
        "packets delivered from the tunnel",
    /// A packet from the tunnel that was sent back to be refused.
    InBounced "in-bounced"
        "packets from the tunnel for sockets that are not selected, refused",
    /// A packet from the tunnel to an address that this machine does not have.
    InUnknown "in-unknown"
        "packets from the tunnel for an address that this machine does not have, dropped",
    /// A packet from outside the tunnel for a flow in the tunnel.
    ClearFlow "clear-flow"
        "packets dropped that bypassed the tunnel, for a flow in it",
    /// A packet from outside the tunnel for a selected application's socket.
    ClearSocket "clear-socket"
        "packets dropped that bypassed the tunnel, for a selected application",
    /// A path too deep to be compared as a whole.
    PathTooDeep "path-too-deep"
        "sockets refused because their executable or cgroup is more than 32 directories deep, too \
         deep for rules about paths",
    /// A socket bound to the TUN, or a packet sent to the TUN directly.
    TunMisused "tun-misused"
        "sockets and packets refused that would have used the tunnel's interface directly",
    /// A kind of socket that cannot be given a verdict.
    Family "family"
        "sockets refused that send below IP (AF_PACKET, AF_PPPOX, AF_XDP) or by sockets of the \
         kernel (SMC, RDS, RXRPC, TIPC)",
    /// A packet whose flow cannot be determined.
    Unreadable "unreadable"
        "packets dropped whose protocol or headers cannot be read",
    /// A packet from the tunnel for the socket of an unselected application.
    InUnselected "in-unchosen"
        "packets from the tunnel that an unselected application would have received, dropped",
    /// A packet from outside the tunnel for a client whose packets go into the tunnel.
    ClearClient "clear-client"
        "packets dropped that bypassed the tunnel, for a machine behind this one",
    /// A DNS query to an address family that no name server of the tunnel has.
    DnsFamily "name-family"
        "DNS queries refused because no server in DNS has an address of their family",
    /// A DNS query to a local resolver that was not redirected: by a socket from before the tunnel,
    /// by a netfilter rule that redirected it, or to another port of a resolver outside the tunnel.
    DnsLocal "name-here"
        "DNS queries refused that would have reached a resolver on this machine, by sockets from \
         before the tunnel, or a resolver outside the tunnel, by a rule of netfilter",
    /// A connection to a service that resolves names.
    DnsService "name-service"
        "connections of selected applications to services that resolve names outside the tunnel \
         (systemd-resolved, nscd, avahi, the system bus) blocked, on purpose: the applications ask \
         the tunnel's DNS instead",
    /// A socket from before the tunnel whose process was not found, under [`Lock::All`].
    OwnerUnknown "owner-unknown"
        "packets dropped because of KillSwitch = all: the application that owns their socket is \
         not known, since the open socket was in a message in transit when the tunnel came up, or \
         in a process that has ended or is outside this PID namespace",
}
