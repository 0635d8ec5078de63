//! Connections: the process that owns each, whether a tunnel carries it, and why.
//!
//! ```text
//! sock_diag (all sockets) ─┬─ /proc/PID/fd: whose
//!                          ├─ the kernel's part of each tunnel: which are chosen
//!                          └─ the tunnel's process: bytes of UDP (traffic)
//! ```

use crate::conf::{self, Conf};
use crate::destination::Destination;
use crate::explain::{self, Known};
use crate::processes::Subject;
use crate::traffic::{self, Traffic};
use crate::tunnel::attached;
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

const MOST: usize = 65_536;

const DNS_PORT: u16 = 53;

/// Reason why nothing is listed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error("{0} is not up (`taupe status` shows what is)")]
    NotThere(String),
    #[error("{}", crate::advice::error(.0))]
    Fault(#[from] TransparentError),
    #[error(transparent)]
    System(#[from] NetlinkError),
}

/// Content of `taupe flows --json`. As in `taupe status --json`, members are only ever added.
#[derive(Serialize)]
pub struct Flows {
    pub schema: u32,
    /// True if there are more flows than are listed.
    pub truncated: bool,
    pub flows: Vec<Flow>,
}

/// Path of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Tunnel,
    Direct,
    /// The packets are blocked or refused.
    Refused,
}

/// A TCP connection, or the exchange of a UDP socket with one remote address.
#[derive(Clone, Debug, Serialize)]
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
    pub fn id(&self) -> Id {
        (self.cookie, self.remote)
    }
}

/// A tunnel and the sockets in it.
struct Tunnel {
    interface: String,
    /// Its file, if it is readable.
    known: Option<Known>,
    table: Vec<(IpNet, Class)>,
    is_up: bool,
    lock: Lock,
    inside: Inside,
    traffic: Vec<Traffic>,
    /// Its eBPF programs, if it has any.
    programs: Option<Programs>,
}

/// Criterion by which sockets belong to a tunnel.
enum Inside {
    /// The eBPF programs list the sockets: by cookie, or by addresses for those without one.
    Listed(HashSet<u64>, Vec<SocketId>),
    Mark(u32),
    /// Sockets with an address of the tunnel's interface belong to it.
    Addresses(Vec<IpAddr>),
}

impl Inside {
    fn of(chosen: Vec<SocketId>) -> Self {
        let (unnumbered, numbered): (Vec<_>, Vec<_>) = chosen
            .into_iter()
            .partition(|connection| connection.cookie == NO_COOKIE);
        let cookies = numbered.iter().map(|connection| connection.cookie);
        Self::Listed(cookies.collect(), unnumbered)
    }
}

/// Cookie value of MPTCP subflows that have no cookie.
const NO_COOKIE: u64 = u64::MAX;

impl Tunnel {
    fn look(
        interface: &str,
        header: Option<&Header>,
        conf: Option<&Conf>,
    ) -> Result<Option<Self>, Failure> {
        let programs = attached(interface, header)?;
        let index = taupe_os_linux::interface::index(interface);
        let inside = match (&programs, mark_of(interface)?, index) {
            (Some(_), Some(mark), _) => Inside::Mark(mark),
            (Some(programs), None, _) => Inside::of(programs.selected_connections()?),
            (None, _, Some(index)) => {
                let addresses = Netlink::open()?.addresses()?.into_iter();
                let own = addresses.filter(|address| address.interface == index);
                Inside::Addresses(own.map(|own| own.network.addr()).collect())
            }
            (None, _, None) => return Ok(None),
        };
        let known = conf.and_then(|conf| Known::read(conf).ok());
        let table = known.as_ref().map_or(Vec::new(), |known| {
            let bypass_lan = known.file.transparent.bypass_lan.unwrap_or(false);
            table_for_peers(&known.file.peers, bypass_lan)
        });
        Ok(Some(Self {
            interface: interface.to_owned(),
            known,
            table,
            is_up: programs.as_ref().is_none_or(Programs::is_up),
            lock: programs.as_ref().map(Programs::lock).unwrap_or_default(),
            inside,
            traffic: traffic::ask(interface).traffic,
            programs,
        }))
    }

