//! From what was seen to how a tunnel is: no look at the system.

use crate::console::span;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taupe_transparent::state::Lock;
use taupe_transparent::translate::Silence;

/// How a tunnel is, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Up,
    /// It is there, and something of it does not work.
    Degraded,
    Down,
}

impl State {
    pub(crate) const fn exit_status(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Down => 1,
            Self::Degraded => 2,
        }
    }
}

/// What keeps a tunnel from being up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    /// A word that stays the same.
    pub(crate) code: &'static str,
    pub(crate) text: String,
}

impl Finding {
    pub(super) fn new(code: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

/// How long a session lasts at most without a new handshake (Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);

/// So many initiations without an answer are no chance: the next comes after 5 s.
const UNANSWERED: u32 = 2;

/// What is seen of a tunnel's process.
pub(super) struct Process<'a> {
    pub(super) interface: &'a str,
    /// What `taupe up` is told.
    pub(super) word: &'a str,
    pub(super) is_running: bool,
    /// Nobody has taken it down.
    pub(super) is_killed: bool,
    /// What `up` or `down` has begun is not done.
    pub(super) is_changing: bool,
    /// Its configuration socket does.
    pub(super) answers: bool,
    /// What is held back, of chosen applications.
    pub(super) lock: Option<Lock>,
}

/// Why there is nobody who carries the tunnel.
pub(super) fn process(process: &Process<'_>) -> Option<Finding> {
    let Process {
        interface,
        word,
        is_running,
        is_killed,
        is_changing,
        answers,
        lock,
    } = process;
    let until = format!("until `taupe up {word}` or `taupe down {interface}`");
    let meanwhile = match lock {
        Some(Lock::Nobody) => format!("{} until `taupe up {word}`", Lock::Nobody),
        Some(lock) => format!("{lock} {until}"),
        None => format!("what it had taken on may reach nothing {until}"),
    };
    match (is_running, is_killed) {
        (true, _) if *answers => None,
        (true, _) => Some(Finding::new(
            "process-silent",
            format!("its process does not answer; `taupe down {interface}` and `taupe up {word}`"),
        )),
        (false, true) if *lock == Some(Lock::Nobody) => Some(Finding::new("down", meanwhile)),
        (false, true) => Some(Finding::new(
            "process-ended",
            format!("its process has ended; {meanwhile}"),
        )),
        (false, false) if *is_changing => Some(Finding::new(
            "changing",
            format!(
                "it is being brought up or taken down; if nobody does, `taupe down {interface}` \
                 undoes what was begun"
            ),
        )),
        (false, false) if lock.is_some() => Some(Finding::new("down", meanwhile)),
        (false, false) => None,
    }
}

/// How it is, all in all.
pub(super) fn state(is_running: bool, findings: &[Finding]) -> State {
    let is_held_by_nobody = findings
        .iter()
        .any(|finding| finding.code == "process-ended");
    match (is_running, findings) {
        (false, _) if !is_held_by_nobody => State::Down,
        (true, []) => State::Up,
        _ => State::Degraded,
    }
}

/// A link that leads out and has no filter.
pub(super) fn unguarded(name: &str, is_known: bool) -> Finding {
    let why = match is_known {
        true => format!(
            "another program's filter may come first (`tc filter show dev {name} egress`, \
             `bpftool net`)"
        ),
        false => "its kind of link is not known to Taupe".into(),
    };
    Finding::new(
        "uplink-unguarded",
        format!("chosen applications cannot use {name}: {why}"),
    )
}

/// Name servers of the tunnel that do not answer, though its peers do.
pub(super) fn name_servers(silence: &Silence) -> Finding {
    let servers: Vec<_> = silence.servers.iter().map(ToString::to_string).collect();
    let verb = match servers.len() {
        1 => "has",
        _ => "have",
    };
    Finding::new(
        "name-servers-silent",
        format!(
            "{} in DNS {verb} not answered for {}, though the tunnel's peer does: chosen \
             applications find no names; is DNS right, and may this tunnel ask there?",
            servers.join(", "),
            span(silence.time)
        ),
    )
}

/// What is seen of a peer.
pub(super) struct Peer {
    /// Since the latest handshake.
    pub(super) age: Option<Duration>,
    /// Initiations since anything was heard of it, and since when.
    pub(super) unanswered: Option<(u32, Duration)>,
    /// Anything was ever sent to it.
    pub(super) has_sent: bool,
    /// How far one gets.
    pub(super) way: Way,
}

/// How far one gets on the way to an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// There is no route.
    None,
    /// The next machine is not there.
    Silent(Hop),
    /// It is there.
    Answers(Hop),
    /// Nobody can say.
    Unknown,
}

