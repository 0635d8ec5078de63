//! The owners of packets: determines the process of a flow by the system's lists of sockets, and
//! caches them.
//!
//! A list is read again if it has no answer. A flow's first packet is never judged by an old list.
//! TCP sockets are found by both ends, or, while a connection is being accepted, by the listening
//! socket. UDP sockets are found by their local end, or by a socket that is bound to all addresses.
//!
//! A socket's process is looked up when the socket first appears in a list, and does not change
//! afterwards. The process may have ended when the last packet is judged.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use taupe_packet::ip;
use taupe_protocol::time::Instant;

use super::{cache::Cache, packet::Flow};

/// The system's information on sockets and processes.
pub trait Owners {
    /// Lists the current sockets of a protocol, of both families.
    ///
    /// # Errors
    ///
    /// The system's error. Packets whose owner cannot be determined are dropped then.
    fn sockets(&mut self, protocol: Protocol) -> io::Result<Vec<Socket>>;

    /// Returns the current holder of a PID.
    fn holder(&mut self, pid: u32) -> Holder;
}

/// The holder of a PID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A process.
    Process(Process),
    /// The system's kernel.
    System,
    /// An unknown program: its name cannot be read, or it has ended.
    Unknown,
}

/// A transport protocol with sockets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A socket in the system's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// The local end.
    pub local: SocketAddr,
    /// The remote end of a TCP connection; `None` for a listening socket, and for UDP.
    pub remote: Option<SocketAddr>,
    /// The process that owns it.
    pub pid: u32,
    /// The time of its creation, on the clock of [`Process::started`]; 0 if unknown.
    pub created: u64,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// The path of its executable.
    pub path: String,
    /// Its name: the last part of the path.
    pub name: String,
    /// The time of its start. An older socket is not its own.
    pub started: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Process(Arc<Process>),
    /// An unknown program.
    Unknown,
    /// No socket, or one of the kernel: the system itself.
    System,
    /// Not known yet.
    Pending,
    /// Not looked up, because no rule depends on it.
    NotNeeded,
}

/// Minimum interval between two readings of a list.
const BETWEEN_READS: Duration = Duration::from_millis(1);

/// Maximum age of a list that determines an owner. After that another process may have the port,
/// and there is no notification of that.
pub(super) const RECENT: Duration = Duration::from_millis(100);

/// The time for which no packet waits again for a socket that was missing from the list.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);

/// The time for which packets from a closed socket's end count as that socket's.
const GONE_FOR: Duration = Duration::from_secs(10);

/// After this silence of a flow, another socket may have its local end, so the list is read again.
const SILENT: Duration = Duration::from_millis(10);

/// Maximum number of cached ends: of unknown sockets, and of sockets that have gone.
const UNKNOWN: usize = 4096;
const GONE: usize = 4096;

/// Maximum number of cached sockets per end that have gone.
const GONE_TOGETHER: usize = 8;

/// Key of a socket: the local end, and for a connection the remote end.
type Key = (SocketAddr, Option<SocketAddr>);

pub(super) struct OwnerCache {
    system: Box<dyn Owners + Send>,
    tcp: List,
    udp: List,
    /// Flows without a socket, with the time of their last packet.
    unknown: Cache<Flow, Instant>,
    gone: Cache<(Protocol, Key), Gone>,
}

/// The owners of the sockets that an end had, and the time when these were first missing.
#[derive(Clone)]
struct Gone {
    owners: Arc<[Owner]>,
    at: Instant,
}

/// The position of a packet in its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlowPosition {
    /// A packet that continues a flow, as far as can be seen.
    Continues,
    /// The first packet of a connection. `again`: the same ends were used before, or the request is
    /// a repetition.
    Opens { again: bool },
}

#[derive(Default)]
struct List {
    rows: HashMap<Key, Vec<Row>>,
    /// The time of the last reading, successful or not.
    read: Option<Instant>,
    is_readable: bool,
}

#[derive(Clone)]
struct Row {
    pid: u32,
    created: u64,
    owner: Owner,
}

impl Row {
    /// Returns true if the list entry is for the same socket, as far as the system distinguishes
    /// them.
    fn is(&self, socket: &Socket) -> bool {
        self.created != 0 && (self.pid, self.created) == (socket.pid, socket.created)
    }
}

impl OwnerCache {
    pub(super) fn new(system: Box<dyn Owners + Send>) -> Self {
        Self {
            system,
            tcp: List::default(),
            udp: List::default(),
            unknown: Cache::new(UNKNOWN),
            gone: Cache::new(GONE),
        }
    }