    /// Returns the server to which a socket in the tunnel sends its queries. If that is a resolver
    /// on this machine, the socket is connected to the alias address that replaces the resolver.
    fn asked(&self, remote: SocketAddr) -> Result<SocketAddr, TransparentError> {
        let asked = match &self.programs {
            Some(programs) if remote.port() == DNS_PORT => {
                programs.resolver_of_alias(remote.ip())?
            }
            _ => None,
        };
        Ok(asked.map_or(remote, |own| SocketAddr::new(own, remote.port())))
    }

    fn has(&self, socket: &SocketInfo, local: IpAddr) -> bool {
        let connection = &socket.id;
        match &self.inside {
            Inside::Listed(cookies, unnumbered) => {
                let is_it = |other: &SocketId| {
                    (other.protocol, other.ports) == (connection.protocol, connection.ports)
                        && other.addresses == connection.addresses
                };
                cookies.contains(&connection.cookie) || unnumbered.iter().any(is_it)
            }
            Inside::Mark(mark) => socket.mark.is_some_and(|own| own & mark != 0),
            Inside::Addresses(own) => own.contains(&local),
        }
    }

    /// Checks whether a socket is bound to the tunnel's interface. Such sockets reach nothing in
    /// transparent mode.
    fn refuses(&self, socket: &SocketInfo) -> bool {
        matches!(self.inside, Inside::Listed(..))
            && socket.id.interface != 0
            && taupe_os_linux::interface::index(&self.interface) == Some(socket.id.interface)
    }

    /// Returns the path of packets from a socket in the tunnel.
    fn verdict(&self, to: Option<SocketAddr>) -> Verdict {
        let is_by_address = matches!(self.inside, Inside::Addresses(_));
        let class = match to {
            Some(to) if !is_by_address && explain::is_neighbour(to.ip()) => Class::Direct,
            Some(to) if !is_by_address => class_of(&self.table, to.ip()),
            _ => Class::Tunnel,
        };
        // Tunnels by mark do not treat DNS queries separately.
        let is_question =
            matches!(self.inside, Inside::Listed(..)) && to.is_some_and(|to| to.port() == DNS_PORT);
        match class {
            Class::Direct if !is_question => Verdict::Direct,
            Class::Tunnel | Class::Direct if self.is_up => Verdict::Tunnel,
            Class::Tunnel | Class::Direct if self.lock == Lock::Off => Verdict::Direct,
            _ => Verdict::Refused,
        }
    }
}

