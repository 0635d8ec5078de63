//! Findings and the state of a tunnel, derived from observations. This module does not access the
//! system.

use super::code::FindingCode;
use crate::span;
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taupe_nat::translate::SilentServers;
use taupe_transparent::state::Lock;

/// State of a tunnel, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The tunnel works.
    Up,
    /// The tunnel exists, but a part of it does not work.
    Degraded,
    /// No process carries the tunnel.
    Down,
}

impl State {
    /// Returns the exit status of `taupe status`.
    #[must_use]
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Up => 0,
            Self::Down => 1,
            Self::Degraded => 2,
        }
    }
}

/// A condition that keeps a tunnel from being fully up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Stable identifier.
    pub code: FindingCode,
    /// Sentence with the reason and advice.
    pub text: String,
    /// Public key of the peer in base64, if it is about one.
    pub peer: Option<String>,
}

impl Finding {
    pub(super) fn new(code: FindingCode, text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            code,
            text,
            peer: None,
        }
    }

    /// Makes it a finding about the peer with this public key.
    pub(super) fn of_peer(self, key: String) -> Self {
        Self {
            peer: Some(key),
            ..self
        }
    }
}

/// Maximum age of a session without a new handshake (`REJECT_AFTER_TIME`, whitepaper section 6.1).
pub const SESSION_LIFETIME: Duration = Duration::from_secs(180);

/// Unanswered initiations from which a peer counts as silent. Initiations are 5 s apart, so one
/// lost datagram is not enough.
const SILENT_FROM: u32 = 2;

/// Observations of a tunnel's process.
pub(super) struct ProcessObservation<'a> {
    pub(super) interface: &'a str,
    /// Argument by which `taupe up` finds the tunnel.
    pub(super) word: &'a str,
    pub(super) is_running: bool,
    /// The process has ended without `taupe down`.
    pub(super) is_killed: bool,
    /// `up` or `down` has begun and not finished.
    pub(super) is_changing: bool,
    /// The configuration socket answers.
    pub(super) answers: bool,
    /// The kill switch, if the tunnel selects applications.
    pub(super) lock: Option<Lock>,
    /// The routes that `up` has made block traffic when there is no process.
    pub(super) blocks: bool,
}

/// Returns the reason why no process carries the tunnel.
pub(super) fn process_finding(process: &ProcessObservation<'_>) -> Option<Finding> {
    let ProcessObservation {
        interface,
        word,
        is_running,
        is_killed,
        is_changing,
        answers,
        lock,
        blocks,
    } = process;
    let until = format!("until `taupe up {word}` or `taupe down {interface}`");
    let meanwhile = match lock {
        Some(Lock::Off) => format!("{} until `taupe up {word}`", Lock::Off),
        Some(lock) => format!("{lock} {until}"),
        None if *blocks => format!("traffic for its networks is blocked {until}"),
        None => format!("traffic for its networks may be lost {until}"),
    };
    match (is_running, is_killed) {
        (true, _) if *answers => None,
        (true, _) => Some(Finding::new(
            FindingCode::ProcessSilent,
            format!("its process does not answer; `taupe down {interface}` and `taupe up {word}`"),
        )),
        (false, true) if *lock == Some(Lock::Off) => {
            Some(Finding::new(FindingCode::Down, meanwhile))
        }
        (false, true) => Some(Finding::new(
            FindingCode::ProcessEnded,
            format!("its process has ended; {meanwhile}"),
        )),
        (false, false) if *is_changing => Some(Finding::new(
            FindingCode::Changing,
            format!(
                "it is being brought up or taken down; if no command does that, `taupe down {interface}` \
                 undoes its changes"
            ),
        )),
        (false, false) if lock.is_some() => Some(Finding::new(FindingCode::Down, meanwhile)),
        (false, false) => None,
    }
}

/// Returns the state of the tunnel as a whole.
pub(super) fn overall_state(is_running: bool, findings: &[Finding]) -> State {
    let has_lost_process = findings
        .iter()
        .any(|finding| finding.code == FindingCode::ProcessEnded);
    match (is_running, findings) {
        (false, _) if !has_lost_process => State::Down,
        (true, []) => State::Up,
        _ => State::Degraded,
    }
}

