//! DNS look-ups through the tunnel: a state machine without I/O.
//!
//! A query goes out over UDP from a random port with a random ID (RFC 5452), and again over TCP if
//! the response was truncated (RFC 7766). All waiters for a name share one look-up, and results are
//! cached for their TTL.

use crate::address::{Name, is_routable};
use crate::failure::ConnectFailure;
use core::time::Duration;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Packet, PacketFlag, Question, RCODE, TYPE};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use taupe_protocol::time::Instant;

pub(crate) const PORT: u16 = 53;

/// Local UDP ports of queries.
pub(crate) const LOCAL_PORTS: RangeInclusive<u16> = 1024..=32767;

/// Time that one name server has to answer one query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Attempts per query, with the servers in turn.
const TRIES: usize = 4;

/// Time to wait for the other family after one has answered with addresses.
const OTHER_FAMILY: Duration = Duration::from_millis(300);

/// Concurrent look-ups.
const MAX_LOOKUPS: usize = 1024;

/// Cached names.
const MAX_CACHED: usize = 1024;

/// Addresses used per name.
const MAX_ADDRESSES: usize = 16;

/// Length of a CNAME chain that is followed; name servers have similar limits. Each step scans all
/// records, and a response over TCP can have thousands.
const MAX_ALIASES: usize = 16;

/// Wrong responses to a query over UDP after which it is repeated over TCP (RFC 5452 §9.3). A host
/// that forges responses has to guess 16 bits of the ID after it has found the port.
const MAX_WRONG: u32 = 8;

/// Longest time in the cache, for addresses and for negative results.
const MAX_TTL: Duration = Duration::from_secs(86_400);
const NEGATIVE_TTL: Duration = Duration::from_secs(10);

/// Action for the caller.
pub(crate) enum Output<W> {
    /// Send a query over UDP.
    SendUdp {
        server: IpAddr,
        local_port: u16,
        message: Vec<u8>,
    },
    /// Send a query over TCP, and pass the response to [`Resolver::handle_tcp_response`] with this
    /// port.
    SendTcp {
        server: IpAddr,
        local_port: u16,
        message: Vec<u8>,
    },
    /// Deliver a result to a waiter.
    Resolved {
        waiter: W,
        result: Result<Vec<IpAddr>, ConnectFailure>,
    },
}

/// Look-ups and cache. `W` identifies a waiter.
pub(crate) struct Resolver<W> {
    servers: Vec<IpAddr>,
    record_types: Vec<TYPE>,
    random: fn() -> u32,
    cache: HashMap<Name, Cached>,
    lookups: HashMap<Name, Lookup<W>>,
    /// By local port.
    queries: HashMap<u16, Query>,
    outputs: VecDeque<Output<W>>,
}

struct Cached {
    until: Instant,
    result: Result<Vec<IpAddr>, ConnectFailure>,
}

struct Lookup<W> {
    waiters: Vec<W>,
    pending: usize,
    found: Vec<IpAddr>,
    ttl: Duration,
    no_such_name: bool,
    failed: bool,
    /// Deadline for the other family, once there are addresses.
    other_family_deadline: Option<Instant>,
}

struct Query {
    name: Name,
    kind: TYPE,
    id: u16,
    server: IpAddr,
    tries: usize,
    due: Instant,
    /// Responses over UDP that did not match.
    wrong: u32,
    over_tcp: bool,
}

/// Content of a response.
#[derive(PartialEq, Eq, Debug)]
enum Answer {
    Addresses(Vec<IpAddr>, Duration),
    NoSuchName,
    Truncated,
    /// The server failed or refused.
    ServerFailure,
}

