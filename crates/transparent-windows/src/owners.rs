//! Which process a packet belongs to: the system's lists of sockets, and what is
//! remembered of them.
//!
//! A list is read when it cannot tell, and a flow's first packet is not judged by what was read
//! long before it. TCP is looked up by both ends, or while it is being accepted by whoever
//! listens; UDP by its local end, or a socket that is bound to all addresses.
//!
//! A socket's process is asked for when the socket is first listed, and is the socket's from then
//! on: it may be gone when the last packet is looked at.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use taupe_packet::ip;
use taupe_protocol::time::Instant;

use super::{packet::Flow, recent::Recent};

/// What a system tells of sockets and processes.
pub trait Owners {
    /// The sockets of a protocol that there are now, of both families.
    ///
    /// # Errors
    ///
    /// The system's. What cannot be told is dropped then.
    fn sockets(&mut self, protocol: Protocol) -> io::Result<Vec<Socket>>;

    /// Who has this number now.
    fn holder(&mut self, pid: u32) -> Holder;
}

/// Who has the number of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A process.
    Process(Process),
    /// The system itself: its kernel.
    System,
    /// Some program or other: it may not be asked for its name, or has ended.
    Unknown,
}

/// A protocol with sockets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A socket, as the system lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// Its own end.
    pub local: SocketAddr,
    /// The other end of a connection of TCP; `None` of one that listens, and of UDP.
    pub remote: Option<SocketAddr>,
    /// The process that has it.
    pub pid: u32,
    /// When it was made, on the clock of [`Process::started`]; 0 when that is not known.
    pub made: u64,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// The path of its executable.
    pub path: String,
    /// Its name: the last part of the path.
    pub name: String,
    /// When it was started; a socket that is older is not its.
    pub started: u64,
}

/// Whose a packet is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Process(Arc<Process>),
    /// A program's, and nothing else is known of it.
    Unknown,
    /// It is of nobody that has a socket, or of the kernel: the system's.
    System,
    /// Not known, and perhaps so in a moment.
    NotYet,
    /// It has not been looked up, for it does not matter.
    Anybody,
}

/// How often a list is read at most.
const BETWEEN_READS: Duration = Duration::from_millis(1);

/// How old a list may be that tells whose a packet is: another process may have the port by then,
/// and nothing tells of it.
pub(super) const RECENT: Duration = Duration::from_millis(100);

/// How long it is not waited again for a socket that was not on the list.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);

/// How long what is sent from a closed socket's end is taken to be from that socket.
const GONE_FOR: Duration = Duration::from_secs(10);

/// How long a flow is silent until its end may be another's socket by then: the list is read anew.
const SILENT: Duration = Duration::from_millis(10);

/// Ends that are remembered as unknown, and of sockets that are gone.
const UNKNOWN: usize = 4096;
const GONE: usize = 4096;

/// Sockets of one end that are remembered when they are gone.
const GONE_TOGETHER: usize = 8;

/// What a socket is found by: its own end, and of a connection the other.
type Key = (SocketAddr, Option<SocketAddr>);

/// The lists, remembered.
pub(super) struct Known {
    system: Box<dyn Owners + Send>,
    tcp: List,
    udp: List,
    /// When the last packet of a flow came.
    unknown: Recent<Flow, Instant>,
    gone: Recent<(Protocol, Key), Gone>,
}

/// Whose sockets an end had, and when they were missed.
#[derive(Clone)]
struct Gone {
    owners: Arc<[Owner]>,
    at: Instant,
}

/// What is known of a packet's flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Occasion {
    /// It goes on, as far as one can see.
    Goes,
    /// It is a connection's first packet. `again`: its ends have been another's before, or it
    /// has been asked for in vain.
    Opens { again: bool },
}

#[derive(Default)]
struct List {
    rows: HashMap<Key, Vec<Row>>,
    /// When it was read, or could not be.
    read: Option<Instant>,
    is_readable: bool,
}

#[derive(Clone)]
struct Row {
    pid: u32,
    made: u64,
    owner: Owner,
}

impl Row {
    /// Whether the system lists the same socket, as far as it tells them apart.
    fn is(&self, socket: &Socket) -> bool {
        self.made != 0 && (self.pid, self.made) == (socket.pid, socket.made)
    }
}

impl Known {
    pub(super) fn new(system: Box<dyn Owners + Send>) -> Self {
        Self {
            system,
            tcp: List::default(),
            udp: List::default(),
            unknown: Recent::new(UNKNOWN),
            gone: Recent::new(GONE),
        }
    }

