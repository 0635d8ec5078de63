//! Connections: the process that owns each, whether a tunnel carries it, and why.
//!
//! ```text
//! sock_diag (all sockets) ─┬─ /proc/PID/fd: whose
//!                          ├─ the eBPF programs of each tunnel: which are selected
//!                          └─ the tunnel's process: bytes of UDP (traffic)
//! ```

use crate::conf::{self, Conf};
use crate::destination::Destination;
use crate::explain::{self, Explainer};
use crate::processes::Subject;
use crate::traffic::{self, UdpTraffic};
use crate::tunnel::open_programs;
use ipnet::IpNet;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use taupe_adapter::journal::Header;
use taupe_adapter::{Compatibility, State};
use taupe_config::destinations::{Class, class_of, table_for_peers};
use taupe_os_linux::netlink::{Netlink, NetlinkError, SockDiag, SocketId, SocketInfo};
use taupe_packet::ip::Family;
use taupe_transparent::capture::in_effect;
use taupe_transparent::error::TransparentError;
use taupe_transparent::marks::mark_of;
use taupe_transparent::programs::Programs;
use taupe_transparent::state::Lock;

const MAX_FLOWS: usize = 65_536;

const DNS_PORT: u16 = 53;

/// Protocol numbers of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Reason why no flows are listed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FlowsError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error("{0} is not up")]
    NotUp(String),
    #[error(transparent)]
    Fault(#[from] TransparentError),
    #[error(transparent)]
    System(#[from] NetlinkError),
}

/// Content of `taupe flows --json`. As in `taupe status --json`, members are only ever added.
#[derive(Serialize)]
pub struct Flows {
    /// Version of the format.
    pub schema: u32,
    /// True if there are more flows than are listed.
    pub truncated: bool,
    /// Flows, by process.
    pub flows: Vec<Flow>,
}

/// Path of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The tunnel carries the packets.
    Tunnel,
    /// The packets bypass every tunnel.
    Direct,
    /// The packets are blocked or refused.
    Refused,
}

/// A TCP connection, or the exchange of a UDP socket with one remote address.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct Flow {
    pub protocol: &'static str,
    pub local: SocketAddr,
    pub remote: Option<SocketAddr>,
    pub tunnel: Option<String>,
    pub verdict: Verdict,
    pub pid: Option<u32>,
    pub application: Option<String>,
    pub uid: u32,
    pub sent_bytes: Option<u64>,
    pub received_bytes: Option<u64>,
    pub why: Option<String>,
    #[serde(skip)]
    pub cookie: u64,
}

/// Key of a flow: the socket's cookie and the remote address.
pub type Id = (u64, Option<SocketAddr>);

impl Flow {
    /// Returns the key of the flow.
    #[must_use]
    pub fn id(&self) -> Id {
        (self.cookie, self.remote)
    }
}

/// A tunnel and the sockets in it.
struct Tunnel {
    interface: String,
    /// Its file, if it is readable.
    explainer: Option<Explainer>,
    table: Vec<(IpNet, Class)>,
    is_up: bool,
    lock: Lock,
    membership: Membership,
    traffic: Vec<UdpTraffic>,
    /// Its eBPF programs, if it has any.
    programs: Option<Programs>,
}

/// Criterion by which sockets belong to a tunnel.
enum Membership {
    /// The eBPF programs list the sockets: by cookie, or by addresses for those without one.
    Listed(HashSet<u64>, Vec<SocketId>),
    Mark(u32),
    /// Sockets with an address of the tunnel's interface belong to it.
    Addresses(Vec<IpAddr>),
}

impl Membership {
    fn listed(selected: Vec<SocketId>) -> Self {
        let (unnumbered, numbered): (Vec<_>, Vec<_>) = selected
            .into_iter()
            .partition(|connection| connection.cookie == NO_COOKIE);
        let cookies = numbered.iter().map(|connection| connection.cookie);
        Self::Listed(cookies.collect(), unnumbered)
    }
}

/// Cookie value of MPTCP subflows that have no cookie.
const NO_COOKIE: u64 = u64::MAX;