/// Returns the finding that a link by which packets leave has no filter.
pub(super) fn unguarded(name: &str, is_known: bool) -> Finding {
    let why = match is_known {
        true => format!(
            "another program's filter may come first (`tc filter show dev {name} egress`, \
             `bpftool net`)"
        ),
        false => "Taupe does not know this type of link".into(),
    };
    Finding::new(
        FindingCode::UplinkUnguarded,
        format!("selected applications cannot use {name}: {why}"),
    )
}

/// Returns the finding that an application opens flows faster than old ones may be dropped.
pub(super) fn flows_refused() -> Finding {
    Finding::new(
        FindingCode::FlowsRefused,
        "an application has too many flows open, so its new flows are refused; other applications \
         are not affected; lower its number of connections, or restart it (`taupe flows` lists \
         them)",
    )
}

/// Returns the finding that name servers in the tunnel do not answer although its peers do.
pub(super) fn silent_name_servers(silence: &SilentServers) -> Finding {
    let servers: Vec<_> = silence.servers.iter().map(ToString::to_string).collect();
    let verb = match servers.len() {
        1 => "has",
        _ => "have",
    };
    Finding::new(
        FindingCode::NameServersSilent,
        format!(
            "{} in DNS {verb} not answered for {}, but the tunnel's peer answers: selected \
             applications cannot look up names; check DNS in the file, and that these servers \
             accept queries from this tunnel",
            servers.join(", "),
            span(silence.time)
        ),
    )
}

/// Observations of a peer.
pub(super) struct PeerObservation {
    /// The peer starts handshakes, and this side only responds, as a gateway does. SilentServers is
    /// normal then.
    pub(super) is_initiator: bool,
    /// Age of the latest handshake.
    pub(super) age: Option<Duration>,
    /// Initiations since the last packet of the peer, and the time since then.
    pub(super) unanswered: Option<(u32, Duration)>,
    /// Anything was ever sent to the peer.
    pub(super) has_sent: bool,
    pub(super) path: EndpointPath,
}

/// The path to an endpoint, as far as this machine can see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum EndpointPath {
    /// No route leads to the endpoint.
    NoRoute {
        /// Links without carrier, which may be the reason.
        down: Vec<String>,
    },
    /// The route's link has no carrier.
    NoCarrier { link: String },
    /// The next hop does not answer.
    NextHopSilent(NextHop),
    /// The next hop answers.
    NextHopAnswers(NextHop),
    /// The kernel does not know, or was not asked.
    Unknown,
}

/// The next hop, which may be the endpoint itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NextHop {
    pub(super) address: IpAddr,
    pub(super) link: String,
}

/// Returns the finding that `other`, a device of this machine, has the same private key and the
/// same peer.
pub(super) fn shared_key(other: &str, shown: &str) -> Finding {
    Finding::new(
        FindingCode::KeyShared,
        format!(
            "{other} has the same PrivateKey and shares {shown}: the peer keeps one session for \
             both tunnels, so each handshake of one cuts off the other; take one tunnel down, or \
             give it a PrivateKey of its own (`taupe genkey`) and the peer its public key"
        ),
    )
}

/// Result for a peer that is not as it should be.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum PeerAssessment {
    Finding(Finding),
    Note(String),
    /// A peer that starts handshakes itself has not started one yet.
    AwaitingInitiation,
}

/// Returns the finding that a peer expects an ML-KEM key of this side, which is missing.
pub(super) fn no_own_key(shown: &str) -> Finding {
    Finding::new(
        FindingCode::NoPqPrivateKey,
        format!(
            "{shown} requires hybrid handshakes, and this side has no PqPrivateKey: no handshake \
             is possible; make a key with `taupe genkey --pq` for the file, or for `taupe set \
             INTERFACE pq-private-key FILE`"
        ),
    )
}

/// Adds the causes that only hybrid handshakes have to the finding that a peer has never answered.
pub(super) fn with_hybrid_causes(finding: Finding) -> Finding {
    if finding.code != FindingCode::NoHandshake {
        return finding;
    }
    let text = format!(
        "{}; hybrid handshakes are required, so the peer must run Taupe and have the PqPrivateKey that \
         belongs to its PqPublicKey here",
        finding.text
    );
    Finding { text, ..finding }
}

