//! Tables of a reading: one row for each tunnel, peer, application, drop reason and connection.

use super::SESSION_LIFETIME;
use super::rates::{self, Meters};
use crate::reading::{
    Application, Bytes, Connection, List, MAX_CONNECTIONS, MAX_PEERS, Path, Reading, Rule, Tunnel,
};
use crate::reading::{Health, Transport};
use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// All tables of a reading.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) tunnels: Vec<TunnelRow>,
    pub(crate) peers: Vec<PeerRow>,
    pub(crate) applications: Vec<ApplicationRow>,
    pub(crate) drops: Vec<DropRow>,
    pub(crate) connections: Vec<ConnectionRow>,
    pub(crate) remarks: Vec<Text>,
}

#[derive(Debug)]
pub(crate) struct TunnelRow {
    pub(crate) name: Text,
    pub(crate) health: Health,
    pub(crate) mode: Text,
    pub(crate) selects: bool,
    pub(crate) findings: Vec<Text>,
    pub(crate) notes: Vec<Text>,
    pub(crate) peers: usize,
    /// Peers with a session.
    pub(crate) connected: usize,
    pub(crate) rate: Option<Bytes>,
}

#[derive(Debug)]
pub(crate) struct PeerRow {
    pub(crate) key: String,
    pub(crate) tunnel: Text,
    pub(crate) public_key: Text,
    pub(crate) name: Option<Text>,
    pub(crate) endpoint: Option<Text>,
    /// Age of the latest handshake.
    pub(crate) age: Option<Duration>,
    pub(crate) total: Bytes,
    pub(crate) rate: Option<Bytes>,
    pub(crate) detail: Text,
}

impl PeerRow {
    /// True if the peer has a session.
    pub(crate) fn is_connected(&self) -> bool {
        self.age.is_some_and(|age| age < SESSION_LIFETIME)
    }

    /// Returns the name, or else the key.
    pub(crate) fn shown(&self) -> &Text {
        self.name.as_ref().unwrap_or(&self.public_key)
    }
}

#[derive(Debug)]
pub(crate) struct ApplicationRow {
    pub(crate) key: String,
    pub(crate) shown: Text,
    pub(crate) entry: Option<String>,
    pub(crate) paths: BTreeSet<Path>,
    pub(crate) rules: Vec<(Text, Rule)>,
    pub(crate) processes: BTreeSet<u32>,
    pub(crate) connections: usize,
    pub(crate) total: Option<Bytes>,
    pub(crate) rate: Option<Bytes>,
    /// Reason of one of its connections.
    pub(crate) why: Text,
}

#[derive(Debug)]
pub(crate) struct DropRow {
    pub(crate) key: String,
    pub(crate) tunnel: Text,
    pub(crate) reason: Text,
    pub(crate) count: u64,
    /// Packets per second.
    pub(crate) rate: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct ConnectionRow {
    pub(crate) key: String,
    pub(crate) transport: Transport,
    pub(crate) local: SocketAddr,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) path: Path,
    pub(crate) application: Option<Text>,
    pub(crate) process: Option<u32>,
    pub(crate) total: Option<Bytes>,
    pub(crate) rate: Option<Bytes>,
    pub(crate) why: Text,
}

impl Path {
    /// Returns the name of the tunnel, or a word.
    pub(crate) fn word(&self) -> &str {
        match self {
            Self::Tunnel(name) => name.as_str(),
            Self::Direct => "direct",
            Self::Blocked => "blocked",
        }
    }
}

impl ApplicationRow {
    fn new(shown: Text) -> Self {
        Self {
            key: shown.as_str().to_owned(),
            shown,
            entry: None,
            paths: BTreeSet::new(),
            rules: Vec::new(),
            processes: BTreeSet::new(),
            connections: 0,
            total: None,
            rate: None,
            why: Text::default(),
        }
    }

    fn add(&mut self, application: &Application, row: &ConnectionRow) {
        self.entry = self.entry.take().or_else(|| application.entry.clone());
        for rule in &application.rules {
            if !self.rules.contains(rule) {
                self.rules.push(rule.clone());
            }
        }
        self.paths.insert(row.path.clone());
        self.processes.insert(application.process);
        self.connections += 1;
        self.total = rates::add(self.total, row.total);
        self.rate = rates::add(self.rate, row.rate);
        if self.why.is_empty() || matches!(row.path, Path::Tunnel(_)) {
            self.why = row.why.clone();
        }
    }

    /// Returns the words of its paths.
    pub(crate) fn paths(&self) -> String {
        let words: Vec<_> = self.paths.iter().map(Path::word).collect();
        match words.as_slice() {
            [] => "-".to_owned(),
            words => words.join(", "),
        }
    }
}

