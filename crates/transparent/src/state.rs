//! What kernel and daemon share: `bpf/state.h`, as Rust has it.
//!
//! The state is one page of memory that both have mapped. Single words change,
//! atomically; what belongs together changes by the generation.

use std::fmt;
use std::io;
use std::mem::size_of;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use aya::Pod;

/// The layout of the maps.
pub(crate) const SCHEMA: u32 = 39;

/// How many parts of a path are compared (`PATH_DEPTH`).
pub(crate) const PATH_DEPTH: usize = 32;

/// Bits of a rule (`RULE_*`).
pub(crate) const ALLOW: u32 = 1 << 0;
pub(crate) const DISALLOW: u32 = 1 << 1;
/// By how many bits a rule's number is shifted in values of `names` and `exact`.
pub(crate) const RULE_NUMBER: u32 = 32;

/// A kind of rule (`KIND_*`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub(crate) enum Kind {
    Name = 1 << 0,
    Path = 1 << 1,
    CgroupName = 1 << 2,
    CgroupPath = 1 << 3,
    User = 1 << 4,
    Folder = 1 << 5,
    Rule = 1 << 6,
}

/// Verdicts (`enum verdict`).
pub(crate) const DIRECT: u32 = 0;
pub(crate) const TUNNEL: u32 = 1;

/// What is held back while the tunnel is down (`enum lock`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u32)]
pub enum Lock {
    /// What chosen applications send.
    #[default]
    Chosen = 0,
    /// What anybody sends, as if all were chosen.
    Everybody = 1,
    /// Nothing: chosen applications go past the tunnel.
    Nobody = 2,
}

/// What it means, behind "the tunnel is down".
impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chosen => "what the chosen applications send is held back",
            Self::Everybody => "what any application sends is held back",
            Self::Nobody => "what the chosen applications send goes past it (KillSwitch = off)",
        })
    }
}

impl Lock {
    pub(crate) fn of(number: u32) -> Self {
        match number {
            1 => Self::Everybody,
            2 => Self::Nobody,
            _ => Self::Chosen,
        }
    }
}

/// Who answers questions for names of chosen applications (`enum names`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Names {
    /// The tunnel has name servers with IPv4 addresses.
    pub v4: bool,
    /// The tunnel has name servers with IPv6 addresses.
    pub v6: bool,
    /// The system bus is left open to applications that a rule names, though one can ask
    /// systemd-resolved by it.
    pub bus: bool,
}

impl Names {
    /// Whether the tunnel has name servers at all; without them questions go where they
    /// would go without a tunnel.
    #[must_use]
    pub fn any(self) -> bool {
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
    pub(crate) everyone: AtomicU32,
    pub(crate) otherwise: AtomicU32,
    pub(crate) path_depths: AtomicU32,
    pub(crate) cgroup_depths: AtomicU32,
    pub(crate) children: AtomicU32,
}

#[repr(C)]
pub(crate) struct State {
    pub(crate) schema: AtomicU32,
    pub(crate) up: AtomicU32,
    pub(crate) netns: AtomicU64,
    pub(crate) daemon: AtomicU32,
    pub(crate) tun: AtomicU32,
    pub(crate) stamp: AtomicU32,
    pub(crate) generation: AtomicU32,
    pub(crate) lock: AtomicU32,
    pub(crate) secured: AtomicU32,
    pub(crate) key: [AtomicU64; 2],
    pub(crate) rules: [RuleSet; 2],
    /// Entries of `flows`.
    pub(crate) flows: AtomicI32,
    /// The second in which a flow was last refused.
    pub(crate) refused: AtomicU32,
    pub(crate) forwarded: AtomicU32,
    /// [`Names`].
    pub(crate) names: AtomicU32,
    /// Processes in the tunnel's network namespace whose files could not be looked through.
    pub(crate) unseen: AtomicU32,
    /// Rules were replaced, and not all processes have theirs yet.
    pub(crate) learning: AtomicU32,
    /// The sender's hook is attached.
    pub(crate) traced: AtomicU32,
    /// Another program decides on packets by NFQUEUE.
    pub(crate) queued: AtomicU32,
}

impl State {
    pub(crate) fn key(&self) -> (u64, u64) {
        let [first, second] = &self.key;
        (
            first.load(Ordering::Relaxed),
            second.load(Ordering::Relaxed),
        )
    }

