//! The network's configuration: links, addresses, routes, rules, route lookup
//! and the firewall table of a default route by a tunnel.
//!
//! What `ip` and `nft` would do, without them. [`System`] makes blocking calls;
//! everything else here is plain data that can be written to a journal and
//! compared.

mod address;
mod connection;
mod filter;
mod firewall;
mod generic;
mod link;
mod neighbour;
mod route;
mod rule;
mod socket;
#[cfg(test)]
mod tests;

use std::{fmt, io, net::IpAddr};

use ipnet::IpNet;
use rustix::{io::Errno, net::netlink::NETFILTER};
use serde::{Deserialize, Serialize};
use taupe_packet::ip::Family;

use self::socket::{Plain, Refusal, Socket};
pub use self::{connection::Connections, generic::Generic};

type Result<T> = std::result::Result<T, SystemError>;

/// Configures the network namespace that the calling thread was in when this
/// was opened. Changes need `CAP_NET_ADMIN`.
///
/// What exists already is not added again (`EEXIST`), and removing what is not
/// there fails: `ESRCH` for a route, `ENOENT` for a rule or a firewall table,
/// `EADDRNOTAVAIL` for an address, `ENODEV` for a link.
#[derive(Debug)]
pub struct System {
    route: Socket,
    /// Not to be had from a kernel without netfilter.
    netfilter: std::result::Result<Socket, Errno>,
}

impl System {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let route =
            Socket::open(None).map_err(|error| Refusal::from(error).of("open a netlink socket"))?;
        let netfilter = Socket::open(Some(NETFILTER))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PROTONOSUPPORT));
        Ok(Self { route, netfilter })
    }
}

/// The family's number.
fn number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

/// The family of this number.
fn family(number: u8) -> Option<Family> {
    Family::ALL
        .into_iter()
        .find(|&family| self::number(family) == number)
}

/// Whether the kernel would take it for an interface's name.
fn is_interface_name(name: &str) -> bool {
    let forbidden =
        |c: char| c == '/' || c == ':' || c == '\0' || c.is_ascii_whitespace() || c == '\x0b';
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && name != "."
        && name != ".."
        && !name.contains(forbidden)
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its number, never 0.
    pub index: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// What made it, such as `wireguard`, `tun` or `bridge`; hardware has none.
    pub kind: Option<String>,
    /// What its packets are wrapped in.
    pub medium: Medium,
    /// The index of the link that it is a part of: a bridge, a bond, a VRF.
    pub controller: Option<u32>,
}

/// What the packets of a link are wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// An Ethernet header; this is the link's own address (`ARPHRD_ETHER`).
    Ethernet([u8; 6]),
    /// They come back to this host (`ARPHRD_LOOPBACK`).
    Loopback,
    /// Nothing, or something else than Ethernet (`ARPHRD_*`).
    Other(u16),
}

/// Where on a link's way filters of its `clsact` queue are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// What leaves.
    Egress,
    /// What comes in.
    Ingress,
}

/// A filter of a link's `clsact` queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its place: lower is earlier.
    pub priority: u16,
    /// What tells it from others of that priority; 0 for the priority itself, which is
    /// listed before its filters.
    pub handle: u32,
    /// What its program is called, if it is one of BPF with a name.
    pub name: String,
}

/// A socket of TCP, UDP or UDP-Lite that is not a listener, as `ss -K` finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `IPPROTO_*`.
    pub protocol: u8,
    /// `AF_INET` or `AF_INET6`: the socket's, whatever its addresses are.
    pub family: Family,
    /// The addresses that it receives by: its own and the other's, in network order,
    /// in the first four bytes for IPv4.
    pub addresses: [[u8; 16]; 2],
    /// The ports, likewise.
    pub ports: [u16; 2],
    /// The interface that it is bound to, or 0.
    pub interface: u32,
    /// Its number, which no other socket has or had (`SO_COOKIE`).
    pub cookie: u64,
}

/// A socket that is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its ends.
    pub connection: Connection,
    /// Its state (`include/net/tcp_states.h`).
    pub state: u8,
    /// Whose it is.
    pub uid: u32,
    /// Its number in `/proc/PID/fd`; 0 for one that no process has any more.
    pub inode: u32,
    /// Its mark; `None` without `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Bytes of payload sent and received; only of TCP.
    pub transfer: Option<[u64; 2]>,
}

impl Listed {
    /// A connection that is open, or a socket of UDP with another end (`TCP_ESTABLISHED`).
    pub const ESTABLISHED: u8 = 1;
    /// A socket of UDP without another end (`TCP_CLOSE`).
    pub const CLOSE: u8 = 7;
    /// `TCP_LISTEN`.
    pub const LISTEN: u8 = 10;
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The interface's index.
    pub interface: u32,
    /// The address with the length of its network; host bits are kept.
    pub network: IpNet,
}