impl Tables {
    pub(super) fn new(reading: Reading, meters: &mut Meters) -> Self {
        let elapsed = meters.begin(reading.clock);
        let mut tunnels = Vec::new();
        let mut peers = Vec::new();
        let mut drops = Vec::new();
        for tunnel in &reading.tunnels {
            let own = peer_rows(tunnel, reading.now, elapsed, meters);
            let room = MAX_PEERS.saturating_sub(peers.len());
            tunnels.push(tunnel_row(tunnel, &own));
            peers.extend(own.into_iter().take(room));
            drops.extend(drop_rows(tunnel, elapsed, meters));
        }
        let mut connections = Vec::new();
        let mut applications = BTreeMap::new();
        for connection in reading.connections.iter().take(MAX_CONNECTIONS) {
            let row = connection_row(connection, elapsed, meters);
            if let Some(application) = &connection.application {
                let shown = application.shown.clone();
                let of = applications.entry(shown.clone());
                of.or_insert_with(|| ApplicationRow::new(shown))
                    .add(application, &row);
            }
            connections.push(row);
        }
        let mut applications: Vec<ApplicationRow> = applications.into_values().collect();
        let unused = unused_rules(&reading.tunnels, &applications);
        applications.extend(unused);
        let mut remarks = reading.remarks;
        if reading.connections.len() > MAX_CONNECTIONS {
            let text = format!("only the first {MAX_CONNECTIONS} connections are counted");
            remarks.push(Text::new(&text));
        }
        Self {
            tunnels,
            peers,
            applications,
            drops,
            connections,
            remarks,
        }
    }

    /// Returns the packets that all tunnels drop per second. `None` before two readings.
    pub(crate) fn drop_rate(&self) -> Option<u64> {
        let rates = self.drops.iter().filter_map(|row| row.rate);
        rates.reduce(u64::saturating_add)
    }
}

fn tunnel_row(tunnel: &Tunnel, peers: &[PeerRow]) -> TunnelRow {
    TunnelRow {
        name: tunnel.name.clone(),
        health: tunnel.health,
        mode: tunnel.mode.clone(),
        selects: tunnel.selects,
        findings: tunnel.findings.clone(),
        notes: tunnel.notes.clone(),
        peers: peers.len(),
        connected: peers.iter().filter(|peer| peer.is_connected()).count(),
        rate: peers
            .iter()
            .fold(None, |total, peer| rates::add(total, peer.rate)),
    }
}

fn peer_rows(
    tunnel: &Tunnel,
    now: Duration,
    elapsed: Option<Duration>,
    meters: &mut Meters,
) -> Vec<PeerRow> {
    let peers = tunnel.peers.iter().take(MAX_PEERS);
    peers
        .map(|peer| {
            let key = format!("{}/{}", tunnel.name, peer.key);
            PeerRow {
                rate: meters.peers.rate(key.clone(), peer.bytes, elapsed, None),
                key,
                tunnel: tunnel.name.clone(),
                public_key: peer.key.clone(),
                name: peer.name.clone(),
                endpoint: peer.endpoint.clone(),
                age: peer.handshake.map(|at| now.saturating_sub(at)),
                total: peer.bytes,
                detail: peer.detail.clone(),
            }
        })
        .collect()
}

fn drop_rows(tunnel: &Tunnel, elapsed: Option<Duration>, meters: &mut Meters) -> Vec<DropRow> {
    let drops = tunnel.drops.iter();
    drops
        .map(|drop| {
            let key = format!("{}/{}", tunnel.name, drop.code);
            let count = Bytes {
                received: drop.count,
                sent: 0,
            };
            // A counter that is zero may be left out.
            let first = Some(Bytes::default());
            let rate = meters.drops.rate(key.clone(), count, elapsed, first);
            DropRow {
                key,
                tunnel: tunnel.name.clone(),
                reason: drop.reason.clone(),
                count: drop.count,
                rate: rate.map(|rate| rate.received),
            }
        })
        .filter(|row| row.count > 0)
        .collect()
}

fn connection_row(
    connection: &Connection,
    elapsed: Option<Duration>,
    meters: &mut Meters,
) -> ConnectionRow {
    let key = connection.key;
    // A connection that the reading before does not have has begun since.
    let first = Some(Bytes::default());
    let rate = connection
        .bytes
        .and_then(|bytes| meters.connections.rate(key, bytes, elapsed, first));
    let application = connection.application.as_ref();
    ConnectionRow {
        key: format!("{key:?}"),
        transport: key.transport,
        local: key.local,
        remote: key.remote,
        path: connection.path.clone(),
        application: application.map(|application| application.shown.clone()),
        process: application.map(|application| application.process),
        total: connection.bytes,
        rate,
        why: connection.why.clone(),
    }
}

/// Returns a row for each entry of a tunnel's file that decides about no application in `rows`.
fn unused_rules(tunnels: &[Tunnel], rows: &[ApplicationRow]) -> Vec<ApplicationRow> {
    let mut unused = Vec::new();
    for tunnel in tunnels {
        for rule in &tunnel.rules {
            let own = (tunnel.name.clone(), rule.clone());
            if rows.iter().any(|row| row.rules.contains(&own)) {
                continue;
            }
            let (list, path) = match rule.list {
                List::Allowed => ("AllowedApps", Path::Tunnel(tunnel.name.clone())),
                List::Disallowed => ("DisallowedApps", Path::Direct),
            };
            let is_down = tunnel.health == Health::Down;
            unused.push(ApplicationRow {
                // An application of the same name is another row.
                key: format!("{} {list} {}", tunnel.name, rule.entry),
                paths: (!is_down).then_some(path).into_iter().collect(),
                rules: vec![own],
                why: Text::new(&format!("{}: {list} = {}", tunnel.name, rule.entry)),
                ..ApplicationRow::new(Text::new(&rule.entry))
            });
        }
    }
    unused
}
