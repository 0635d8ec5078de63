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
    Up,
    /// The tunnel exists, but a part of it does not work.
    Degraded,
    Down,
}

impl State {
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
    pub code: FindingCode,
    pub text: String,
}

impl Finding {
    pub(super) fn new(code: FindingCode, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

/// Maximum age of a session without a new handshake (Reject-After-Time).
const SESSION: Duration = Duration::from_secs(180);

/// Unanswered initiations from which a peer counts as silent. Initiations are 5 s apart, so one
/// lost datagram is not enough.
const UNANSWERED: u32 = 2;

/// Observations of a tunnel's process.
pub(super) struct Process<'a> {
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
}

/// Returns the reason why no process carries the tunnel.
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
        Some(Lock::Off) => format!("{} until `taupe up {word}`", Lock::Off),
        Some(lock) => format!("{lock} {until}"),
        None => format!("what it had taken on may reach nothing {until}"),
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
                "it is being brought up or taken down; if nobody does, `taupe down {interface}` \
                 undoes what was begun"
            ),
        )),
        (false, false) if lock.is_some() => Some(Finding::new(FindingCode::Down, meanwhile)),
        (false, false) => None,
    }
}

/// Returns the state of the tunnel as a whole.
pub(super) fn state(is_running: bool, findings: &[Finding]) -> State {
    let is_held_by_nobody = findings
        .iter()
        .any(|finding| finding.code == FindingCode::ProcessEnded);
    match (is_running, findings) {
        (false, _) if !is_held_by_nobody => State::Down,
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
        false => "its kind of link is not known to Taupe".into(),
    };
    Finding::new(
        FindingCode::UplinkUnguarded,
        format!("chosen applications cannot use {name}: {why}"),
    )
}

/// Returns the finding that an application opens flows faster than old ones may be dropped.
pub(super) fn flows_refused() -> Finding {
    Finding::new(
        FindingCode::FlowsRefused,
        "an application has so many flows open that more of them are refused; other applications \
         have room; lower its number of connections, or restart it (`taupe flows` lists them)",
    )
}

/// Returns the finding that name servers in the tunnel do not answer although its peers do.
pub(super) fn name_servers(silence: &SilentServers) -> Finding {
    let servers: Vec<_> = silence.servers.iter().map(ToString::to_string).collect();
    let verb = match servers.len() {
        1 => "has",
        _ => "have",
    };
    Finding::new(
        FindingCode::NameServersSilent,
        format!(
            "{} in DNS {verb} not answered for {}, though the tunnel's peer does: chosen \
             applications find no names; is DNS right, and may this tunnel ask there?",
            servers.join(", "),
            span(silence.time)
        ),
    )
}

/// Observations of a peer.
pub(super) struct Peer {
    /// The peer calls, and this side only answers, as a gateway does. Silence is normal then.
    pub(super) is_caller: bool,
    /// Age of the latest handshake.
    pub(super) age: Option<Duration>,
    /// Initiations since the peer was last heard, and the time since then.
    pub(super) unanswered: Option<(u32, Duration)>,
    /// Anything was ever sent to the peer.
    pub(super) has_sent: bool,
    pub(super) way: Way,
}

/// The path to an endpoint, as far as this machine can see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// No route leads to the endpoint.
    NoRoute {
        /// Links without carrier, which may be the reason.
        down: Vec<String>,
    },
    /// The route's link has no carrier.
    NoCarrier { link: String },
    /// The next hop does not answer.
    Silent(Hop),
    /// The next hop answers.
    Answers(Hop),
    /// The kernel does not know, or was not asked.
    Unknown,
}

/// The next hop, which may be the endpoint itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hop {
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

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Finding(Finding),
    Note(String),
    /// A peer that calls has not called yet.
    NotCalled,
}

/// Returns the finding that a peer expects an ML-KEM key of this side, which is missing.
pub(super) fn no_own_key(shown: &str) -> Finding {
    Finding::new(
        FindingCode::NoPqPrivateKey,
        format!(
            "no hybrid handshake with {shown} is possible, and no other is begun: there is no \
             PqPrivateKey; make one with `taupe genkey --pq` for the file, or for `taupe set \
             INTERFACE pq-private-key FILE`"
        ),
    )
}

/// Usual causes if no peer answers.
const USUALLY: &str = "that is usually a wrong PublicKey, PrivateKey or PresharedKey, a wrong \
                       Endpoint, a firewall, or a network that swallows UDP";

/// Time without an answer after which the network is suspected: by then two retries were lost too.
const SUSPICIOUS: Duration = Duration::from_secs(15);