/// A route; a route of several next hops is listed once for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The number of the table it is in.
    pub table: u32,
    /// Where it leads; without host bits.
    pub destination: IpNet,
    /// What it does with a packet.
    pub kind: RouteKind,
    /// The index of the interface it leads by.
    pub interface: Option<u32>,
    /// The next hop; of the other family in a route by RFC 8950.
    pub gateway: Option<IpAddr>,
    /// Lower is preferred. An IPv6 route that is added with 0 gets 1024, which
    /// is what is listed then.
    pub metric: u32,
    /// The path's MTU in bytes, if the route sets it.
    pub mtu: Option<u32>,
    /// Who made it (`RTPROT_*`); [`Route::BOOT`] is what `ip` says.
    pub protocol: u8,
    /// How far its destination is (`RT_SCOPE_*`); always
    /// [`Route::SCOPE_UNIVERSE`] in IPv6.
    pub scope: u8,
}

impl Route {
    /// The table that everything is in unless told otherwise.
    pub const MAIN_TABLE: u32 = 254;
    /// The table of the host's own addresses.
    pub const LOCAL_TABLE: u32 = 255;
    /// The protocol of what a person made (`RTPROT_BOOT`).
    pub const BOOT: u8 = 3;
    /// Anywhere (`RT_SCOPE_UNIVERSE`).
    pub const SCOPE_UNIVERSE: u8 = 0;
    /// Directly on the link (`RT_SCOPE_LINK`).
    pub const SCOPE_LINK: u8 = 253;

    /// What `ip route add DESTINATION dev INTERFACE table TABLE` makes.
    #[must_use]
    pub fn by_interface(destination: IpNet, interface: u32, table: u32) -> Self {
        Self {
            table,
            destination: destination.trunc(),
            kind: RouteKind::Unicast,
            interface: Some(interface),
            gateway: None,
            metric: Self::default_metric(Family::of(destination.addr())),
            mtu: None,
            protocol: Self::BOOT,
            scope: match destination {
                IpNet::V4(_) => Self::SCOPE_LINK,
                IpNet::V6(_) => Self::SCOPE_UNIVERSE,
            },
        }
    }

    /// What `ip route add unreachable DESTINATION metric METRIC table TABLE`
    /// makes: senders get `EHOSTUNREACH`.
    #[must_use]
    pub fn unreachable(destination: IpNet, metric: u32, table: u32) -> Self {
        Self::without_interface(RouteKind::Unreachable, destination, metric, table)
    }

    /// What `ip route add KIND DESTINATION metric METRIC table TABLE` makes, for a kind
    /// that leads nowhere.
    #[must_use]
    pub fn without_interface(kind: RouteKind, destination: IpNet, metric: u32, table: u32) -> Self {
        Self {
            table,
            destination: destination.trunc(),
            kind,
            interface: None,
            gateway: None,
            metric,
            mtu: None,
            protocol: Self::BOOT,
            scope: Self::SCOPE_UNIVERSE,
        }
    }

    /// The metric of a route that is added without one.
    #[must_use]
    pub(crate) fn default_metric(family: Family) -> u32 {
        match family {
            Family::V4 => 0,
            Family::V6 => 1024,
        }
    }

    /// The family of its destination.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.destination.addr())
    }
}

/// What a route does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RouteKind {
    /// Sends it on.
    Unicast,
    /// Refuses it with `EHOSTUNREACH`.
    Unreachable,
    /// Refuses it with `EACCES`.
    Prohibit,
    /// Leaves it to the rules that come after the table's.
    Throw,
    /// Another `RTN_*`: local, broadcast, blackhole and so on.
    Other(u8),
}

/// As `ip` has it.
impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unicast => "unicast",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
            Self::Other(kind) => return write!(f, "type {kind}"),
        })
    }
}

/// A rule that says which routing table a packet is looked up in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Whose packets.
    pub family: Family,
    /// Lower is asked first.
    pub priority: u32,
    /// The table; 0 for a rule that does something else.
    pub table: u32,
    /// Where a packet has to come from; without host bits.
    #[serde(default)]
    pub source: Option<IpNet>,
    /// The firewall mark that a packet has to have.
    pub mark: Option<Mark>,
    /// For packets that the rest of the rule does *not* describe.
    pub invert: bool,
    /// Results with this prefix length in bits or a shorter one do not count.
    pub suppress_prefix_length: Option<u32>,
    /// Who made it (`RTPROT_*`); `ip` leaves it at 0.
    pub protocol: u8,
    /// It has selectors or an action that this type does not tell. Such a rule
    /// cannot be added or removed here.
    pub more: bool,
}