impl<W> Resolver<W> {
    /// Creates a resolver that queries `servers` for the families of the tunnel's addresses.
    pub(crate) fn new(servers: Vec<IpAddr>, v4: bool, v6: bool, random: fn() -> u32) -> Self {
        let record_types = [(v6, TYPE::AAAA), (v4, TYPE::A)];
        let record_types = record_types.into_iter().filter(|(has, _)| *has);
        Self {
            servers,
            record_types: record_types.map(|(_, kind)| kind).collect(),
            random,
            cache: HashMap::new(),
            lookups: HashMap::new(),
            queries: HashMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Looks a name up for `waiter`. The result is always an [`Output::Resolved`].
    pub(crate) fn resolve(&mut self, now: Instant, name: &Name, waiter: W) {
        let known = self.cache.get(name).filter(|known| known.until > now);
        let result = if name.is_local() {
            Err(ConnectFailure::NoSuchName)
        } else if let Some(known) = known {
            known.result.clone()
        } else if self.servers.is_empty() {
            Err(ConnectFailure::NoNameServers)
        } else if let Some(lookup) = self.lookups.get_mut(name) {
            lookup.waiters.push(waiter);
            return;
        } else if self.lookups.len() >= MAX_LOOKUPS {
            Err(ConnectFailure::Busy)
        } else {
            let lookup = Lookup {
                waiters: vec![waiter],
                pending: self.record_types.len(),
                found: Vec::new(),
                ttl: MAX_TTL,
                no_such_name: false,
                failed: false,
                other_family_deadline: None,
            };
            self.lookups.insert(name.clone(), lookup);
            for kind in self.record_types.clone() {
                self.send_query(now, name.clone(), kind, 0);
            }
            return;
        };
        self.outputs.push_back(Output::Resolved { waiter, result });
    }

    /// Returns true if a datagram may be the response to a query over UDP.
    pub(crate) fn expects(&self, local_port: u16, from: SocketAddr) -> bool {
        let query = self.queries.get(&local_port);
        query.is_some_and(|query| !query.over_tcp && from == SocketAddr::new(query.server, PORT))
    }

    /// Returns true if the query with this port waits for a response over TCP.
    pub(crate) fn is_over_tcp(&self, local_port: u16) -> bool {
        self.queries
            .get(&local_port)
            .is_some_and(|query| query.over_tcp)
    }

    pub(crate) fn poll_output(&mut self) -> Option<Output<W>> {
        self.outputs.pop_front()
    }

    /// Returns the time at which [`Resolver::handle_deadline`] must run.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let queries = self.queries.values().map(|query| query.due);
        let lookups = self.lookups.values();
        let other_family = lookups.filter_map(|lookup| lookup.other_family_deadline);
        queries.chain(other_family).min()
    }

    pub(crate) fn handle_deadline(&mut self, now: Instant) {
        let due = |(port, query): (&u16, &Query)| (query.due <= now).then_some(*port);
        let due: Vec<u16> = self.queries.iter().filter_map(due).collect();
        for port in due {
            self.retry(now, port);
        }
        let expired = |(name, lookup): (&Name, &Lookup<W>)| {
            lookup
                .other_family_deadline
                .is_some_and(|at| at <= now)
                .then(|| name.clone())
        };
        let expired: Vec<Name> = self.lookups.iter().filter_map(expired).collect();
        for name in expired {
            self.queries.retain(|_, query| query.name != name);
            self.finish(now, &name);
        }
    }

    /// Handles a datagram to the port of a query.
    pub(crate) fn handle_udp_response(
        &mut self,
        now: Instant,
        local_port: u16,
        from: SocketAddr,
        message: &[u8],
    ) {
        if !self.expects(local_port, from) {
            return;
        }
        let Some(query) = self.queries.get_mut(&local_port) else {
            return;
        };
        // A response that does not match may be forged: keep waiting for the real one.
        let Some(answer) = parse_response(query, message) else {
            query.wrong += 1;
            if query.wrong >= MAX_WRONG {
                self.retry_over_tcp(now, local_port);
            }
            return;
        };
        if answer == Answer::Truncated {
            self.retry_over_tcp(now, local_port);
        } else {
            self.handle_answer(now, local_port, answer);
        }
    }

    /// Handles the result of [`Output::SendTcp`]; `None` if there was no response.
    pub(crate) fn handle_tcp_response(
        &mut self,
        now: Instant,
        local_port: u16,
        message: Option<&[u8]>,
    ) {
        let Some(query) = self.queries.get(&local_port).filter(|query| query.over_tcp) else {
            return;
        };
        let answer = message.and_then(|message| parse_response(query, message));
        let answer = answer.filter(|answer| *answer != Answer::Truncated);
        self.handle_answer(now, local_port, answer.unwrap_or(Answer::ServerFailure));
    }

    fn send_query(&mut self, now: Instant, name: Name, kind: TYPE, tries: usize) {
        let server = self.servers.get(tries % self.servers.len().max(1)).copied();
        let Some(server) = server.filter(|_| tries < TRIES) else {
            return self.end_query(now, &name, |lookup| lookup.failed = true);
        };
        let number = (self.random)();
        let query = Query {
            kind,
            id: number as u16,
            server,
            tries: tries + 1,
            due: now + QUERY_TIMEOUT,
            wrong: 0,
            over_tcp: false,
            name,
        };
        let Some(message) = encode_query(&query) else {
            let name = query.name;
            return self.end_query(now, &name, |lookup| lookup.failed = true);
        };
        let span = LOCAL_PORTS.end() - LOCAL_PORTS.start() + 1;
        // At most a few thousand of these ports are in use, so the search ends soon.
        let mut local_port = LOCAL_PORTS.start() + (number >> 16) as u16 % span;
        while self.queries.contains_key(&local_port) {
            local_port = LOCAL_PORTS.start() + (local_port - LOCAL_PORTS.start() + 1) % span;
        }
        self.queries.insert(local_port, query);
        self.outputs.push_back(Output::SendUdp {
            server,
            local_port,
            message,
        });
    }

    fn retry_over_tcp(&mut self, now: Instant, local_port: u16) {
        let Some(query) = self.queries.get_mut(&local_port) else {
            return;
        };
        query.over_tcp = true;
        query.due = now + 2 * QUERY_TIMEOUT;
        if let Some(message) = encode_query(query) {
            self.outputs.push_back(Output::SendTcp {
                server: query.server,
                local_port,
                message,
            });
        }
    }

    fn retry(&mut self, now: Instant, local_port: u16) {
        if let Some(query) = self.queries.remove(&local_port) {
            self.send_query(now, query.name, query.kind, query.tries);
        }
    }

    fn handle_answer(&mut self, now: Instant, local_port: u16, answer: Answer) {
        if matches!(answer, Answer::ServerFailure | Answer::Truncated) {
            return self.retry(now, local_port);
        }
        let Some(query) = self.queries.remove(&local_port) else {
            return;
        };
        self.end_query(now, &query.name, |lookup| match answer {
            Answer::Addresses(addresses, ttl) => {
                if !addresses.is_empty() {
                    lookup.other_family_deadline = Some(now + OTHER_FAMILY);
                    lookup.ttl = lookup.ttl.min(ttl);
                }
                lookup.found.extend(addresses);
            }
            _ => lookup.no_such_name = true,
        });
    }

    /// Ends one query of a look-up.
    fn end_query(&mut self, now: Instant, name: &Name, note: impl FnOnce(&mut Lookup<W>)) {
        let Some(lookup) = self.lookups.get_mut(name) else {
            return;
        };
        note(lookup);
        lookup.pending -= 1;
        if lookup.pending == 0 {
            self.finish(now, name);
        }
    }

    fn finish(&mut self, now: Instant, name: &Name) {
        let Some(lookup) = self.lookups.remove(name) else {
            return;
        };
        let is_complete = lookup.pending == 0 && !lookup.failed;
        let (result, ttl) = if !lookup.found.is_empty() {
            (Ok(interleave(&lookup.found)), lookup.ttl)
        } else if lookup.no_such_name {
            (Err(ConnectFailure::NoSuchName), NEGATIVE_TTL)
        } else if lookup.failed {
            (Err(ConnectFailure::NameServers), NEGATIVE_TTL)
        } else {
            (Err(ConnectFailure::NoAddress), NEGATIVE_TTL)
        };
        if is_complete {
            self.cache_result(now, name, ttl, &result);
        }
        for waiter in lookup.waiters {
            let result = result.clone();
            self.outputs.push_back(Output::Resolved { waiter, result });
        }
    }

    fn cache_result(
        &mut self,
        now: Instant,
        name: &Name,
        ttl: Duration,
        result: &Result<Vec<IpAddr>, ConnectFailure>,
    ) {
        if self.cache.len() >= MAX_CACHED {
            self.cache.retain(|_, known| known.until > now);
        }
        if self.cache.len() >= MAX_CACHED {
            let soonest = self.cache.iter().min_by_key(|(_, known)| known.until);
            if let Some(name) = soonest.map(|(name, _)| name.clone()) {
                self.cache.remove(&name);
            }
        }
        let known = Cached {
            until: now + ttl,
            result: result.clone(),
        };
        self.cache.insert(name.clone(), known);
    }
}

/// Alternates the families, IPv6 first (RFC 8305 §4).
fn interleave(found: &[IpAddr]) -> Vec<IpAddr> {
    let of = |is_ipv4: bool| {
        found
            .iter()
            .filter(move |a| a.is_ipv4() == is_ipv4)
            .copied()
    };
    let (mut first, mut second) = (of(false), of(true));
    let mut ordered = Vec::new();
    while ordered.len() < MAX_ADDRESSES {
        let (a, b) = (first.next(), second.next());
        if a.is_none() && b.is_none() {
            break;
        }
        ordered.extend(a.into_iter().chain(b));
    }
    ordered
}

/// Encodes a query (RFC 1035 §4).
fn encode_query(query: &Query) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(query.id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = simple_dns::Name::new(query.name.as_str()).ok()?;
    let question = Question::new(name, query.kind.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    packet.build_bytes_vec().ok()
}

/// Parses a response. Returns `None` if it does not answer this query.
fn parse_response(query: &Query, message: &[u8]) -> Option<Answer> {
    let packet = Packet::parse(message).ok()?;
    let [question] = packet.questions.as_slice() else {
        return None;
    };
    let is_ours = packet.has_flags(PacketFlag::RESPONSE)
        && packet.id() == query.id
        && question.qtype == query.kind.into()
        && question.qclass == CLASS::IN.into()
        && names_equal(&question.qname, query.name.as_str());
    if !is_ours {
        return None;
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Some(Answer::Truncated);
    }
    match packet.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => return Some(Answer::NoSuchName),
        _ => return Some(Answer::ServerFailure),
    }
    // The name may be an alias, in several steps.
    let mut name = query.name.as_str().to_owned();
    let mut ttl = MAX_TTL;
    for _ in 0..packet.answers.len().min(MAX_ALIASES) {
        let alias = packet
            .answers
            .iter()
            .find_map(|record| match &record.rdata {
                RData::CNAME(alias) if names_equal(&record.name, &name) => {
                    Some((alias.0.to_string(), record.ttl))
                }
                _ => None,
            });
        let Some((alias, seconds)) = alias else { break };
        ttl = ttl.min(Duration::from_secs(seconds.into()));
        name = alias;
    }
    let mut addresses = Vec::new();
    for record in packet
        .answers
        .iter()
        .filter(|record| names_equal(&record.name, &name))
    {
        let address = match (&record.rdata, query.kind) {
            (RData::A(a), TYPE::A) => IpAddr::V4(a.address.into()),
            (RData::AAAA(a), TYPE::AAAA) => IpAddr::V6(a.address.into()),
            _ => continue,
        };
        ttl = ttl.min(Duration::from_secs(record.ttl.into()));
        if is_routable(address) && addresses.len() < MAX_ADDRESSES {
            addresses.push(address);
        }
    }
    Some(Answer::Addresses(addresses, ttl))
}

/// Compares a name of a message with `text`, ignoring case and a final dot.
fn names_equal(name: &simple_dns::Name<'_>, text: &str) -> bool {
    let name = name.to_string();
    let bare = |text: &'_ str| text.strip_suffix('.').map_or(text.len(), str::len);
    name[..bare(&name)].eq_ignore_ascii_case(&text[..bare(text)])
}

#[cfg(test)]
mod tests;