    /// Whose a packet of `flow` is; of several who may have sent it, one for whom `is_chosen`
    /// holds. `is_last`: it has waited already.
    pub(super) fn of(
        &mut self,
        now: Instant,
        flow: &Flow,
        occasion: Occasion,
        is_last: bool,
        is_chosen: impl Fn(&Process) -> bool,
    ) -> Owner {
        let Some(protocol) = Protocol::of(flow) else {
            return Owner::System;
        };
        let opens = protocol == Protocol::Tcp && occasion != Occasion::Goes;
        let age = match occasion {
            Occasion::Opens { again: true } if opens => BETWEEN_READS,
            _ => RECENT,
        };
        let keys = Keys::of(protocol, flow, opens);
        if self.is_fresh(now, protocol, age)
            && let Some(owner) = self.find(protocol, &keys, &is_chosen)
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
            return Owner::NotYet;
        }
        let found = self.find(protocol, &keys, &is_chosen);
        if let Some(owner) = found.or_else(|| self.find_gone(now, protocol, &keys, &is_chosen)) {
            return owner;
        }
        // A connection that is asked for again has waited by itself.
        if is_last || is_unknown {
            self.unknown.keep(*flow, now);
            return Owner::System;
        }
        Owner::NotYet
    }

    /// Who takes packets of `flow` that come by themselves, if anybody does. Who sends them
    /// decides neither what is remembered nor how often lists are read.
    pub(super) fn awaiting(
        &mut self,
        now: Instant,
        flow: &Flow,
        is_chosen: impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let protocol = Protocol::of(flow)?;
        if !self.is_fresh(now, protocol, RECENT) {
            self.read(now, protocol);
        }
        self.find(protocol, &Keys::of(protocol, flow, false), &is_chosen)
    }

    /// Of when that is what is known of a flow's owner.
    pub(super) fn as_of(&mut self, flow: &Flow) -> Option<Instant> {
        self.list(Protocol::of(flow)?).read
    }

    fn list(&mut self, protocol: Protocol) -> &mut List {
        match protocol {
            Protocol::Tcp => &mut self.tcp,
            Protocol::Udp => &mut self.udp,
        }
    }

    /// Whether a list has been read within that time.
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
        // Numbers of processes are given again, so that none is remembered.
        let mut holders = HashMap::new();
        for socket in sockets {
            let key = (folded(socket.local), socket.remote.map(folded));
            let known = before.get(&key).into_iter().flatten();
            let mut known = known.filter(|row| row.owner != Owner::Unknown);
            let owner = match known.find(|row| row.is(&socket)) {
                Some(row) => row.owner.clone(),
                None => {
                    let system = &mut self.system;
                    let holder = holders.entry(socket.pid);
                    let holder = holder.or_insert_with(|| owner(system.holder(socket.pid)));
                    of_its_time(holder, &socket)
                }
            };
            let Socket { pid, made, .. } = socket;
            rows.entry(key).or_default().push(Row { pid, made, owner });
        }
        for (key, before) in before {
            let still = rows.get(&key).map_or(&[][..], Vec::as_slice);
            self.part_with(now, (protocol, key), before, still);
        }
        self.list(protocol).rows = rows;
    }

    /// Remembers the programs whose sockets are not on the list any more.
    fn part_with(&mut self, now: Instant, key: (Protocol, Key), before: Vec<Row>, still: &[Row]) {
        let is_there = |row: &Row| {
            still
                .iter()
                .any(|it| (it.pid, it.made) == (row.pid, row.made))
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
        self.gone.keep(key, Gone { owners, at });
    }

    fn find(
        &mut self,
        protocol: Protocol,
        keys: &Keys,
        is_chosen: &impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let list = self.list(protocol);
        if !list.is_readable {
            return None;
        }
        let owners = |key| {
            let rows = list.rows.get(key).into_iter().flatten();
            rows.map(|row| &row.owner)
        };
        // A connection is nobody's but its own.
        let connection = keys.connection.iter().flat_map(owners);
        foremost(connection, is_chosen)
            .or_else(|| foremost(keys.bound.iter().flat_map(owners), is_chosen))
    }

    fn find_gone(
        &mut self,
        now: Instant,
        protocol: Protocol,
        keys: &Keys,
        is_chosen: &impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let keys = keys.connection.iter().chain(&keys.bound);
        let gone = keys.filter_map(|key| self.gone.get(&(protocol, *key)));
        let gone: Vec<_> = gone.filter(|it| now.since(it.at) < GONE_FOR).collect();
        foremost(gone.iter().flat_map(|it| it.owners.iter()), is_chosen)
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

/// Of several who may have sent a packet, who counts: one who is chosen, or may be.
fn foremost<'a>(
    owners: impl Iterator<Item = &'a Owner> + Clone,
    is_chosen: &impl Fn(&Process) -> bool,
) -> Option<Owner> {
    let chosen = |owner: &&Owner| matches!(owner, Owner::Process(it) if is_chosen(it));
    let unknown = |owner: &&Owner| **owner == Owner::Unknown;
    let mut all = owners.clone();
    let found = owners.clone().find(chosen);
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

/// A socket that is older than the process of that number was made by another one.
fn of_its_time(owner: &Owner, socket: &Socket) -> Owner {
    match owner {
        Owner::Process(it) if socket.made != 0 && it.started > socket.made => Owner::Unknown,
        owner => owner.clone(),
    }
}

/// What a flow may be on the list as.
struct Keys {
    connection: Option<Key>,
    /// Sockets that are bound to its local end, or to all addresses: each may have sent it.
    bound: Vec<Key>,
}

impl Keys {
    fn of(protocol: Protocol, flow: &Flow, opens: bool) -> Self {
        let any = |ip: IpAddr| (SocketAddr::new(ip, flow.local.port()), None);
        let connection = (protocol == Protocol::Tcp).then_some((flow.local, Some(flow.remote)));
        let mut bound = Vec::with_capacity(3);
        // Who asks for a connection does not listen.
        if !opens {
            bound.push((flow.local, None));
            if flow.local.is_ipv4() {
                bound.push(any(Ipv4Addr::UNSPECIFIED.into()));
            }
            // Takes both families, perhaps.
            bound.push(any(Ipv6Addr::UNSPECIFIED.into()));
        }
        Self { connection, bound }
    }
}

/// IPv4 mapped into IPv6 is IPv4, and what is not in packets is left out.
fn folded(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