/// Usual causes if no peer answers.
pub const USUAL_CAUSES: &str = "usual causes are a wrong PublicKey, PrivateKey, PresharedKey or \
                            Endpoint, a firewall, or a network that drops UDP";

/// Time without an answer after which the network is suspected: by then two retries were lost too.
const SUSPECT_NETWORK_AFTER: Duration = Duration::from_secs(15);

/// Judges a peer. `None` if it is as it should be.
pub(super) fn assess_peer(
    shown: &str,
    endpoint: Option<SocketAddr>,
    peer: &PeerObservation,
) -> Option<PeerAssessment> {
    let finding = |code, text: String| Some(PeerAssessment::Finding(Finding::new(code, text)));
    let at = endpoint.map_or_else(String::new, |endpoint| format!(" at {endpoint}"));
    if peer.is_initiator {
        return peer
            .age
            .is_none()
            .then_some(PeerAssessment::AwaitingInitiation);
    }
    let reach = |endpoint| unreachable(shown, endpoint, &peer.path, peer.unanswered);
    if let Some(finding) = endpoint.and_then(reach) {
        return Some(PeerAssessment::Finding(finding));
    }
    match (peer.age, peer.unanswered) {
        (_, Some((count @ SILENT_FROM.., time))) => Some(PeerAssessment::Finding(
            endpoint
                .and_then(|endpoint| lost_on_path(shown, endpoint, time, peer))
                .unwrap_or_else(|| silent_peer(&format!("{shown}{at}"), count, peer.age)),
        )),
        (Some(_), _) => None,
        (None, None) if peer.has_sent => finding(
            FindingCode::NoHandshake,
            format!("no handshake yet: {shown}{at} has answered none; {USUAL_CAUSES}"),
        ),
        (None, None) if endpoint.is_none() => Some(PeerAssessment::Note(format!(
            "no handshake yet: {shown} has no endpoint, and has not started one"
        ))),
        (None, None) => Some(PeerAssessment::Note(format!(
            "no handshake yet: the first packet to {shown} starts one"
        ))),
        (None, Some(_)) => Some(PeerAssessment::Note(format!(
            "no handshake yet: one with {shown}{at} has just been started"
        ))),
    }
}

/// Returns a sentence with the number of peers that have never started a handshake with a gateway.
pub(super) fn awaiting_note(count: usize, peers: usize) -> Option<String> {
    match (count, peers) {
        (0, _) => None,
        (_, 1) => Some("no handshake yet: its peer has not started one".to_owned()),
        _ => Some(format!(
            "no handshake yet with {count} of its {peers} peers: they have not started one"
        )),
    }
}

/// Returns the reason why no datagram leaves for an endpoint. The reason applies immediately, even
/// if no handshake has been tried.
pub(super) fn unreachable(
    shown: &str,
    endpoint: SocketAddr,
    path: &EndpointPath,
    unanswered: Option<(u32, Duration)>,
) -> Option<Finding> {
    let unanswered = unanswered.map_or_else(String::new, |(_, time)| {
        format!(", handshakes unanswered for {}", span(time))
    });
    let address = endpoint.ip();
    match path {
        EndpointPath::NoRoute { down } => Some(Finding::new(
            FindingCode::NoRoute,
            format!(
                "no route leads to {shown} at {endpoint}{}{unanswered}: no packet reaches it now; \
                 connect this machine to a network (`ip route get {address}`)",
                without_carrier(down)
            ),
        )),
        EndpointPath::NoCarrier { link } => Some(Finding::new(
            FindingCode::NoCarrier,
            format!(
                "the route to {shown} at {endpoint} leaves by {link}, which is down or has no \
                 carrier{unanswered}: no packet reaches it now; connect {link} to its network (`ip \
                 link show dev {link}`)"
            ),
        )),
        EndpointPath::NextHopSilent(_)
        | EndpointPath::NextHopAnswers(_)
        | EndpointPath::Unknown => None,
    }
}

/// Names links without carrier, only the first few of many.
fn without_carrier(links: &[String]) -> String {
    const SHOWN: usize = 4;
    let names = links.get(..SHOWN).unwrap_or(links).join(", ");
    match links.len() {
        0 => String::new(),
        1 => format!(" ({names} is down or has no carrier)"),
        2..=SHOWN => format!(" ({names} are down or have no carrier)"),
        all => format!(
            " ({names} and {} more are down or have no carrier)",
            all - SHOWN
        ),
    }
}

