//! The peers of a tunnel: a line for each of a few, a table of many.

use super::print::bytes;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::Duration;
use taupe_inspect::span;
use taupe_inspect::status::{Peer, SESSION_LIFETIME};

/// The largest number of peers that get a line each.
const FEW: usize = 3;

/// Rows of a table without `--peers`. With its summary the table fits on a screen of 50 lines.
const ROWS: usize = 40;

/// Characters of a name in the table, and of a key in place of a name.
const NAME: usize = 24;
const KEY: usize = 12;

/// Appends the peers. `now` is the time since the Unix epoch.
pub(super) fn write(text: &mut String, peers: &[Peer], all: bool, now: Duration) {
    if peers.len() <= FEW {
        for peer in peers {
            line(text, peer, now);
        }
        return;
    }
    summary(text, peers, now);
    let mut sorted: Vec<_> = peers.iter().collect();
    sorted.sort_by_key(|peer| (Reverse(peer.latest_handshake), &peer.name));
    let shown = if all {
        sorted.len()
    } else {
        ROWS.min(sorted.len())
    };
    table(text, &sorted[..shown], now);
    match sorted.len() - shown {
        0 => {}
        more => {
            let _ = writeln!(text, "  and {more} more; --peers lists all");
        }
    }
}

fn age(peer: &Peer, now: Duration) -> Option<Duration> {
    let at = Duration::from_secs(peer.latest_handshake?);
    Some(now.saturating_sub(at))
}

fn line(text: &mut String, peer: &Peer, now: Duration) {
    let mut parts = Vec::new();
    parts.extend(age(peer, now).map(|age| format!("latest handshake {} ago", span(age))));
    parts.push(format!(
        "{} received, {} sent",
        bytes(peer.received_bytes),
        bytes(peer.sent_bytes)
    ));
    if let Some(handshakes) = &peer.post_quantum {
        parts.push(format!("post-quantum: {}", handshakes.text));
    }
    if peer.lanes.as_ref().is_some_and(|lanes| lanes.interleaved) {
        parts.push("received on one lane, because the network interleaves packets".to_owned());
    }
    let endpoint = peer.endpoint.as_deref().unwrap_or("without an endpoint");
    let who = match &peer.name {
        Some(name) => format!("{name} ({endpoint})"),
        None => endpoint.to_owned(),
    };
    let _ = writeln!(text, "  peer {who}: {}", parts.join(", "));
}

fn summary(text: &mut String, peers: &[Peer], now: Duration) {
    let count = |wanted: fn(Duration) -> bool| {
        let ages = peers.iter().filter_map(|peer| age(peer, now));
        ages.filter(|age| wanted(*age)).count()
    };
    let in_session = count(|age| age < SESSION_LIFETIME);
    let quiet = count(|age| age >= SESSION_LIFETIME);
    let never = peers.len() - in_session - quiet;
    let sum = |of: fn(&Peer) -> u64| bytes(peers.iter().map(of).fold(0, u64::saturating_add));
    let _ = writeln!(
        text,
        "  {} peers: {in_session} with a session, {quiet} with an expired session, {never} never connected\n  \
         {} received, {} sent",
        peers.len(),
        sum(|peer| peer.received_bytes),
        sum(|peer| peer.sent_bytes),
    );
}

fn table(text: &mut String, peers: &[&Peer], now: Duration) {
    let is_hybrid = |peer: &&&Peer| peer.post_quantum.is_some();
    let with_suites = peers.iter().any(|peer| is_hybrid(&peer));
    let mut rows = vec![
        [
            "peer",
            "endpoint",
            "handshake",
            "received",
            "sent",
            "post-quantum",
        ]
        .map(str::to_owned),
    ];
    rows.extend(peers.iter().map(|peer| {
        let session = peer.post_quantum.as_ref().and_then(|state| state.suite);
        [
            match &peer.name {
                Some(name) => shortened(name, NAME),
                None => shortened(&peer.public_key, KEY),
            },
            peer.endpoint.clone().unwrap_or_else(|| "-".to_owned()),
            age(peer, now).map_or_else(|| "never".to_owned(), span),
            bytes(peer.received_bytes),
            bytes(peer.sent_bytes),
            session.unwrap_or("-").to_owned(),
        ]
    }));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    let [who, at, when, received, sent] = [0, 1, 2, 3, 4].map(width);
    for [name, endpoint, handshake, down, up, suite] in &rows {
        let _ = write!(
            text,
            "  {name:<who$}  {endpoint:<at$}  {handshake:>when$}  {down:>received$}  {up:>sent$}"
        );
        if with_suites {
            let _ = write!(text, "  {suite}");
        }
        text.push('\n');
    }
}

/// Returns a text of at most this many characters; `…` stands for what is left out.
fn shortened(text: &str, length: usize) -> String {
    if text.chars().count() <= length {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(length - 1).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn peer(number: u32, name: Option<&str>, age: Option<u64>) -> Peer {
        Peer {
            public_key: format!("{number:043}="),
            name: name.map(str::to_owned),
            endpoint: Some(format!("192.0.2.{number}:51820")),
            latest_handshake: age.map(|age| NOW.as_secs() - age),
            unanswered_handshakes: 0,
            received_bytes: 1 << 20,
            sent_bytes: 1 << 10,
            post_quantum: None,
            lanes: None,
        }
    }

    fn written(peers: &[Peer], all: bool) -> String {
        let mut text = String::new();
        write(&mut text, peers, all, NOW);
        text
    }

    #[test]
    fn a_few_peers_have_a_line_each() {
        let peers = [peer(1, Some("alice"), Some(5)), peer(2, None, None)];
        let expected = "  peer alice (192.0.2.1:51820): latest handshake 5 s ago, 1.0 MiB received, 1.0 KiB sent\n  \
                        peer 192.0.2.2:51820: 1.0 MiB received, 1.0 KiB sent\n";
        assert_eq!(written(&peers, false), expected);
    }

    #[test]
    fn many_peers_are_a_table_with_the_latest_first() {
        let peers = [
            peer(1, None, None),
            peer(2, Some("bob"), Some(300)),
            peer(3, Some("Zoë's computer in the attic"), Some(179)),
            peer(4, None, Some(180)),
        ];
        let expected = "  \
            4 peers: 1 with a session, 2 with an expired session, 1 never connected\n  \
            4.0 MiB received, 4.0 KiB sent\n  \
            peer                      endpoint         handshake  received     sent\n  \
            Zoë's computer in the a…  192.0.2.3:51820      2 min   1.0 MiB  1.0 KiB\n  \
            00000000000…              192.0.2.4:51820      3 min   1.0 MiB  1.0 KiB\n  \
            bob                       192.0.2.2:51820      5 min   1.0 MiB  1.0 KiB\n  \
            00000000000…              192.0.2.1:51820      never   1.0 MiB  1.0 KiB\n";
        assert_eq!(written(&peers, false), expected);
    }

    #[test]
    fn a_table_of_fifty_peers_fits_on_a_screen() {
        let peers: Vec<_> = (0..50).map(|number| peer(number, None, Some(1))).collect();
        let text = written(&peers, false);
        assert_eq!(text.lines().count(), 44);
        assert!(
            text.ends_with("  and 10 more; --peers lists all\n"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(written(&peers, true).lines().count(), 53);
    }
}
