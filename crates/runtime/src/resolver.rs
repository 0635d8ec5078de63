//! Resolution of endpoint names to addresses.
//!
//! The resolver asks the system first (`getaddrinfo`), as `wg` does. In a full tunnel the system's
//! name servers may be behind the very tunnel that is down. So the resolver remembers the name
//! servers from the time when a peer first got a name, and asks them if the system has no answer.
//! It does so from a socket with the device's mark, so that the routing rules which keep the
//! device's own datagrams out of the tunnel keep these queries out too.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use taupe_protocol::update::EndpointName;
use tracing::debug;

use crate::udp;

/// Finds the addresses of endpoint names.
pub trait Resolver: Send + Sync {
    /// Called before a peer gets a name; the first look-up follows later or never. May take as
    /// long as reading a file.
    fn prepare(&self) {}

    /// Returns the addresses of a name with its port, the preferred first. May block. `mark` is the
    /// mark of the device's datagrams.
    ///
    /// # Errors
    /// There are no addresses, or the look-up has failed.
    fn resolve(&self, name: &EndpointName, mark: u32) -> io::Result<Vec<SocketAddr>>;

    /// Checks whether the device could send a datagram to an address now. A resolver in a process that
    /// opens no socket returns true if another process has done this check ([`crate::names::look_up`]).
    fn can_send_to(&self, address: SocketAddr, mark: u32) -> bool {
        udp::connect(address, mark).is_ok()
    }
}

/// Asks name servers in order for the addresses of a name, until one has any. The queries are sent
/// from the network namespace of the calling thread.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if no server has an address.
pub fn ask_servers(
    servers: &[IpAddr],
    mark: u32,
    name: &EndpointName,
) -> io::Result<Vec<SocketAddr>> {
    let answers = servers
        .iter()
        .map(|server| ask(SocketAddr::new(*server, 53), mark, name));
    let found = answers.into_iter().find(|found| !found.is_empty());
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no name server has an address"))
}

/// Returns the system's name servers, without those on this machine.
#[must_use]
pub fn system_servers() -> Vec<IpAddr> {
    let resolver = SystemResolver::default();
    resolver.prepare();
    resolver
        .servers
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The system's resolver, with the name servers from before the tunnel as a fallback.
#[derive(Default)]
pub struct SystemResolver {
    servers: Mutex<Vec<IpAddr>>,
}

/// Files that list the system's name servers: the C library's, and that of systemd-resolved. With
/// systemd-resolved the former lists only its stub on this machine.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// Name servers that are remembered, at most (the C library uses three).
const MAX_SERVERS: usize = 4;

/// Time limit for one query to one name server.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest answer over UDP without extensions (RFC 1035 §4.2.1).
const MAX_ANSWER: usize = 512;

impl Resolver for SystemResolver {
    fn prepare(&self) {
        for file in FILES {
            self.learn(&std::fs::read_to_string(file).unwrap_or_default());
        }
    }

    fn resolve(&self, name: &EndpointName, mark: u32) -> io::Result<Vec<SocketAddr>> {
        let system = (name.host(), name.port()).to_socket_addrs();
        system.map(Iterator::collect).or_else(|error| {
            let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            let servers = servers.clone();
            debug!(%name, %error, ?servers, "asking the name servers from before the tunnel");
            ask_servers(&servers, mark, name).map_err(|_| error)
        })
    }
}

impl SystemResolver {
    fn learn(&self, text: &str) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        for server in name_servers(text) {
            if servers.len() < MAX_SERVERS && !servers.contains(&server) {
                servers.push(server);
            }
        }
    }
}

/// Returns the name servers of a resolv.conf(5), without those on this machine: they forward
/// queries without the mark.
fn name_servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines()
        .filter_map(|line| line.strip_prefix("nameserver"))
        .filter_map(|rest| rest.trim().parse().ok())
        .filter(|address: &IpAddr| !address.is_loopback())
}

/// Asks one name server for the addresses of both families.
fn ask(server: SocketAddr, mark: u32, name: &EndpointName) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for kind in [TYPE::A, TYPE::AAAA] {
        match query(server, mark, name.host(), kind) {
            Ok(addresses) => found.extend(addresses),
            Err(error) => {
                debug!(%server, %name, %error, "no answer");
                break;
            }
        }
    }
    let with_port = |address| SocketAddr::new(address, name.port());
    found.into_iter().map(with_port).collect()
}

/// Sends one query over UDP and waits for its answer (RFC 1035 §4).
fn query(server: SocketAddr, mark: u32, host: &str, kind: TYPE) -> io::Result<Vec<IpAddr>> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let mut packet = Packet::new_query(u16::from_ne_bytes(id));
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(host.trim_end_matches('.')).map_err(io::Error::other)?;
    let question = Question::new(name, kind.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    let socket = udp::connect(server, mark)?;
    socket.send(&packet.build_bytes_vec().map_err(io::Error::other)?)?;
    let end = Instant::now() + PATIENCE;
    let mut answer = [0; MAX_ANSWER];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let length = socket.recv(&mut answer)?;
        if let Some(addresses) = addresses(&packet, answer.get(..length).unwrap_or_default()) {
            return Ok(addresses);
        }
    }
}

/// Returns the addresses in the answer to `query`, or `None` if `answer` does not belong to it.
fn addresses(query: &Packet<'_>, answer: &[u8]) -> Option<Vec<IpAddr>> {
    let answer = Packet::parse(answer).ok()?;
    let [asked] = query.questions.as_slice() else {
        return None;
    };
    let [question] = answer.questions.as_slice() else {
        return None;
    };
    let ours = answer.has_flags(PacketFlag::RESPONSE)
        && answer.id() == query.id()
        && question.qname == asked.qname
        && question.qtype == asked.qtype
        && question.qclass == asked.qclass;
    if !ours {
        return None;
    }
    if answer.rcode() != RCODE::NoError {
        return Some(Vec::new());
    }
    let addresses = answer
        .answers
        .iter()
        .filter_map(|record| match &record.rdata {
            RData::A(a) => Some(IpAddr::V4(a.address.into())),
            RData::AAAA(a) => Some(IpAddr::V6(a.address.into())),
            _ => None,
        });
    Some(addresses.collect())
}

#[cfg(test)]
mod tests;