/// Returns where handshakes with a silent peer are lost, if the path to it shows that.
fn lost_on_path(
    shown: &str,
    endpoint: SocketAddr,
    time: Duration,
    peer: &PeerObservation,
) -> Option<Finding> {
    let unanswered = format!("handshakes unanswered for {}", span(time));
    let (code, text) = match (&peer.path, peer.age) {
        (EndpointPath::NextHopSilent(NextHop { address, link }), _) => (
            FindingCode::NextHopSilent,
            format!(
                "{address}, the next hop to {shown} at {endpoint}, does not answer on {link}: \
                 {unanswered}; the fault is in the network, not in the tunnel (`ip neighbour show \
                 dev {link}`)"
            ),
        ),
        (
            EndpointPath::NoRoute { .. } | EndpointPath::NoCarrier { .. } | EndpointPath::Unknown,
            _,
        ) => return None,
        (EndpointPath::NextHopAnswers(_), _) if time < SUSPECT_NETWORK_AFTER => return None,
        (EndpointPath::NextHopAnswers(NextHop { address, link }), age)
            if *address == endpoint.ip() =>
        {
            (
                match age {
                    Some(_) => FindingCode::PeerSilent,
                    None => FindingCode::NoHandshake,
                },
                format!(
                    "{}the machine {endpoint} is reachable on {link}, but does not answer handshakes: \
                 {unanswered}; no program listens at this port, its firewall drops the packets{}",
                    age.map_or("no handshake yet: ", |_| ""),
                    match age {
                        Some(_) => ", or its key has changed",
                        None => ", or PublicKey, PrivateKey or PresharedKey is wrong",
                    }
                ),
            )
        }
        (EndpointPath::NextHopAnswers(NextHop { address, link }), Some(age)) => (
            FindingCode::UdpSwallowed,
            format!(
                "this network seems to drop UDP to {endpoint} (a captive portal's login page, or a \
                 firewall), unless the server is down: {unanswered}, but the next hop {address} on \
                 {link} answers, and so did the peer {} ago; {LOG_IN_ADVICE}",
                span(age)
            ),
        ),
        (EndpointPath::NextHopAnswers(NextHop { address, link }), None) => (
            FindingCode::NoHandshake,
            format!(
                "no handshake yet: {unanswered}, but the next hop {address} on {link} answers; a \
                 wrong PublicKey, PrivateKey, PresharedKey or Endpoint is as likely as a network \
                 that drops UDP to {endpoint} (a captive portal's login page, or a firewall); \
                 `taupe check` the file, and {LOG_IN_ADVICE}"
            ),
        ),
    };
    Some(Finding::new(code, text))
}

/// Advice for a captive portal.
const LOG_IN_ADVICE: &str = "open a web page with an application that does not use the tunnel, \
                             log in if the network asks for it, or try another network";

/// Returns the finding that a peer has not answered several handshakes, without a known reason.
fn silent_peer(who: &str, count: u32, age: Option<Duration>) -> Finding {
    match age {
        None => Finding::new(
            FindingCode::NoHandshake,
            format!("no handshake yet: {who} has not answered {count} of them; {USUAL_CAUSES}"),
        ),
        Some(age) if age >= SESSION_LIFETIME => Finding::new(
            FindingCode::HandshakeOld,
            format!(
                "{who} has not answered {count} handshakes; the latest is {} old, so no packet \
                 gets through; causes are a network that drops UDP, a firewall, or an endpoint \
                 that has moved",
                span(age)
            ),
        ),
        Some(age) => Finding::new(
            FindingCode::PeerSilent,
            format!(
                "{who} does not answer; the latest handshake is {} old",
                span(age)
            ),
        ),
    }
}

/// Returns a note for a silent peer of a tunnel through another one whose peer answers. If the
/// outer tunnel's datagrams did not arrive there, the inner peer would be silent as well.
pub(super) fn one_way_note(outer: &str) -> String {
    format!(
        "{outer}, which it goes through, receives packets from its peer; whether those that \
         {outer} sends arrive is not known: if they are lost, this peer is silent as well"
    )
}

#[cfg(test)]
mod tests;