impl Tunnel {
    fn read(
        interface: &str,
        header: Option<&Header>,
        conf: Option<&Conf>,
    ) -> Result<Option<Self>, FlowsError> {
        let programs = open_programs(interface, header)?;
        let index = taupe_os_linux::interface::index(interface);
        let membership = match (&programs, mark_of(interface)?, index) {
            (Some(_), Some(mark), _) => Membership::Mark(mark),
            (Some(programs), None, _) => Membership::listed(programs.selected_connections()?),
            (None, _, Some(index)) => {
                let addresses = Netlink::open()?.addresses()?.into_iter();
                let own = addresses.filter(|address| address.interface == index);
                Membership::Addresses(own.map(|own| own.network.addr()).collect())
            }
            (None, _, None) => return Ok(None),
        };
        let explainer = conf.and_then(|conf| Explainer::read(conf).ok());
        let table = explainer.as_ref().map_or(Vec::new(), |explainer| {
            let file = &explainer.file;
            table_for_peers(&file.peers, file.transparent.bypass_lan.unwrap_or(false))
        });
        Ok(Some(Self {
            interface: interface.to_owned(),
            explainer,
            table,
            is_up: programs.as_ref().is_none_or(|programs| programs.is_up()),
            lock: programs
                .as_ref()
                .map(|programs| programs.lock())
                .unwrap_or_default(),
            membership,
            traffic: traffic::query(interface).traffic,
            programs,
        }))
    }

    /// Returns the server to which a socket in the tunnel sends its queries. If that is a resolver
    /// on this machine, the socket is connected to the alias address that replaces the resolver.
    fn queried_server(&self, remote: SocketAddr) -> Result<SocketAddr, TransparentError> {
        let server = match &self.programs {
            Some(programs) if remote.port() == DNS_PORT => {
                programs.resolver_of_alias(remote.ip())?
            }
            _ => None,
        };
        Ok(server.map_or(remote, |own| SocketAddr::new(own, remote.port())))
    }

    fn carries(&self, socket: &SocketInfo, local: IpAddr) -> bool {
        let connection = &socket.id;
        match &self.membership {
            Membership::Listed(cookies, unnumbered) => {
                let is_it = |other: &SocketId| {
                    (other.protocol, other.ports) == (connection.protocol, connection.ports)
                        && other.addresses == connection.addresses
                };
                cookies.contains(&connection.cookie) || unnumbered.iter().any(is_it)
            }
            Membership::Mark(mark) => socket.mark.is_some_and(|own| own & mark != 0),
            Membership::Addresses(own) => own.contains(&local),
        }
    }

    /// Checks whether a socket is bound to the tunnel's interface. Such sockets reach nothing in
    /// transparent mode.
    fn is_bound(&self, socket: &SocketInfo) -> bool {
        matches!(self.membership, Membership::Listed(..))
            && socket.id.interface != 0
            && taupe_os_linux::interface::index(&self.interface) == Some(socket.id.interface)
    }

    /// Returns the path of packets from a socket in the tunnel.
    fn verdict(&self, to: Option<SocketAddr>) -> Verdict {
        let is_by_address = matches!(self.membership, Membership::Addresses(_));
        let class = match to {
            Some(to) if !is_by_address && explain::is_on_link(to.ip()) => Class::Direct,
            Some(to) if !is_by_address => class_of(&self.table, to.ip()),
            _ => Class::Tunnel,
        };
        // Tunnels by mark do not treat DNS queries separately.
        let is_dns_query = matches!(self.membership, Membership::Listed(..))
            && to.is_some_and(|to| to.port() == DNS_PORT);
        match class {
            Class::Direct if !is_dns_query => Verdict::Direct,
            Class::Tunnel | Class::Direct if self.is_up => Verdict::Tunnel,
            Class::Tunnel | Class::Direct if self.lock == Lock::Off => Verdict::Direct,
            _ => Verdict::Refused,
        }
    }
}