    /// Returns the owner of a packet of `flow`. If several processes may have sent it, prefers one
    /// for which `is_selected` returns true. `is_last`: the packet has waited already.
    pub(super) fn of(
        &mut self,
        now: Instant,
        flow: &Flow,
        position: FlowPosition,
        is_last: bool,
        is_selected: impl Fn(&Process) -> bool,
    ) -> Owner {
        let Some(protocol) = Protocol::of(flow) else {
            return Owner::System;
        };
        let opens = protocol == Protocol::Tcp && position != FlowPosition::Continues;
        let age = match position {
            FlowPosition::Opens { again: true } if opens => BETWEEN_READS,
            _ => RECENT,
        };
        let keys = Keys::of(protocol, flow, opens);
        if self.is_fresh(now, protocol, age)
            && let Some(owner) = self.find(protocol, &keys, &is_selected)
        {
            return owner;
        }
        let silence = self.unknown.get(flow).map(|last| now.since(last));
        let is_unknown = silence.is_some_and(|silence| silence < UNKNOWN_FOR);
        let goes_on = silence.is_some_and(|silence| silence < SILENT);
        let age = match goes_on && !opens {
            true => RECENT,
            false => BETWEEN_READS,
        };
        if !self.is_fresh(now, protocol, age) {
            self.read(now, protocol);
        }
        if !self.list(protocol).is_readable {
            return Owner::Pending;
        }
        let found = self.find(protocol, &keys, &is_selected);
        if let Some(owner) = found.or_else(|| self.find_gone(now, protocol, &keys, &is_selected)) {
            return owner;
        }
        // A repeated connection request has waited already.
        if is_last || is_unknown {
            self.unknown.insert(*flow, now);
            return Owner::System;
        }
        Owner::Pending
    }

    /// Returns the owner of the socket that receives unsolicited packets of `flow`, if there is
    /// one. A remote sender must not influence what is cached, nor how often lists are read.
    pub(super) fn receiver(
        &mut self,
        now: Instant,
        flow: &Flow,
        is_selected: impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let protocol = Protocol::of(flow)?;
        if !self.is_fresh(now, protocol, RECENT) {
            self.read(now, protocol);
        }
        self.find(protocol, &Keys::of(protocol, flow, false), &is_selected)
    }

    /// Returns the time of the list that determines a flow's owner.
    pub(super) fn listed_at(&mut self, flow: &Flow) -> Option<Instant> {
        self.list(Protocol::of(flow)?).read
    }

    fn list(&mut self, protocol: Protocol) -> &mut List {
        match protocol {
            Protocol::Tcp => &mut self.tcp,
            Protocol::Udp => &mut self.udp,
        }
    }

    /// Returns true if a list has been read within `age`.
    fn is_fresh(&mut self, now: Instant, protocol: Protocol, age: Duration) -> bool {
        let read = self.list(protocol).read;
        read.is_some_and(|at| now.since(at) < age)
    }

    fn read(&mut self, now: Instant, protocol: Protocol) {
        let sockets = self.system.sockets(protocol);
        let list = self.list(protocol);
        list.read = Some(now);
        list.is_readable = sockets.is_ok();
        let Ok(sockets) = sockets else {
            return;
        };
        let before = std::mem::take(&mut list.rows);
        let mut rows: HashMap<Key, Vec<Row>> = HashMap::new();
        // PIDs are reused, so holders are not cached across readings.
        let mut holders = HashMap::new();
        for socket in sockets {
            let key = (canonical(socket.local), socket.remote.map(canonical));
            let known = before.get(&key).into_iter().flatten();
            let mut known = known.filter(|row| row.owner != Owner::Unknown);
            let owner = match known.find(|row| row.is(&socket)) {
                Some(row) => row.owner.clone(),
                None => {
                    let system = &mut self.system;
                    let holder = holders.entry(socket.pid);
                    let holder = holder.or_insert_with(|| owner(system.holder(socket.pid)));
                    unless_older(holder, &socket)
                }
            };
            let Socket { pid, created, .. } = socket;
            rows.entry(key).or_default().push(Row {
                pid,
                created,
                owner,
            });
        }
        for (key, before) in before {
            let still = rows.get(&key).map_or(&[][..], Vec::as_slice);
            self.cache_gone(now, (protocol, key), before, still);
        }
        self.list(protocol).rows = rows;
    }

