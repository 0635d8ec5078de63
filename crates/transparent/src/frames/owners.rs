//! Which process a packet belongs to: the system's lists of sockets, and what is
//! remembered of them.
//!
//! A list is read when it cannot tell, and a connection's first packet is not judged by
//! what was read long before it. TCP is looked up by both ends, or while it is being accepted by
//! whoever listens; UDP by its local end, or a socket that is bound to all addresses.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use taupe_net::ip;
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

    /// The process that has this number now; `None` when there is none, or it is the system's
    /// own.
    fn process(&mut self, pid: u32) -> Option<Process>;
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
    /// It is of nobody that has a socket: the system's.
    System,
    /// Not known, and perhaps so in a moment.
    NotYet,
}

/// How often a list is read at most.
const BETWEEN_READS: Duration = Duration::from_millis(1);

/// How long what is not on the list is taken not to be.
const UNKNOWN_FOR: Duration = Duration::from_secs(2);

/// How long what was on the list of UDP is taken to be: another process may have the port
/// next, and nothing tells of it.
const UDP_KNOWN_FOR: Duration = Duration::from_secs(2);

/// The same of TCP for a connection's first packet.
const OPENS_FOR: Duration = Duration::from_millis(100);

/// Ends that are remembered as unknown.
const UNKNOWN: usize = 4096;

/// The lists, remembered.
pub(super) struct Known {
    system: Box<dyn Owners + Send>,
    tcp: List,
    udp: List,
    unknown: Recent<Flow, Instant>,
    processes: HashMap<u32, Option<Arc<Process>>>,
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
    rows: HashMap<(SocketAddr, Option<SocketAddr>), Vec<Row>>,
    read: Option<Instant>,
    is_readable: bool,
}

#[derive(Clone, Copy)]
struct Row {
    pid: u32,
    made: u64,
}

impl Known {
    pub(super) fn new(system: Box<dyn Owners + Send>) -> Self {
        Self {
            system,
            tcp: List::default(),
            udp: List::default(),
            unknown: Recent::new(UNKNOWN),
            processes: HashMap::new(),
        }
    }

    /// Whose a packet of `flow` is; of several who share a port, one for whom `is_chosen` holds.
    /// `is_last`: it has waited already.
    pub(super) fn of(
        &mut self,
        now: Instant,
        flow: &Flow,
        occasion: Occasion,
        is_last: bool,
        is_chosen: impl Fn(&Process) -> bool,
    ) -> Owner {
        let (protocol, age) = match (flow.protocol, occasion) {
            (ip::TCP, Occasion::Goes) => (Protocol::Tcp, Duration::MAX),
            (ip::TCP, Occasion::Opens { again: false }) => (Protocol::Tcp, OPENS_FOR),
            (ip::TCP, Occasion::Opens { again: true }) => (Protocol::Tcp, BETWEEN_READS),
            (ip::UDP, _) => (Protocol::Udp, UDP_KNOWN_FOR),
            _ => return Owner::System,
        };
        let opens = protocol == Protocol::Tcp && occasion != Occasion::Goes;
        let keys = keys(protocol, flow, opens);
        if self.is_fresh(now, protocol, age)
            && let Some(owner) = self.find(protocol, &keys, &is_chosen)
        {
            return owner;
        }
        let unknown = self.unknown.get(flow);
        let is_unknown = unknown.is_some_and(|since| now.since(since) < UNKNOWN_FOR);
        if is_unknown && !opens {
            return Owner::System;
        }
        if !self.is_fresh(now, protocol, BETWEEN_READS) {
            self.read(now, protocol);
        }
        if !self.list(protocol).is_readable {
            return Owner::NotYet;
        }
        if let Some(owner) = self.find(protocol, &keys, &is_chosen) {
            return owner;
        }
        // A connection that is asked for again has waited by itself.
        if is_last || is_unknown {
            self.unknown.keep(*flow, now);
            return Owner::System;
        }
        Owner::NotYet
    }

    /// Whether somebody for whom `is_chosen` holds takes packets that come by themselves. Who
    /// sends them decides neither what is remembered nor how often lists are read.
    pub(super) fn is_awaited(
        &mut self,
        now: Instant,
        flow: &Flow,
        is_chosen: impl Fn(&Process) -> bool,
    ) -> bool {
        let protocol = match flow.protocol {
            ip::TCP => Protocol::Tcp,
            ip::UDP => Protocol::Udp,
            _ => return false,
        };
        if !self.is_fresh(now, protocol, OPENS_FOR) {
            self.read(now, protocol);
        }
        let owner = self.find(protocol, &keys(protocol, flow, false), &is_chosen);
        matches!(owner, Some(Owner::Process(process)) if is_chosen(&process))
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
        // Numbers of processes are given again.
        self.processes.clear();
        let list = self.list(protocol);
        list.read = Some(now);
        list.is_readable = sockets.is_ok();
        list.rows.clear();
        for socket in sockets.unwrap_or_default() {
            let key = (folded(socket.local), socket.remote.map(folded));
            list.rows.entry(key).or_default().push(Row {
                pid: socket.pid,
                made: socket.made,
            });
        }
    }

    fn find(
        &mut self,
        protocol: Protocol,
        keys: &[(SocketAddr, Option<SocketAddr>)],
        is_chosen: &impl Fn(&Process) -> bool,
    ) -> Option<Owner> {
        let rows = &self.list(protocol).rows;
        let rows = keys.iter().find_map(|key| rows.get(key))?.clone();
        let owners: Vec<_> = rows.into_iter().map(|row| self.process(row)).collect();
        let chosen = |owner: &&Owner| matches!(owner, Owner::Process(it) if is_chosen(it));
        let owner = owners.iter().find(chosen).or_else(|| owners.first());
        owner.cloned()
    }

    fn process(&mut self, row: Row) -> Owner {
        let system = &mut self.system;
        let process = self
            .processes
            .entry(row.pid)
            .or_insert_with(|| system.process(row.pid).map(Arc::new));
        match process {
            Some(process) if row.made == 0 || process.started <= row.made => {
                Owner::Process(Arc::clone(process))
            }
            _ => Owner::System,
        }
    }
}

/// What a flow may be on the list as, in the order in which that counts.
fn keys(protocol: Protocol, flow: &Flow, opens: bool) -> Vec<(SocketAddr, Option<SocketAddr>)> {
    let any = |ip: IpAddr| (SocketAddr::new(ip, flow.local.port()), None);
    let mut keys = Vec::with_capacity(4);
    if protocol == Protocol::Tcp {
        keys.push((flow.local, Some(flow.remote)));
    }
    // Who asks for a connection does not listen.
    if !(protocol == Protocol::Tcp && opens) {
        keys.push((flow.local, None));
        if flow.local.is_ipv4() {
            keys.push(any(Ipv4Addr::UNSPECIFIED.into()));
        }
        // Takes both families, perhaps.
        keys.push(any(Ipv6Addr::UNSPECIFIED.into()));
    }
    keys
}

/// IPv4 mapped into IPv6 is IPv4, and what is not in packets is left out.
fn folded(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