/// Lists all flows, or those in one tunnel. Calls `on_unreadable` for a tunnel that another version
/// of Taupe set up, whose flows cannot be read.
///
/// # Errors
/// See [`FlowsError`].
pub fn look(
    file: Option<&OsStr>,
    on_unreadable: &mut dyn FnMut(&TransparentError),
) -> Result<Flows, FlowsError> {
    // Listing assigns each socket its cookie, so it comes before the tunnels are read.
    let mut connections = SockDiag::open()?;
    let mut sockets = Vec::new();
    for protocol in [TCP, UDP] {
        for family in [Family::V4, Family::V6] {
            match connections.sockets(protocol, family) {
                // The kernel cannot list this protocol.
                Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {}
                listed => sockets.extend(listed?),
            }
        }
    }
    let tunnels = tunnels(file, on_unreadable)?;
    let owners = owners(&sockets);
    let addresses = explain::addresses()?;
    let mut subjects: HashMap<u32, Option<Subject>> = HashMap::new();
    let mut flows = Vec::new();
    for socket in &sockets {
        let is_open = ![SocketInfo::LISTEN, TIME_WAIT].contains(&socket.state);
        let [local, remote] = endpoints(&socket.id);
        let is_tcp = socket.id.protocol == TCP;
        let remote = Some(remote).filter(|remote| remote.port() != 0);
        let is_local = remote.is_some_and(|to| {
            to.ip().is_loopback() || addresses.contains(&to.ip()) && addresses.contains(&local.ip())
        });
        if !is_open || is_local || (is_tcp && remote.is_none()) || local.port() == 0 {
            continue;
        }
        let tunnel = tunnels.iter().find(|one| one.carries(socket, local.ip()));
        // An unconnected UDP socket is only listed if it is in a tunnel.
        if (tunnel.is_none() && (remote.is_none() || file.is_some())) || flows.len() > MAX_FLOWS {
            continue;
        }
        let pid = owners.get(&socket.inode).copied();
        let subject = pid.and_then(|pid| {
            let subject = subjects.entry(pid).or_insert_with(|| Subject::of(pid));
            subject.as_ref()
        });
        let flow = |remote: Option<SocketAddr>, transfer: Option<[u64; 2]>| {
            let verdict = tunnel.map_or(Verdict::Direct, |tunnel| match tunnel.is_bound(socket) {
                true => Verdict::Refused,
                false => tunnel.verdict(remote),
            });
            let remote = match (tunnel, remote) {
                (Some(tunnel), Some(remote)) => Some(tunnel.queried_server(remote)?),
                _ => remote,
            };
            Ok::<_, TransparentError>(Flow {
                protocol: if is_tcp { "tcp" } else { "udp" },
                local,
                remote,
                tunnel: tunnel.map(|tunnel| tunnel.interface.clone()),
                verdict,
                pid,
                application: subject.map(Subject::shown_path),
                uid: socket.uid,
                sent_bytes: transfer.map(|[sent, _]| sent),
                received_bytes: transfer.map(|[_, received]| received),
                why: why(&tunnels, tunnel, subject, remote, verdict, &addresses),
                cookie: socket.id.cookie,
            })
        };
        if is_tcp {
            flows.push(flow(remote, socket.transfer)?);
            continue;
        }
        let counted = tunnel.map_or(Vec::new(), |tunnel| {
            traffic::of_socket(&tunnel.traffic, local, remote)
        });
        if counted.is_empty() {
            // A socket has no counts before it has sent data, nor for destinations outside the
            // tunnel.
            flows.push(flow(remote, None)?);
        }
        for one in counted {
            if flows.len() > MAX_FLOWS {
                break;
            }
            flows.push(flow(Some(one.remote), Some(one.bytes))?);
        }
    }
    let truncated = flows.len() > MAX_FLOWS;
    flows.truncate(MAX_FLOWS);
    flows.sort_by_key(|flow| (flow.pid, flow.id()));
    Ok(Flows {
        schema: 1,
        truncated,
        flows,
    })
}

/// State of a closed TCP connection that waits for late packets (`include/net/tcp_states.h`).
const TIME_WAIT: u8 = 6;