    /// Caches the owners of sockets that are no longer in the list.
    fn cache_gone(&mut self, now: Instant, key: (Protocol, Key), before: Vec<Row>, still: &[Row]) {
        let is_there = |row: &Row| {
            still
                .iter()
                .any(|it| (it.pid, it.created) == (row.pid, row.created))
        };
        let gone = before.into_iter().filter(|row| !is_there(row));
        let gone = gone.map(|row| row.owner);
        let mut gone: Vec<Owner> = gone.filter(|owner| *owner != Owner::System).collect();
        if gone.is_empty() {
            return;
        }
        if let Some(earlier) = self.gone.get(&key)
            && now.since(earlier.at) < GONE_FOR
        {
            gone.extend_from_slice(&earlier.owners);
        }
        gone.truncate(GONE_TOGETHER);
        let (owners, at) = (gone.into(), now);
        self.gone.insert(key, Gone { owners, at });
    }

    fn find(
        &mut self,
        protocol: Protocol,
        keys: &Keys,
        is_selected: &impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let list = self.list(protocol);
        if !list.is_readable {
            return None;
        }
        let owners = |key| {
            let rows = list.rows.get(key).into_iter().flatten();
            rows.map(|row| &row.owner)
        };
        // A connected socket takes precedence over bound ones.
        let connection = keys.connection.iter().flat_map(owners);
        preferred(connection, is_selected)
            .or_else(|| preferred(keys.bound.iter().flat_map(owners), is_selected))
    }

    fn find_gone(
        &mut self,
        now: Instant,
        protocol: Protocol,
        keys: &Keys,
        is_selected: &impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let keys = keys.connection.iter().chain(&keys.bound);
        let gone = keys.filter_map(|key| self.gone.get(&(protocol, *key)));
        let gone: Vec<_> = gone.filter(|it| now.since(it.at) < GONE_FOR).collect();
        preferred(gone.iter().flat_map(|it| it.owners.iter()), is_selected)
    }
}

impl Protocol {
    fn of(flow: &Flow) -> Option<Self> {
        match flow.protocol {
            ip::TCP => Some(Self::Tcp),
            ip::UDP => Some(Self::Udp),
            _ => None,
        }
    }
}

/// Selects among several possible senders of a packet: prefers a selected process, then an unknown
/// program.
fn preferred<'a>(
    owners: impl Iterator<Item = &'a Owner> + Clone,
    is_selected: &impl Fn(&Process) -> bool,
) -> Option<Owner> {
    let selected = |owner: &&Owner| matches!(owner, Owner::Process(it) if is_selected(it));
    let unknown = |owner: &&Owner| **owner == Owner::Unknown;
    let mut all = owners.clone();
    let found = owners.clone().find(selected);
    let found = found.or_else(|| owners.clone().find(unknown));
    found.or_else(|| all.next()).cloned()
}

fn owner(holder: Holder) -> Owner {
    match holder {
        Holder::Process(process) => Owner::Process(Arc::new(process)),
        Holder::System => Owner::System,
        Holder::Unknown => Owner::Unknown,
    }
}

/// Returns `Unknown` if the socket is older than the process: the PID has been reused.
fn unless_older(owner: &Owner, socket: &Socket) -> Owner {
    match owner {
        Owner::Process(it) if socket.created != 0 && it.started > socket.created => Owner::Unknown,
        owner => owner.clone(),
    }
}

/// Keys under which the socket of a flow may be listed.
struct Keys {
    connection: Option<Key>,
    /// Sockets bound to the local end or to all addresses. Each may have sent the packet.
    bound: Vec<Key>,
}

impl Keys {
    fn of(protocol: Protocol, flow: &Flow, opens: bool) -> Self {
        let any = |ip: IpAddr| (SocketAddr::new(ip, flow.local.port()), None);
        let connection = (protocol == Protocol::Tcp).then_some((flow.local, Some(flow.remote)));
        let mut bound = Vec::with_capacity(3);
        // The socket that requests a connection does not listen.
        if !opens {
            bound.push((flow.local, None));
            if flow.local.is_ipv4() {
                bound.push(any(Ipv4Addr::UNSPECIFIED.into()));
            }
            // May receive both families.
            bound.push(any(Ipv6Addr::UNSPECIFIED.into()));
        }
        Self { connection, bound }
    }
}

/// Returns the address without scope and flow label, with IPv4-mapped IPv6 as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