/// Judges a peer. `None` if it is as it should be.
pub(super) fn peer(shown: &str, endpoint: Option<SocketAddr>, peer: &Peer) -> Option<Heard> {
    let finding = |code, text: String| Some(Heard::Finding(Finding::new(code, text)));
    let at = endpoint.map_or_else(String::new, |endpoint| format!(" at {endpoint}"));
    if peer.is_caller {
        return peer.age.is_none().then_some(Heard::NotCalled);
    }
    let reach = |endpoint| unreachable(shown, endpoint, &peer.way, peer.unanswered);
    if let Some(finding) = endpoint.and_then(reach) {
        return Some(Heard::Finding(finding));
    }
    match (peer.age, peer.unanswered) {
        (_, Some((count @ UNANSWERED.., time))) => Some(Heard::Finding(
            endpoint
                .and_then(|endpoint| on_the_way(shown, endpoint, time, peer))
                .unwrap_or_else(|| silent(&format!("{shown}{at}"), count, peer.age)),
        )),
        (Some(_), _) => None,
        (None, None) if peer.has_sent => finding(
            FindingCode::NoHandshake,
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

/// Returns a sentence with the number of peers that have never called a gateway.
pub(super) fn not_called(count: usize, peers: usize) -> Option<String> {
    match (count, peers) {
        (0, _) => None,
        (_, 1) => Some("no handshake yet: its peer has not called".to_owned()),
        _ => Some(format!(
            "no handshake yet with {count} of its {peers} peers: they have not called"
        )),
    }
}

/// Returns the reason why no datagram leaves for an endpoint. The reason applies immediately, even
/// if no handshake has been tried.
pub(super) fn unreachable(
    shown: &str,
    endpoint: SocketAddr,
    way: &Way,
    unanswered: Option<(u32, Duration)>,
) -> Option<Finding> {
    let unanswered = unanswered.map_or_else(String::new, |(_, time)| {
        format!(", handshakes unanswered for {}", span(time))
    });
    let address = endpoint.ip();
    match way {
        Way::NoRoute { down } => Some(Finding::new(
            FindingCode::NoRoute,
            format!(
                "no route leads to {shown} at {endpoint}{}{unanswered}: nothing reaches it now; \
                 connect this machine to a network (`ip route get {address}`)",
                without_carrier(down)
            ),
        )),
        Way::NoCarrier { link } => Some(Finding::new(
            FindingCode::NoCarrier,
            format!(
                "the route to {shown} at {endpoint} leaves by {link}, which is down or has no \
                 carrier{unanswered}: nothing reaches it now; connect {link} to its network (`ip link \
                 show dev {link}`)"
            ),
        )),
        Way::Silent(_) | Way::Answers(_) | Way::Unknown => None,
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
fn on_the_way(shown: &str, endpoint: SocketAddr, time: Duration, peer: &Peer) -> Option<Finding> {
    let unanswered = format!("handshakes unanswered for {}", span(time));
    let (code, text) = match (&peer.way, peer.age) {
        (Way::Silent(Hop { address, link }), _) => (
            FindingCode::NextHopSilent,
            format!(
                "{address}, the next machine on the way to {shown} at {endpoint}, is not to be \
                 found on {link}: {unanswered}; the network is the trouble, not the tunnel \
                 (`ip neighbour show dev {link}`)"
            ),
        ),
        (Way::NoRoute { .. } | Way::NoCarrier { .. } | Way::Unknown, _) => return None,
        (Way::Answers(_), _) if time < SUSPICIOUS => return None,
        (Way::Answers(Hop { address, link }), age) if *address == endpoint.ip() => (
            match age {
                Some(_) => FindingCode::PeerSilent,
                None => FindingCode::NoHandshake,
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
            FindingCode::UdpSwallowed,
            format!(
                "this network seems to swallow UDP to {endpoint} (a captive portal's login page, \
                 or a firewall), unless its server is down: {unanswered}, though {address} on {link}, the next machine on \
                 the way, is there, and a handshake {} ago had an answer; {LOG_IN}",
                span(age)
            ),
        ),
        (Way::Answers(Hop { address, link }), None) => (
            FindingCode::NoHandshake,
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

/// Advice for a captive portal.
const LOG_IN: &str = "open a web page with an application that does not use the tunnel, log in \
                      if the network wants that, or try another network";

/// Returns the finding that a peer has not answered several handshakes, without a known reason.
fn silent(who: &str, count: u32, age: Option<Duration>) -> Finding {
    match age {
        None => Finding::new(
            FindingCode::NoHandshake,
            format!("no handshake yet: {who} has not answered {count} of them; {USUALLY}"),
        ),
        Some(age) if age >= SESSION => Finding::new(
            FindingCode::HandshakeOld,
            format!(
                "{who} has not answered {count} handshakes; the latest is {} old, and nothing \
                 gets through; a network that swallows UDP, a firewall or an endpoint that has \
                 moved does that",
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

/// Returns a note for a silent peer of a tunnel through another, whose peer is heard. The outer
/// tunnel's datagrams may not arrive there, which would look the same.
pub(super) fn one_way(outer: &str) -> String {
    format!(
        "{outer}, which it goes through, is heard; whether what {outer} sends arrives is not \
         known, and would look the same"
    )
}

#[cfg(test)]
mod tests;