/// Returns all tunnels, or the one of `file`.
fn tunnels(
    file: Option<&OsStr>,
    on_unreadable: &mut dyn FnMut(&TransparentError),
) -> Result<Vec<Tunnel>, FlowsError> {
    let headers = State::default().here();
    let mut names: Vec<String> = headers
        .iter()
        .map(|header| header.interface.clone())
        .chain(in_effect()?)
        .collect();
    names.sort();
    names.dedup();
    if let Some(word) = file {
        let wanted = match conf::interface(word) {
            Some(interface) => interface.to_string(),
            None => Conf::find(word, Compatibility::Taupe)?
                .interface
                .to_string(),
        };
        if !names.contains(&wanted) {
            return Err(FlowsError::NotUp(wanted));
        }
        names = vec![wanted];
    }
    let mut tunnels = Vec::new();
    for name in &names {
        let header = headers.iter().find(|header| header.interface == *name);
        let conf = header.and_then(|header| {
            Some(Conf {
                interface: name.parse().ok()?,
                path: header.config.clone(),
                shown: header.config.clone(),
            })
        });
        match Tunnel::read(name, header, conf.as_ref()) {
            // Other tunnels are listed in spite of an unreadable one.
            Err(FlowsError::Fault(fault @ TransparentError::Schema { .. })) if file.is_none() => {
                on_unreadable(&fault);
            }
            tunnel => tunnels.extend(tunnel?),
        }
    }
    Ok(tunnels)
}

/// Returns the reason for the path of a flow.
fn why(
    tunnels: &[Tunnel],
    tunnel: Option<&Tunnel>,
    subject: Option<&Subject>,
    to: Option<SocketAddr>,
    verdict: Verdict,
    addresses: &[IpAddr],
) -> Option<String> {
    let to = to.map(|to| Destination {
        address: to.ip(),
        port: Some(to.port()),
    });
    if let Some(tunnel) = tunnel {
        if matches!(tunnel.membership, Membership::Addresses(_)) {
            return Some(format!("routes lead it into {}", tunnel.interface));
        }
        if verdict == Verdict::Refused && !tunnel.is_up {
            return Some(format!("{} is down; {}", tunnel.interface, tunnel.lock));
        }
    }
    let subject = subject?;
    // Every tunnel has its own reason not to carry this flow; the first one's is shown.
    let tunnel = tunnel.or(tunnels.first())?;
    let explainer = tunnel.explainer.as_ref()?;
    let is_in_tunnel = verdict == Verdict::Tunnel;
    explainer
        .why(subject, to, addresses, is_in_tunnel)
        .or_else(|| is_in_tunnel.then(|| "a selected application has used it".into()))
}

/// Returns the local and the remote address of a socket. IPv4-mapped addresses become IPv4.
pub(crate) fn endpoints(connection: &SocketId) -> [SocketAddr; 2] {
    let [local, remote] = connection.addresses.map(|octets| match connection.family {
        Family::V4 => {
            let [a, b, c, d, ..] = octets;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        Family::V6 => IpAddr::V6(Ipv6Addr::from(octets)).to_canonical(),
    });
    let [here, there] = connection.ports;
    [SocketAddr::new(local, here), SocketAddr::new(remote, there)]
}

/// Maps each socket's inode to the process that has it open. Of several processes, the one with the
/// lowest id is taken.
fn owners(sockets: &[SocketInfo]) -> HashMap<u32, u32> {
    let wanted: HashSet<u32> = sockets.iter().map(|socket| socket.inode).collect();
    let mut owners = HashMap::new();
    for id in crate::processes::ids() {
        for inode in crate::processes::sockets_of(id) {
            let inode = u32::try_from(inode).unwrap_or_default();
            if inode != 0 && wanted.contains(&inode) {
                owners.entry(inode).or_insert(id);
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_without_a_cookie_are_recognised_by_their_addresses() {
        let connection = |cookie, port| SocketId {
            protocol: TCP,
            family: Family::V4,
            addresses: [[1; 16], [2; 16]],
            ports: [port, 443],
            interface: 0,
            cookie,
        };
        let Membership::Listed(numbers, unnumbered) =
            Membership::listed(vec![connection(7, 1024), connection(NO_COOKIE, 1025)])
        else {
            panic!("they are listed");
        };
        assert_eq!(numbers, HashSet::from([7]));
        assert_eq!(unnumbered, [connection(NO_COOKIE, 1025)]);
    }
}