impl Rule {
    /// A rule for all packets, which others are made of.
    const fn all(family: Family, priority: u32, table: u32) -> Self {
        Self {
            family,
            priority,
            table,
            source: None,
            mark: None,
            invert: false,
            suppress_prefix_length: None,
            protocol: 0,
            more: false,
        }
    }

    /// What `ip rule add not fwmark MARK table TABLE` makes.
    #[must_use]
    pub const fn not_marked(family: Family, priority: u32, mark: u32, table: u32) -> Self {
        Self {
            invert: true,
            ..Self::marked(family, priority, mark, u32::MAX, table)
        }
    }

    /// What `ip rule add fwmark MARK/MASK table TABLE` makes.
    #[must_use]
    pub const fn marked(family: Family, priority: u32, mark: u32, mask: u32, table: u32) -> Self {
        Self {
            mark: Some(Mark { value: mark, mask }),
            ..Self::all(family, priority, table)
        }
    }

    /// What `ip rule add from SOURCE table TABLE` makes.
    #[must_use]
    pub fn from(source: IpNet, priority: u32, table: u32) -> Self {
        Self {
            source: Some(source.trunc()),
            ..Self::all(Family::of(source.addr()), priority, table)
        }
    }

    /// What `ip rule add table TABLE suppress_prefixlength LENGTH` makes.
    #[must_use]
    pub const fn suppressing(family: Family, priority: u32, length: u32, table: u32) -> Self {
        Self {
            suppress_prefix_length: Some(length),
            ..Self::all(family, priority, table)
        }
    }

    /// The priority that the kernel gives to a new rule that asks for none: one
    /// below the second of the family, which comes after the one for the local
    /// table. `rules` is what [`System::rules`] lists.
    #[must_use]
    pub fn next_priority(rules: &[Self], family: Family) -> u32 {
        let mut priorities: Vec<u32> = rules
            .iter()
            .filter(|rule| rule.family == family)
            .map(|rule| rule.priority)
            .collect();
        priorities.sort_unstable();
        priorities
            .get(1)
            .map_or(0, |second| second.saturating_sub(1))
    }
}

/// A firewall mark and which bits of it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The mark.
    pub value: u32,
    /// The bits that are compared.
    pub mask: u32,
}

/// Where packets for a destination go now.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteTo {
    /// The index of the interface they leave by.
    pub interface: u32,
    /// The path's MTU in bytes, if the route sets it or the kernel has learned
    /// it; otherwise the interface's holds.
    pub mtu: Option<u32>,
    /// The address they leave from.
    pub source: Option<IpAddr>,
    /// The next hop.
    pub gateway: Option<IpAddr>,
}

/// The nf_tables table that `wg-quick` makes for a default route by a tunnel:
/// what claims to come to the tunnel's addresses by another interface is
/// dropped (CVE-2019-14899), and replies to the tunnel's own datagrams get the
/// mark of the datagrams, so that a strict reverse-path filter lets them in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Firewall {
    /// Whose packets.
    pub family: Family,
    /// The table's name, at most 255 bytes.
    pub name: String,
    /// The tunnel's interface, which need not exist.
    pub interface: InterfaceMatch,
    /// The tunnel's addresses of this family.
    pub addresses: Vec<IpAddr>,
    /// The mark of the tunnel's own datagrams.
    pub mark: u32,
}

/// The property by which firewall rules recognise an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InterfaceMatch {
    /// `iifname`, as `wg-quick` writes it: the rules no longer mean an interface that is
    /// renamed.
    Name(String),
    /// `iif`: the number stays with an interface that is renamed.
    Index(u32),
}

/// The state of a firewall table, compared with a [`Firewall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirewallState {
    /// Chains and rules are those of the [`Firewall`]. Rules for further addresses of the
    /// tunnel are no difference.
    Whole,
    /// A chain or a rule is another one, or the table is switched off (`dormant`).
    Altered,
    /// There is no such table, or it has no rules.
    Missing,
}

/// A call that failed: which one, on what and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}{}", Reason(.reason.as_deref()))]
pub struct SystemError {
    /// The call, such as `add the route 192.0.2.0/24 by interface 7`.
    pub what: String,
    /// The kernel's own explanation, when it gives one.
    pub reason: Option<String>,
    /// The error.
    pub source: io::Error,
}

impl SystemError {
    /// The kernel's error number; none when the kernel was not asked or its
    /// answer could not be read.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

struct Reason<'a>(Option<&'a str>);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}
