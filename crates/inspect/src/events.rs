//! Changes of tunnels, from one [`Status`] to the next.

use crate::status::{Finding, FindingCode, Peer, SESSION_LIFETIME, State, Status, Tunnel};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A change of a tunnel. It serialises to a line of `taupe events --json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    /// Time of the snapshot that shows it, in seconds since 1970.
    pub time: u64,
    /// The tunnel.
    pub tunnel: String,
    /// The change.
    #[serde(flatten)]
    pub change: Change,
}

/// Kind of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Change {
    /// The tunnel is up.
    Up,
    /// A part of it does not work.
    Degraded {
        /// Its findings.
        findings: Vec<Finding>,
    },
    /// No process serves the tunnel, or it no longer exists.
    Down,
    /// A condition that keeps the tunnel from being fully up has begun.
    FindingBegun(Finding),
    /// Such a condition has ended.
    FindingEnded {
        /// Its code.
        code: FindingCode,
        /// Public key of its peer in base64, if it was about one.
        peer: Option<String>,
    },
    /// A peer has a session after it had none.
    PeerConnected(EventPeer),
    /// A peer's session has ended.
    PeerGone(EventPeer),
    /// A peer is at another address.
    PeerRoamed {
        /// The peer, at its new address.
        #[serde(flatten)]
        peer: EventPeer,
        /// The old address and port.
        from: String,
    },
}

/// A peer in an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EventPeer {
    /// Key in base64.
    pub public_key: String,
    /// Name in the file.
    pub name: Option<String>,
    /// Address and port.
    pub endpoint: Option<String>,
}

impl EventPeer {
    fn of(peer: &Peer) -> Self {
        Self {
            public_key: peer.public_key.clone(),
            name: peer.name.clone(),
            endpoint: peer.endpoint.clone(),
        }
    }

    /// Returns the name, or else the key.
    #[must_use]
    pub fn shown(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.public_key)
    }
}

impl Change {
    /// Returns the word for the change, as in JSON.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Degraded { .. } => "degraded",
            Self::Down => "down",
            Self::FindingBegun(_) => "finding-begun",
            Self::FindingEnded { .. } => "finding-ended",
            Self::PeerConnected(_) => "peer-connected",
            Self::PeerGone(_) => "peer-gone",
            Self::PeerRoamed { .. } => "peer-roamed",
        }
    }
}

/// State of all tunnels at one time.
pub struct Snapshot {
    time: u64,
    tunnels: BTreeMap<String, Tunnel>,
}

impl Snapshot {
    /// Returns an empty snapshot: compared with it, every tunnel is new.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            time: 0,
            tunnels: BTreeMap::new(),
        }
    }

    /// Returns a snapshot at `time`, in seconds since 1970.
    #[must_use]
    pub fn new(time: u64, status: Status) -> Self {
        let tunnels = status.tunnels.into_iter();
        Self {
            time,
            tunnels: tunnels.map(|it| (it.interface.clone(), it)).collect(),
        }
    }

    /// Returns the changes since an earlier snapshot, ordered by tunnel.
    #[must_use]
    pub fn since(&self, before: &Self) -> Vec<Event> {
        let mut events = Vec::new();
        for (name, tunnel) in &self.tunnels {
            let was = before.tunnels.get(name);
            self.add(&mut events, name, state_change(was, tunnel));
            // `Degraded` already contains the findings of a tunnel that has just become degraded.
            let is_new = was.is_none_or(|was| was.state != State::Degraded);
            if let Some(was) = was.filter(|_| !is_new) {
                self.add(&mut events, name, finding_changes(was, tunnel));
            }
            let peers = was.map_or(&[][..], |was| &was.peers);
            self.add(
                &mut events,
                name,
                self.peer_changes(before.time, peers, &tunnel.peers),
            );
        }
        let gone = before.tunnels.iter();
        for (name, tunnel) in gone.filter(|(name, _)| !self.tunnels.contains_key(*name)) {
            let peers = self.peer_changes(before.time, &tunnel.peers, &[]);
            self.add(&mut events, name, peers);
            let is_news = tunnel.state != State::Down;
            self.add(&mut events, name, is_news.then_some(Change::Down));
        }
        events
    }

    fn add(
        &self,
        events: &mut Vec<Event>,
        tunnel: &str,
        changes: impl IntoIterator<Item = Change>,
    ) {
        events.extend(changes.into_iter().map(|change| Event {
            time: self.time,
            tunnel: tunnel.to_owned(),
            change,
        }));
    }

    fn peer_changes(&self, then: u64, before: &[Peer], now: &[Peer]) -> Vec<Change> {
        let before: BTreeMap<_, _> = before.iter().map(|it| (&it.public_key, it)).collect();
        let keys: BTreeSet<_> = now.iter().map(|it| &it.public_key).collect();
        let missing = before.values().filter(|it| !keys.contains(&it.public_key));
        let with_session = missing.filter(|it| has_session(it, then));
        let mut changes: Vec<_> = with_session
            .map(|it| Change::PeerGone(EventPeer::of(it)))
            .collect();
        for peer in now {
            let was = before.get(&peer.public_key);
            let had = was.is_some_and(|was| has_session(was, then));
            let has = has_session(peer, self.time);
            match (had, has) {
                (false, true) => changes.push(Change::PeerConnected(EventPeer::of(peer))),
                (true, false) => changes.push(Change::PeerGone(EventPeer::of(peer))),
                _ => {}
            }
            let old = was.and_then(|was| was.endpoint.as_ref());
            if let Some(old) = old.filter(|old| had && has && Some(*old) != peer.endpoint.as_ref())
            {
                changes.push(Change::PeerRoamed {
                    peer: EventPeer::of(peer),
                    from: old.clone(),
                });
            }
        }
        changes
    }
}

fn state_change(before: Option<&Tunnel>, now: &Tunnel) -> Option<Change> {
    if before.is_some_and(|before| before.state == now.state) {
        return None;
    }
    Some(match now.state {
        State::Up => Change::Up,
        State::Down => Change::Down,
        State::Degraded => Change::Degraded {
            findings: now.findings.clone(),
        },
    })
}

fn by_key(findings: &[Finding]) -> BTreeMap<(&'static str, Option<&str>), &Finding> {
    let findings = findings.iter();
    findings
        .map(|it| ((it.code.name(), it.peer.as_deref()), it))
        .collect()
}

/// Returns the findings that have begun or ended. Findings with the same code and peer count as one, since
/// their texts contain times.
fn finding_changes(before: &Tunnel, now: &Tunnel) -> Vec<Change> {
    let (before, now) = (by_key(&before.findings), by_key(&now.findings));
    let begun = now.iter().filter(|(key, _)| !before.contains_key(*key));
    let begun = begun.map(|(_, it)| Change::FindingBegun((*it).clone()));
    let ended = before.iter().filter(|(key, _)| !now.contains_key(*key));
    let ended = ended.map(|(_, it)| Change::FindingEnded {
        code: it.code,
        peer: it.peer.clone(),
    });
    begun.chain(ended).collect()
}

fn has_session(peer: &Peer, now: u64) -> bool {
    let age = peer.latest_handshake.map(|at| now.saturating_sub(at));
    age.is_some_and(|age| age < SESSION_LIFETIME.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(key: &str, handshake: Option<u64>, endpoint: &str) -> Peer {
        Peer {
            public_key: key.to_owned(),
            name: None,
            endpoint: Some(endpoint.to_owned()),
            latest_handshake: handshake,
            unanswered_handshakes: 0,
            received_bytes: 0,
            sent_bytes: 0,
            post_quantum: None,
            lanes: None,
        }
    }

    fn tunnel(name: &str, codes: &[FindingCode], peers: Vec<Peer>) -> Tunnel {
        let finding = |code: &FindingCode| Finding {
            code: *code,
            text: "a sentence".to_owned(),
            peer: None,
        };
        Tunnel {
            state: if codes.is_empty() {
                State::Up
            } else {
                State::Degraded
            },
            findings: codes.iter().map(finding).collect(),
            peers,
            ..Tunnel::named(name)
        }
    }

    fn look(time: u64, tunnels: Vec<Tunnel>) -> Snapshot {
        let state = tunnels.iter().map(|tunnel| tunnel.state).max();
        Snapshot::new(
            time,
            Status {
                schema: 1,
                state,
                tunnels,
            },
        )
    }

    fn names(events: &[Event]) -> Vec<(&str, &str)> {
        let events = events.iter();
        events.map(|it| (&*it.tunnel, it.change.name())).collect()
    }

    #[test]
    fn tunnels_begin_and_end() {
        let first = look(
            1000,
            vec![tunnel("home", &[], vec![]), tunnel("work", &[], vec![])],
        );
        let events = first.since(&Snapshot::none());
        assert_eq!(names(&events), [("home", "up"), ("work", "up")]);
        assert!(first.since(&first).is_empty());
        let second = look(1001, vec![tunnel("work", &[], vec![])]);
        assert_eq!(names(&second.since(&first)), [("home", "down")]);
    }

    #[test]
    fn findings_begin_and_end() {
        let up = look(1000, vec![tunnel("home", &[], vec![])]);
        let one = look(1001, vec![tunnel("home", &[FindingCode::NoRoute], vec![])]);
        let both = [FindingCode::NoRoute, FindingCode::HandshakeOld];
        let two = look(1002, vec![tunnel("home", &both, vec![])]);
        let other = look(1003, vec![tunnel("home", &both[1..], vec![])]);
        assert_eq!(names(&one.since(&up)), [("home", "degraded")]);
        assert_eq!(names(&two.since(&one)), [("home", "finding-begun")]);
        assert_eq!(names(&other.since(&two)), [("home", "finding-ended")]);
        assert_eq!(
            names(&up.since(&other)),
            [("home", "up"), ("home", "finding-ended")]
        );
    }

    #[test]
    fn findings_about_several_peers_are_several() {
        let silent = |time, peers: &[&str]| {
            let mut home = tunnel("home", &[FindingCode::NoRoute], vec![]);
            home.findings.extend(peers.iter().map(|key| Finding {
                code: FindingCode::PeerSilent,
                text: format!("silent since {time}"),
                peer: Some((*key).to_owned()),
            }));
            look(time, vec![home])
        };
        let peers = |events: Vec<Event>| -> Vec<(&'static str, Option<String>)> {
            let of = |event: Event| match event.change {
                Change::FindingBegun(finding) => ("begun", finding.peer),
                Change::FindingEnded { peer, .. } => ("ended", peer),
                change => panic!("{change:?}"),
            };
            events.into_iter().map(of).collect()
        };
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        let one = silent(1, &["a"]);
        let both = silent(2, &["a", "b"]);
        assert_eq!(peers(both.since(&one)), [("begun", b.clone())]);
        let other = silent(3, &["b"]);
        assert_eq!(
            peers(other.since(&one)),
            [("begun", b.clone()), ("ended", a.clone())]
        );
        let none = silent(4, &[]);
        assert_eq!(peers(none.since(&both)), [("ended", a), ("ended", b)]);
    }

    #[test]
    fn peers_go_with_their_tunnel() {
        let session = || {
            vec![
                peer("a", Some(1000), "192.0.2.1:1"),
                peer("b", None, "192.0.2.2:1"),
            ]
        };
        let there = look(1000, vec![tunnel("home", &[], session())]);
        let removed = look(1001, vec![tunnel("home", &[], vec![])]);
        assert_eq!(names(&removed.since(&there)), [("home", "peer-gone")]);
        let down = look(1001, vec![]);
        let events = down.since(&there);
        assert_eq!(names(&events), [("home", "peer-gone"), ("home", "down")]);
    }

    #[test]
    fn peers_come_roam_and_go() {
        let with = |time, handshake, endpoint| {
            look(
                time,
                vec![tunnel("home", &[], vec![peer("a", handshake, endpoint)])],
            )
        };
        let never = with(1000, None, "192.0.2.1:1");
        let here = with(1001, Some(1001), "192.0.2.1:1");
        let there = with(1002, Some(1001), "192.0.2.9:7");
        let gone = with(1181, Some(1001), "192.0.2.9:7");
        assert_eq!(names(&here.since(&never)), [("home", "peer-connected")]);
        let roamed = there.since(&here);
        assert_eq!(names(&roamed), [("home", "peer-roamed")]);
        let line = crate::json::line(&roamed[0]);
        let expected = "{\"time\":1002,\"tunnel\":\"home\",\"event\":\"peer-roamed\",\"public_key\":\"a\",\
                        \"name\":null,\"endpoint\":\"192.0.2.9:7\",\"from\":\"192.0.2.1:1\"}\n";
        assert_eq!(line, expected);
        assert_eq!(names(&gone.since(&there)), [("home", "peer-gone")]);
    }
}