/// The next machine on the way, which may be the last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hop {
    pub(super) address: IpAddr,
    /// The link's name.
    pub(super) link: String,
}

/// What there is to say of a peer.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Finding(Finding),
    Note(String),
}

/// A peer that takes an ML-KEM key of this side's, which there is not.
pub(super) fn no_own_key(shown: &str) -> Finding {
    Finding::new(
        "no-pq-private-key",
        format!(
            "no hybrid handshake with {shown} is possible, and no other is begun: there is no \
             PqPrivateKey; make one with `taupe genkey --pq` for the file, or for `taupe set \
             INTERFACE pq-private-key FILE`"
        ),
    )
}

/// What is wrong where nobody answers.
const USUALLY: &str = "that is usually a wrong PublicKey, PrivateKey or PresharedKey, a wrong \
                       Endpoint, a firewall, or a network that swallows UDP";

/// How long handshakes are unanswered before the network is named: the second try and the
/// third have been lost too.
const SUSPICIOUS: Duration = Duration::from_secs(15);

/// How a peer is, or nothing where it is as it should be.
pub(super) fn peer(shown: &str, endpoint: Option<SocketAddr>, peer: &Peer) -> Option<Heard> {
    let finding = |code, text: String| Some(Heard::Finding(Finding::new(code, text)));
    let at = endpoint.map_or_else(String::new, |endpoint| format!(" at {endpoint}"));
    match (peer.age, peer.unanswered) {
        (_, Some((count @ UNANSWERED.., time))) => Some(Heard::Finding(
            endpoint
                .and_then(|endpoint| on_the_way(shown, endpoint, time, peer))
                .unwrap_or_else(|| silent(&format!("{shown}{at}"), count, peer.age)),
        )),
        (Some(_), _) => None,
        (None, None) if peer.has_sent => finding(
            "no-handshake",
            format!("no handshake yet: {shown}{at} has answered none; {USUALLY}"),
        ),
        (None, None) if endpoint.is_none() => Some(Heard::Note(format!(
            "no handshake yet: {shown} has no endpoint, and has not called"
        ))),
        (None, None) => Some(Heard::Note(format!(
            "no handshake yet: none is made with {shown} before something is sent"
        ))),
        (None, Some(_)) => Some(Heard::Note(format!(
            "no handshake yet: {shown}{at} has just been called"
        ))),
    }
}

/// Where handshakes with a peer are lost that has not answered for some time, if the way
/// to it says that.
fn on_the_way(shown: &str, endpoint: SocketAddr, time: Duration, peer: &Peer) -> Option<Finding> {
    let unanswered = format!("handshakes unanswered for {}", span(time));
    let (code, text) = match (&peer.way, peer.age) {
        (Way::None, _) => (
            "no-route",
            format!(
                "there is no route to {shown} at {endpoint}: {unanswered}; connect this machine \
                 to a network (`ip route get {}`)",
                endpoint.ip()
            ),
        ),
        (Way::Silent(Hop { address, link }), _) => (
            "next-hop-silent",
            format!(
                "{address}, the next machine on the way to {shown} at {endpoint}, is not to be \
                 found on {link}: {unanswered}; the network is the trouble, not the tunnel \
                 (`ip neighbour show dev {link}`)"
            ),
        ),
        (Way::Unknown, _) => return None,
        (Way::Answers(_), _) if time < SUSPICIOUS => return None,
        (Way::Answers(Hop { address, link }), age) if *address == endpoint.ip() => (
            match age {
                Some(_) => "peer-silent",
                None => "no-handshake",
            },
            format!(
                "{}{endpoint} is a machine on {link} that is there, and does not answer: \
                 {unanswered}; nobody listens at that port, its firewall drops it{}",
                age.map_or("no handshake yet: ", |_| ""),
                match age {
                    Some(_) => ", or it has another key now",
                    None => ", or PublicKey, PrivateKey or PresharedKey is wrong",
                }
            ),
        ),
        (Way::Answers(Hop { address, link }), Some(age)) => (
            "udp-swallowed",
            format!(
                "this network seems to swallow UDP to {endpoint} (a captive portal's login page, \
                 or a firewall), unless its server is down: {unanswered}, though {address} on {link}, the next machine on \
                 the way, is there, and a handshake {} ago had an answer; {LOG_IN}",
                span(age)
            ),
        ),
        (Way::Answers(Hop { address, link }), None) => (
            "no-handshake",
            format!(
                "no handshake yet: {unanswered}, though {address} on {link}, the next machine \
                 on the way, is there; a wrong PublicKey, PrivateKey, PresharedKey or Endpoint \
                 is as likely as a network that swallows UDP to {endpoint} (a captive portal's \
                 login page, or a firewall); `taupe check` the file, and {LOG_IN}"
            ),
        ),
    };
    Some(Finding::new(code, text))
}