/// Lists all flows, or those in one tunnel. Calls `unseen` for a tunnel that another version of
/// Taupe set up, whose flows cannot be read.
pub fn look(
    file: Option<&OsStr>,
    unseen: &mut dyn FnMut(&TransparentError),
) -> Result<Flows, Failure> {
    // Listing assigns each socket its cookie, so it comes before the tunnels are read.
    let mut connections = SockDiag::open()?;
    let mut sockets = Vec::new();
    for protocol in [libc_tcp(), libc_udp()] {
        for family in [Family::V4, Family::V6] {
            sockets.extend(connections.sockets(protocol, family)?);
        }
    }
    let tunnels = tunnels(file, unseen)?;
    let owners = owners(&sockets);
    let addresses = explain::addresses()?;
    let mut subjects: HashMap<u32, Option<Subject>> = HashMap::new();
    let mut flows = Vec::new();
    for socket in &sockets {
        let is_open = ![SocketInfo::LISTEN, TIME_WAIT].contains(&socket.state);
        let [local, remote] = ends(&socket.id);
        let is_tcp = socket.id.protocol == libc_tcp();
        let remote = Some(remote).filter(|remote| remote.port() != 0);
        let stays = remote.is_some_and(|to| {
            to.ip().is_loopback() || addresses.contains(&to.ip()) && addresses.contains(&local.ip())
        });
        if !is_open || stays || (is_tcp && remote.is_none()) || local.port() == 0 {
            continue;
        }
        let tunnel = tunnels.iter().find(|one| one.has(socket, local.ip()));
        // An unconnected UDP socket is only listed if it is in a tunnel.
        if (tunnel.is_none() && (remote.is_none() || file.is_some())) || flows.len() > MOST {
            continue;
        }
        let pid = owners.get(&socket.inode).copied();
        let subject = pid.and_then(|pid| {
            let subject = subjects.entry(pid).or_insert_with(|| Subject::of(pid));
            subject.as_ref()
        });
        let flow = |remote: Option<SocketAddr>, transfer: Option<[u64; 2]>| {
            let verdict = tunnel.map_or(Verdict::Direct, |tunnel| match tunnel.refuses(socket) {
                true => Verdict::Refused,
                false => tunnel.verdict(remote),
            });
            let remote = match (tunnel, remote) {
                (Some(tunnel), Some(remote)) => Some(tunnel.asked(remote)?),
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
        let seen = tunnel.map_or(Vec::new(), |tunnel| {
            traffic::of_socket(&tunnel.traffic, local, remote)
        });
        if seen.is_empty() {
            // A socket has no counts before it has sent data, nor for destinations outside the
            // tunnel.
            flows.push(flow(remote, None)?);
        }
        for one in seen {
            flows.push(flow(Some(one.remote), Some(one.bytes))?);
        }
    }
    let truncated = flows.len() > MOST;
    flows.truncate(MOST);
    flows.sort_by_key(|flow| (flow.pid, flow.id()));
    Ok(Flows {
        schema: 1,
        truncated,
        flows,
    })
}

/// State of a closed TCP connection that waits for late packets (`include/net/tcp_states.h`).
const TIME_WAIT: u8 = 6;

const fn libc_tcp() -> u8 {
    6
}

const fn libc_udp() -> u8 {
    17
}

/// Returns all tunnels, or the one of `file`.
fn tunnels(
    file: Option<&OsStr>,
    unseen: &mut dyn FnMut(&TransparentError),
) -> Result<Vec<Tunnel>, Failure> {
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
            return Err(Failure::NotThere(wanted));
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
        match Tunnel::look(name, header, conf.as_ref()) {
            // Other tunnels are listed in spite of an unreadable one.
            Err(Failure::Fault(fault @ TransparentError::Schema { .. })) if file.is_none() => {
                unseen(&fault);
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
        if matches!(tunnel.inside, Inside::Addresses(_)) {
            return Some(format!("routes lead it into {}", tunnel.interface));
        }
        if verdict == Verdict::Refused && !tunnel.is_up {
            return Some(format!("{} is down; {}", tunnel.interface, tunnel.lock));
        }
    }
    let subject = subject?;
    // Every tunnel has its own reason not to carry this flow; the first one's is shown.
    let tunnel = tunnel.or(tunnels.first())?;
    let known = tunnel.known.as_ref()?;
    let is_inside = verdict == Verdict::Tunnel;
    known
        .why(subject, to, addresses, is_inside)
        .or_else(|| is_inside.then(|| "an application that is chosen has used it".into()))
}

/// Returns the local and the remote address of a socket. IPv4-mapped addresses become IPv4.
fn ends(connection: &SocketId) -> [SocketAddr; 2] {
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
    fn only_what_has_no_number_is_known_by_its_ends() {
        let connection = |cookie, port| SocketId {
            protocol: libc_tcp(),
            family: Family::V4,
            addresses: [[1; 16], [2; 16]],
            ports: [port, 443],
            interface: 0,
            cookie,
        };
        let Inside::Listed(numbers, unnumbered) =
            Inside::of(vec![connection(7, 1024), connection(NO_COOKIE, 1025)])
        else {
            panic!("they are listed");
        };
        assert_eq!(numbers, HashSet::from([7]));
        assert_eq!(unnumbered, [connection(NO_COOKIE, 1025)]);
    }
}