    pub(crate) fn rules(&self, generation: u32) -> &RuleSet {
        let [even, odd] = &self.rules;
        if generation & 1 == 0 { even } else { odd }
    }
}

/// The state, mapped.
pub(crate) struct Shared {
    page: NonNull<State>,
}

/// What the kernel maps at least.
const PAGE: usize = 4096;
const _: () = assert!(size_of::<State>() <= PAGE);

impl Shared {
    /// Maps the only element of the array that `map` is.
    pub(crate) fn map(map: BorrowedFd<'_>) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: no address is asked for, so that nothing that is mapped is
        // replaced.
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

impl std::ops::Deref for Shared {
    type Target = State;

    fn deref(&self) -> &State {
        // SAFETY: the page begins with a `State`, which is smaller, aligned as a page
        // is, and mapped until `self` is dropped. Any bytes are a valid one. The
        // kernel's programs change it meanwhile, which all its fields, being atomic,
        // allow; and nobody has an exclusive reference to it.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: these are the address and length that were mapped, and no reference
        // to the page is left, for each borrows `self`.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

// SAFETY: it is memory of atomic fields that stays where it is; any thread may
// use and unmap it.
unsafe impl Send for Shared {}
// SAFETY: as above: references give access to atomics alone.
unsafe impl Sync for Shared {}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("up", &self.up)
            .field("tun", &self.tun)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// A key of `names`, behind the prefix length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(C)]
pub(crate) struct NameKey {
    pub(crate) space: u32,
    pub(crate) name: [u8; NAME_SIZE],
}

/// How many bytes of a name are compared (`NAME_SIZE`).
pub(crate) const NAME_SIZE: usize = 240;

/// A key of `exact`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(C)]
pub(crate) struct ExactKey {
    pub(crate) space: u32,
    pub(crate) zero: u32,
    pub(crate) id: u64,
}

/// A key of `destinations`, behind the prefix length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct DestinationKey {
    pub(crate) space: u32,
    pub(crate) address: [u8; 16],
}

/// How many flows there may be (`FLOWS_MAX`).
pub(crate) const FLOWS_MAX: usize = 65_536;

/// A key of `flows`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct FlowKey {
    pub(crate) remote: [u8; 16],
    pub(crate) local: [u8; 16],
    pub(crate) local_port: [u8; 2],
    pub(crate) remote_port: [u8; 2],
    pub(crate) protocol: u32,
}

/// A value of `flows`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Flow {
    /// In nanoseconds, to the second.
    pub(crate) seen: u64,
    pub(crate) ifindex: u32,
    pub(crate) is_answered: u32,
    pub(crate) owner: FlowOwner,
}

/// Whose share of `flows` a flow takes (`struct flow_owner`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct FlowOwner {
    /// A selected socket, [`OF_STRANGER`], or a client whose packets are forwarded.
    pub(crate) opener: u32,
    /// The interface that a client's packets come by.
    pub(crate) interface: u32,
    pub(crate) application: Application,
}

/// An executable, as a user runs it (`struct application`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(crate) struct Application {
    pub(crate) inode: u64,
    pub(crate) device: u32,
    pub(crate) user: u32,
}

/// Who has opened a flow (`enum opener`): somebody in the tunnel.
pub(crate) const OF_STRANGER: u32 = 1;

/// A key of `networks`, behind the prefix length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(C)]
pub(crate) struct NetworkKey {
    pub(crate) address: [u8; 16],
}

/// A key of `services`: the path, and zeros behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct ServiceKey {
    pub(crate) path: [u8; SERVICE_SIZE],
}

/// How long a path may be, with its end (`SERVICE_SIZE`).
pub(crate) const SERVICE_SIZE: usize = 56;

/// A value of `uplinks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct UplinkValue {
    pub(crate) mac: [u8; 6],
    pub(crate) has_ethernet: u8,
    pub(crate) leads_out: u8,
    pub(crate) link: u32,
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        // SAFETY: integers and arrays of them without padding in between: any bytes
        // are a value, and all bytes of a value are set.
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

