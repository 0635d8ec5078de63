//! Content of `taupe prove --json`. As in `taupe status --json`, members are only ever added.

use crate::explain::Step;
use crate::flows::Flow;
use serde::Serialize;
use std::net::SocketAddr;

/// Result of an observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProofResult {
    /// No packet of the application was seen outside the tunnel.
    NothingFound,
    /// A packet has left outside the tunnel.
    Leak,
    /// The observation cannot count as evidence.
    NotObserved,
}

/// Reason why an observation cannot count as evidence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unobserved {
    /// The control's packet was not seen.
    ControlNotSeen,
    /// The capture has lost packets.
    PacketsLost,
    /// There were more flows than the tables hold.
    TablesFull,
    /// The sockets could not be listed.
    SocketsUnknown,
    /// The probe could not be started.
    ProbeNotStarted,
    /// The tunnel's rules do not select the probe.
    ProbeNotSelected,
    /// The probe has ended early, or did not answer.
    ProbeEnded,
    /// No probe was sent.
    NoProbeSent,
    /// A signal has ended the observation early.
    Interrupted,
}

/// Path of a probe's packet, as the capture saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeVerdict {
    /// It has entered the tunnel, and no other interface.
    Tunnel,
    /// It was seen nowhere.
    Blocked,
    /// A program on this machine has got it, and it was seen nowhere. A resolver may have answered it,
    /// or may encrypt its own queries.
    NotSeen,
    /// It has left outside the tunnel.
    Leaked,
    /// It has left outside the tunnel, as the file says about its destination.
    ByFile,
    /// It was not sent.
    NotTried,
}

/// A probe.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct ProbeReport {
    pub name: &'static str,
    pub verdict: ProbeVerdict,
    /// Destination to which the probe was sent.
    pub destination: Option<SocketAddr>,
    /// Packets outside the tunnel: interface, destination on the wire, milliseconds since the
    /// beginning.
    pub interface: Option<String>,
    pub seen_destination: Option<SocketAddr>,
    pub after_ms: Option<u64>,
    /// Error of its socket, or the reason why it was not tried.
    pub note: Option<String>,
}

/// The control: a packet from a process that is not selected.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct ControlReport {
    /// False with `--no-control`.
    pub tried: bool,
    pub seen: bool,
    pub destination: Option<SocketAddr>,
    pub interface: Option<String>,
    /// True if every process is selected or blocked, so that a packet socket sent it.
    pub by_packet_socket: bool,
    /// Error of its socket.
    pub note: Option<String>,
}

/// Packets that were counted.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct ObservedTraffic {
    /// WireGuard packets of the tunnel. With offloads, one may be several datagrams.
    pub wireguard_sent: u64,
    pub wireguard_received: u64,
    /// Endpoints of peers whose received packets are not counted: those beyond 8 of a family, and new
    /// ones.
    pub uncounted_endpoints: u64,
    /// Packets outside the tunnel from the application's sockets, and their flows (the first 20).
    pub leaked_packets: u64,
    pub leaked: Vec<OutsideReport>,
    /// Packets from its sockets that the file lets bypass the tunnel.
    pub bypassing_packets: u64,
    /// Packets outside the tunnel from other processes' sockets.
    pub other_packets: u64,
    /// Packets outside the tunnel to which no socket fits, and their flows (the first 20).
    pub unattributed_packets: u64,
    pub unattributed: Vec<OutsideReport>,
    /// Packets that the capture has lost.
    pub lost_packets: u64,
}

/// A flow outside the tunnel.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct OutsideReport {
    pub interface: String,
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub packets: u64,
    pub after_ms: u64,
}

/// A report.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct ProofReport {
    /// Version of the format.
    pub schema: u32,
    pub result: ProofResult,
    pub reasons: Vec<Unobserved>,
    pub application: String,
    pub tunnel: String,
    pub is_up: bool,
    /// Effect of the kill switch; null while the tunnel is up.
    pub kill_switch: Option<String>,
    /// As `taupe explain` prints it.
    pub steps: Vec<Step>,
    pub processes: Vec<u32>,
    pub flows: Vec<Flow>,
    pub seconds: f64,
    pub requested_seconds: u64,
    /// Interfaces by which packets can leave.
    pub uplinks: Vec<String>,
    pub traffic: ObservedTraffic,
    /// The properties that the probe has in common with the application.
    pub probe: String,
    pub probes: Vec<ProbeReport>,
    pub control: ControlReport,
}