/// What gets somebody out of a captive portal.
const LOG_IN: &str = "open a web page with an application that does not use the tunnel, log in \
                      if the network wants that, or try another network";

/// A peer that has not answered several handshakes, all that is known.
fn silent(who: &str, count: u32, age: Option<Duration>) -> Finding {
    match age {
        None => Finding::new(
            "no-handshake",
            format!("no handshake yet: {who} has not answered {count} of them; {USUALLY}"),
        ),
        Some(age) if age >= SESSION => Finding::new(
            "handshake-old",
            format!(
                "{who} has not answered {count} handshakes; the latest is {} old, and nothing \
                 gets through; a network that swallows UDP, a firewall or an endpoint that has \
                 moved does that",
                span(age)
            ),
        ),
        Some(age) => Finding::new(
            "peer-silent",
            format!(
                "{who} does not answer; the latest handshake is {} old",
                span(age)
            ),
        ),
    }
}

/// What is not known where the peer of a tunnel that goes through another is silent, and the
/// other's is not.
pub(super) fn one_way(outer: &str) -> String {
    format!(
        "{outer}, which it goes through, is heard; whether what {outer} sends arrives is not \
         known, and would look the same"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDED: Process<'_> = Process {
        interface: "home",
        word: "home",
        is_running: false,
        is_killed: true,
        is_changing: false,
        answers: false,
        lock: Some(Lock::Chosen),
    };

    fn judged(process: &Process<'_>) -> (State, Option<&'static str>) {
        let findings: Vec<_> = super::process(process).into_iter().collect();
        let code = findings.first().map(|finding| finding.code);
        (state(process.is_running, &findings), code)
    }

    #[test]
    fn a_tunnel_without_a_process_is_degraded_while_it_holds_back_and_down_otherwise() {
        assert_eq!(judged(&ENDED), (State::Degraded, Some("process-ended")));
        let adapter = Process {
            lock: None,
            ..ENDED
        };
        assert_eq!(judged(&adapter), (State::Degraded, Some("process-ended")));
        let open = Process {
            lock: Some(Lock::Nobody),
            ..ENDED
        };
        assert_eq!(judged(&open), (State::Down, Some("down")));
        // Somebody has taken it down.
        let closed = Process {
            is_killed: false,
            ..ENDED
        };
        assert_eq!(judged(&closed), (State::Down, Some("down")));
        let never = Process {
            lock: None,
            ..closed
        };
        assert_eq!(judged(&never), (State::Down, None));
        let begun = Process {
            is_changing: true,
            ..never
        };
        assert_eq!(judged(&begun), (State::Down, Some("changing")));
        let up = Process {
            is_running: true,
            is_killed: false,
            answers: true,
            ..ENDED
        };
        assert_eq!(judged(&up), (State::Up, None));
        let stopped = Process {
            answers: false,
            ..up
        };
        assert_eq!(judged(&stopped), (State::Degraded, Some("process-silent")));
    }

    #[test]
    fn silent_name_servers_degrade_a_tunnel() {
        let servers = |texts: &[&str]| Silence {
            servers: texts.iter().map(|text| text.parse().unwrap()).collect(),
            time: Duration::from_secs(12),
        };
        let one = name_servers(&servers(&["10.77.0.53"]));
        assert!(
            one.text
                .starts_with("10.77.0.53 in DNS has not answered for 12 s")
        );
        let two = name_servers(&servers(&["10.77.0.53", "10.77.0.54"]));
        assert!(
            two.text
                .starts_with("10.77.0.53, 10.77.0.54 in DNS have not")
        );
        assert_eq!(state(true, &[one]), State::Degraded);
    }

    #[test]
    fn the_worst_of_several_counts() {
        assert!(State::Up < State::Degraded && State::Degraded < State::Down);
        let statuses = [State::Up, State::Down, State::Degraded].map(State::exit_status);
        assert_eq!(statuses, [0, 1, 2]);
    }

    fn hop(address: &str) -> Hop {
        Hop {
            address: address.parse().unwrap(),
            link: "wlan0".into(),
        }
    }

    /// What is said of a peer at 192.0.2.1, by its code.
    fn told(
        age: Option<u64>,
        unanswered: Option<(u32, u64)>,
        has_sent: bool,
        way: Way,
    ) -> Option<(&'static str, String)> {
        let seen = Peer {
            age: age.map(Duration::from_secs),
            unanswered: unanswered.map(|(count, time)| (count, Duration::from_secs(time))),
            has_sent,
            way,
        };
        match peer("its peer", "192.0.2.1:51820".parse().ok(), &seen)? {
            Heard::Finding(Finding { code, text }) => Some((code, text)),
            Heard::Note(text) => Some(("note", text)),
        }
    }

    #[test]
    fn a_peer_that_does_not_answer_is_told_from_one_that_was_not_asked() {
        for (age, unanswered, has_sent, code) in [
            (None, None, false, Some("note")),
            (None, Some((1, 0)), true, Some("note")),
            (None, Some((2, 5)), true, Some("no-handshake")),
            // It was given up.
            (None, None, true, Some("no-handshake")),
            // An idle tunnel makes no handshakes.
            (Some(9999), None, true, None),
            (Some(9999), Some((1, 0)), true, None),
            (Some(180), Some((2, 5)), true, Some("handshake-old")),
            (Some(179), Some((2, 5)), true, Some("peer-silent")),
        ] {
            for way in [Way::Unknown, Way::Answers(hop("198.51.100.9"))] {
                let told = told(age, unanswered, has_sent, way);
                assert_eq!(told.map(|(code, _)| code), code, "{age:?} {unanswered:?}");
            }
        }
    }

    #[test]
    fn where_handshakes_are_lost_is_told_by_the_way() {
        let router = hop("198.51.100.9");
        let itself = hop("192.0.2.1");
        let portal = "swallow UDP to 192.0.2.1:51820 (a captive portal's login page";
        let swallows = "swallows UDP to 192.0.2.1:51820 (a captive portal's login page";
        for (age, time, way, code, word) in [
            // At once, whoever has answered before.
            (None, 5, Way::None, "no-route", "ip route get 192.0.2.1"),
            (Some(100), 5, Way::None, "no-route", "unanswered for 5 s"),
            (
                None,
                5,
                Way::Silent(router.clone()),
                "next-hop-silent",
                "198.51.100.9",
            ),
            (
                Some(9),
                5,
                Way::Silent(itself.clone()),
                "next-hop-silent",
                "wlan0",
            ),
            // After some time, since a datagram may be lost.
            (
                Some(99),
                14,
                Way::Answers(router.clone()),
                "peer-silent",
                "99 s old",
            ),
            (
                Some(99),
                15,
                Way::Answers(router.clone()),
                "udp-swallowed",
                portal,
            ),
            (
                Some(999),
                25,
                Way::Answers(router.clone()),
                "udp-swallowed",
                "unanswered for 25 s",
            ),
            (
                Some(999),
                25,
                Way::Answers(router.clone()),
                "udp-swallowed",
                "16 min ago",
            ),
            // The keys may be wrong where there has not been any.
            (
                None,
                14,
                Way::Answers(router.clone()),
                "no-handshake",
                "of them",
            ),
            (
                None,
                15,
                Way::Answers(router.clone()),
                "no-handshake",
                swallows,
            ),
            (
                None,
                15,
                Way::Answers(router),
                "no-handshake",
                "wrong PublicKey",
            ),
            // A network does not swallow what does not leave it.
            (
                Some(99),
                15,
                Way::Answers(itself.clone()),
                "peer-silent",
                "nobody listens",
            ),
            (
                None,
                15,
                Way::Answers(itself),
                "no-handshake",
                "PublicKey, PrivateKey",
            ),
            (
                Some(999),
                99,
                Way::Unknown,
                "handshake-old",
                "an endpoint that has moved",
            ),
        ] {
            let (found, text) = told(age, Some((2, time)), true, way.clone()).unwrap();
            assert_eq!(found, code, "{age:?} {time} {way:?}");
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