/// Kind and generation, as keys of rules begin.
pub(crate) const fn space(kind: Kind, generation: u32) -> u32 {
    (kind as u32) << 1 | (generation & 1)
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What the kernel's part has done with a packet or socket, counted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them, in the order that they are counted in.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What has happened, to follow a number.
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
    /// There was no memory for the verdict on a socket.
    SocketWithoutStorage = "sockets that the system had no memory to mark: refused, or, where one was \
                            handed over and the kernel runs without BPF LSM, past the tunnel",
    /// A chosen application asked for MPTCP, SMC or SCTP.
    Protocol = "MPTCP, SMC and SCTP sockets refused, for programs to use TCP instead",
    /// A destination of a family that the tunnel does not have.
    ConnectRefused = "connections refused because the tunnel does not carry their address family",
    /// A connection while the tunnel was down.
    ConnectDown = "connections refused while the tunnel was down",
    /// A datagram of a family that the tunnel does not have.
    SendRefused = "datagrams refused because the tunnel does not carry their address family",
    /// A datagram while the tunnel was down.
    SendDown = "datagrams refused while the tunnel was down",
    /// Went into the tunnel.
    OutTunnel = "packets sent into the tunnel",
    /// Dropped because nobody reads the TUN.
    OutDown = "packets dropped while the tunnel was down",
    /// Multicast, broadcast, or a family that the tunnel does not have.
    OutClass = "packets dropped because the tunnel does not carry their destination",
    /// Whoever opened the flow has a fair share of the table already.
    OutFlowsFull = "packets dropped because their application has as many flows as it may",
    /// Dropped by the second layer.
    OutUnguarded = "packets dropped on their way to an interface that was not guarded yet",
    /// Delivered from the tunnel.
    InDelivered = "packets delivered from the tunnel",
    /// Sent back to be refused.
    InBounced = "packets from the tunnel for what is not a chosen application, refused",
    /// From the tunnel, for an address that is not this machine's.
    InUnknown = "packets from the tunnel for an address that this machine does not have, dropped",
    /// A packet in the clear for a flow in the tunnel.
    ClearFlow = "packets dropped that came past the tunnel for a flow in it",
    /// A packet in the clear for a chosen application's socket.
    ClearSocket = "packets dropped that came past the tunnel for a chosen application",
    /// A path that cannot be compared to its end.
    PathTooDeep = "sockets refused because their executable or cgroup is more than 32 folders \
                   deep, which no rule about paths can tell",
    /// A socket is bound to the TUN, or somebody sent something there directly.
    TunMisused = "sockets and packets refused that were to use the tunnel's interface directly",
    /// A kind of socket that no verdict can be had for.
    Family = "sockets refused that send below IP (AF_PACKET, AF_PPPOX, AF_XDP) or by the kernel's \
              own (SMC, RDS, RXRPC, TIPC)",
    /// Nobody knows to what flow it belongs.
    Unreadable = "packets dropped whose protocol or headers cannot be read",
    /// From the tunnel, for the socket of an unchosen application.
    InUnchosen = "packets from the tunnel that an unchosen application would have received, dropped",
    /// A packet in the clear for somebody whose packets go to the tunnel.
    ClearClient = "packets dropped that came past the tunnel for a machine behind this one",
    /// A question for a name, where no server of the tunnel has such an address.
    NameFamily = "questions for names refused because no server in DNS has an address of their family",
    /// A question on loopback by a socket that was not turned to the tunnel's servers, or
    /// that netfilter has led back, or to another port of who is reached past the tunnel.
    NameHere = "packets refused that would have asked a resolver on this machine, by sockets from before, \
                or one past the tunnel, led there by a rule of netfilter",
    /// A connection to a service that resolves names.
    NameService = "connections of chosen applications to services that look up names past the tunnel \
                   (systemd-resolved, nscd, avahi, the system bus) held back, on purpose: they ask \
                   the tunnel's DNS instead",
    /// A socket from before that no process was found to have, under [`Lock::Everybody`].
    OwnerUnknown = "packets dropped because of KillSwitch = all: the application that owns their \
                    socket is not known, since at `up` the open socket was in a message in \
                    transit, or in a process that has ended or is outside this PID namespace",
}
