//! Readings for tests.

use crate::reading::{
    Application, Bytes, Connection, ConnectionKey, DropCounter, Health, List, Path, Peer, Reading,
    Rule, Transport, Tunnel,
};
use crate::text::Text;
use std::time::Duration;

/// The time of the first reading, since the Unix epoch.
pub(crate) const BEGIN: Duration = Duration::from_secs(1_800_000_000);

fn bytes(received: u64, sent: u64) -> Bytes {
    Bytes { received, sent }
}

fn rule(list: List, entry: &str) -> Rule {
    let entry = entry.to_owned();
    Rule { list, entry }
}

fn peer(name: &str, endpoint: &str, handshake: Option<u64>, bytes: Bytes) -> Peer {
    Peer {
        key: Text::new(&format!("{name:A<43}=")),
        name: Some(Text::new(name)),
        endpoint: Some(Text::new(endpoint)),
        handshake: handshake.map(|age| BEGIN - Duration::from_secs(age)),
        bytes,
        detail: Text::new("post-quantum: not configured"),
    }
}

fn application(path: &str, process: u32, rules: &[(&str, Rule)]) -> Application {
    let rules = rules.iter();
    Application {
        shown: Text::new(path),
        process,
        entry: Some(path.to_owned()),
        rules: rules
            .map(|(tunnel, rule)| (Text::new(tunnel), rule.clone()))
            .collect(),
    }
}

fn connection(
    cookie: u64,
    remote: &str,
    path: Path,
    application: Application,
    bytes: Option<Bytes>,
    why: &str,
) -> Connection {
    Connection {
        key: ConnectionKey {
            cookie,
            transport: if bytes.is_some() {
                Transport::Tcp
            } else {
                Transport::Udp
            },
            local: "192.168.1.20:40022".parse().unwrap(),
            remote: remote.parse().ok(),
        },
        path,
        application: Some(application),
        bytes,
        why: Text::new(why),
    }
}

/// Returns the reading after this many seconds.
pub(crate) fn reading(second: u64) -> Reading {
    let allowed = rule(List::Allowed, "firefox-esr");
    let curl = rule(List::Allowed, "curl");
    let home = || Path::Tunnel(Text::new("home"));
    // Uneven traffic, for the sparklines.
    let moved: u64 = (0..=second).map(|second| second * 37 % 11 * 120_000).sum();
    let drop = |code: &str, count, reason: &str| DropCounter {
        code: code.to_owned(),
        reason: Text::new(reason),
        count,
    };
    Reading {
        clock: Duration::from_secs(1000 + second),
        now: BEGIN + Duration::from_secs(second),
        tunnels: vec![
            Tunnel {
                name: Text::new("home"),
                health: Health::Up,
                mode: Text::new("for selected applications"),
                selects: true,
                peers: vec![peer(
                    "gateway",
                    "198.51.100.7:51820",
                    Some(12),
                    bytes(40_000_000 + moved, 2_000_000 + moved / 20),
                )],
                rules: vec![allowed.clone(), curl],
                drops: vec![
                    drop(
                        "send-down",
                        4 + 3 * second,
                        "datagrams refused while the tunnel was down",
                    ),
                    drop(
                        "clear-flow",
                        1,
                        "packets dropped that bypassed the tunnel, for a flow in it",
                    ),
                ],
                ..Tunnel::default()
            },
            Tunnel {
                name: Text::new("office"),
                health: Health::Degraded,
                mode: Text::new("for all applications (adapter mode)"),
                findings: vec![Text::new(
                    "the peer fra-1 at 203.0.113.9:51820 has not answered for 40 s (8 handshakes); \
                     check its endpoint and key, and that it runs",
                )],
                notes: vec![Text::new(
                    "/etc/wireguard/office.conf has been edited since",
                )],
                peers: vec![
                    peer("fra-1", "203.0.113.9:51820", None, bytes(0, 1184)),
                    peer(
                        "ams-2",
                        "[2001:db8:4:17::2]:51820",
                        Some(95),
                        bytes(900, 700),
                    ),
                ],
                ..Tunnel::default()
            },
        ],
        connections: vec![
            connection(
                1,
                "93.184.216.34:443",
                home(),
                application(
                    "/usr/lib/firefox-esr/firefox-esr",
                    4711,
                    &[("home", allowed.clone())],
                ),
                Some(bytes(30_000_000 + moved, 1_000_000 + moved / 20)),
                "/etc/wireguard/home.conf:4: AllowedApps = firefox-esr",
            ),
            connection(
                2,
                "[2001:db8:99::80]:443",
                home(),
                application(
                    "/usr/lib/firefox-esr/firefox-esr",
                    4711,
                    &[("home", allowed)],
                ),
                Some(bytes(4096, 2048)),
                "/etc/wireguard/home.conf:4: AllowedApps = firefox-esr",
            ),
            connection(
                3,
                "192.168.1.5:22",
                Path::Direct,
                application("/usr/bin/ssh", 815, &[]),
                Some(bytes(50_000 + 1500 * second, 9000 + 300 * second)),
                "none of the 2 AllowedApps",
            ),
            connection(
                4,
                "192.0.2.53:123",
                Path::Direct,
                application("/usr/sbin/chronyd", 600, &[]),
                None,
                "none of the 2 AllowedApps",
            ),
        ],
        remarks: Vec::new(),
    }
}

/// Returns a reading in which every text is hostile, with this many rows.
pub(crate) fn hostile(text: &str, rows: u64) -> Reading {
    let mut hostile = reading(rows);
    let own = Text::new(text);
    hostile.remarks.push(own.clone());
    for tunnel in &mut hostile.tunnels {
        tunnel.name = own.clone();
        tunnel.mode = own.clone();
        tunnel.findings = vec![own.clone(); 3];
        tunnel.notes.push(own.clone());
        for peer in &mut tunnel.peers {
            peer.name = Some(own.clone());
            peer.endpoint = Some(own.clone());
            peer.detail = own.clone();
            peer.bytes = bytes(u64::MAX, u64::MAX);
        }
        for drop in &mut tunnel.drops {
            drop.reason = own.clone();
            drop.count = u64::MAX;
        }
        tunnel.rules.push(rule(List::Disallowed, text));
    }
    let path = application(text, u32::MAX, &[(text, rule(List::Allowed, text))]);
    let connections = 5..5 + rows;
    hostile.connections.extend(connections.map(|cookie| {
        let bytes = Some(bytes(u64::MAX, 0));
        let path_of = Path::Tunnel(own.clone());
        connection(cookie, "[::1]:1", path_of, path.clone(), bytes, text)
    }));
    hostile
}