impl ProofReport {
    /// Concludes from the facts of the report.
    #[must_use]
    pub fn conclude(mut self) -> Self {
        let is_leak = |probe: &ProbeReport| probe.verdict == ProbeVerdict::Leaked;
        let is_sent = |probe: &ProbeReport| probe.verdict != ProbeVerdict::NotTried;
        if self.control.tried && !self.control.seen {
            self.reasons.push(Unobserved::ControlNotSeen);
        }
        if self.traffic.lost_packets > 0 {
            self.reasons.push(Unobserved::PacketsLost);
        }
        // Other reasons about the probe say more.
        let about_probe = [
            Unobserved::ProbeNotStarted,
            Unobserved::ProbeNotSelected,
            Unobserved::ProbeEnded,
        ];
        if !self.probes.iter().any(is_sent)
            && !self.reasons.iter().any(|one| about_probe.contains(one))
        {
            self.reasons.push(Unobserved::NoProbeSent);
        }
        // A leak that was seen is one, whatever else was missed.
        self.result = if self.traffic.leaked_packets > 0 || self.probes.iter().any(is_leak) {
            ProofResult::Leak
        } else if self.reasons.is_empty() {
            ProofResult::NothingFound
        } else {
            ProofResult::NotObserved
        };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> ProofReport {
        ProofReport {
            schema: 1,
            result: ProofResult::NotObserved,
            reasons: Vec::new(),
            application: "/usr/bin/mole".into(),
            tunnel: "home".into(),
            is_up: true,
            kill_switch: None,
            steps: Vec::new(),
            processes: Vec::new(),
            flows: Vec::new(),
            seconds: 1.0,
            requested_seconds: 1,
            uplinks: Vec::new(),
            traffic: ObservedTraffic {
                wireguard_sent: 1,
                wireguard_received: 1,
                uncounted_endpoints: 0,
                leaked_packets: 0,
                leaked: Vec::new(),
                bypassing_packets: 5,
                other_packets: 5,
                unattributed_packets: 5,
                unattributed: Vec::new(),
                lost_packets: 0,
            },
            probe: String::new(),
            probes: Vec::new(),
            control: ControlReport {
                tried: true,
                seen: true,
                destination: None,
                interface: None,
                by_packet_socket: false,
                note: None,
            },
        }
    }

    fn probe(verdict: ProbeVerdict) -> ProbeReport {
        ProbeReport {
            name: "udp",
            verdict,
            destination: None,
            interface: None,
            seen_destination: None,
            after_ms: None,
            note: None,
        }
    }

    #[test]
    fn only_packets_outside_the_tunnel_are_a_leak() {
        for (verdict, expected) in [
            (ProbeVerdict::Tunnel, ProofResult::NothingFound),
            (ProbeVerdict::Blocked, ProofResult::NothingFound),
            (ProbeVerdict::ByFile, ProofResult::NothingFound),
            (ProbeVerdict::NotSeen, ProofResult::NothingFound),
            (ProbeVerdict::NotTried, ProofResult::NotObserved),
            (ProbeVerdict::Leaked, ProofResult::Leak),
        ] {
            let mut report = report();
            report.probes = vec![probe(verdict)];
            assert_eq!(report.conclude().result, expected, "{verdict:?}");
        }
        let mut leaking = report();
        leaking.traffic.leaked_packets = 1;
        assert_eq!(leaking.conclude().result, ProofResult::Leak);
    }

    #[test]
    fn a_probe_that_ends_is_no_evidence() {
        let none = report().conclude();
        assert_eq!(none.reasons, [Unobserved::NoProbeSent]);
        let mut ended = report();
        ended.reasons.push(Unobserved::ProbeEnded);
        ended.probes = [ProbeVerdict::Tunnel, ProbeVerdict::NotTried]
            .map(probe)
            .to_vec();
        let ended = ended.conclude();
        assert_eq!(ended.reasons, [Unobserved::ProbeEnded]);
        assert_eq!(ended.result, ProofResult::NotObserved);
    }

    #[test]
    fn a_blind_or_lossy_capture_is_no_evidence_but_its_leaks_are() {
        let mut blind = report();
        blind.control.seen = false;
        let mut lossy = report();
        lossy.traffic.lost_packets = 1;
        for mut unobserved in [blind, lossy] {
            unobserved.probes = vec![probe(ProbeVerdict::Tunnel)];
            let mut concluded = unobserved.conclude();
            assert_eq!(concluded.result, ProofResult::NotObserved);
            assert_eq!(concluded.reasons.len(), 1);
            concluded.reasons.clear();
            concluded.probes.push(probe(ProbeVerdict::Leaked));
            assert_eq!(concluded.conclude().result, ProofResult::Leak);
        }
        let mut omitted = report();
        (omitted.control.tried, omitted.control.seen) = (false, false);
        omitted.probes = vec![probe(ProbeVerdict::Blocked)];
        assert_eq!(omitted.conclude().result, ProofResult::NothingFound);
    }
}
