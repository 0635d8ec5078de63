//! The report as text.

use crate::flows;
use std::fmt::Write as _;
use std::net::SocketAddr;
use taupe_inspect::prove::{
    ControlReport, ObservedTraffic, OutsideReport, ProbeReport, ProbeVerdict, ProofReport,
    ProofResult, Unobserved,
};

/// Flows that the text lists.
const FLOWS: usize = 10;

/// Flows without a socket that the text lists.
const UNATTRIBUTED: usize = 5;

/// Limits of every observation.
const LIMITS: &str = "\
Not proved: traffic before and after this time; sockets that close before Taupe
  lists them; packets of raw and ping sockets; destinations that a rule of the
  packet filter changes (DNAT in OUTPUT); traffic by way of another program,
  such as a proxy on this machine or a service of the desktop; other network
  namespaces and containers; other machines; an application that recognises the
  test.
";

/// Columns of a line.
const WIDTH: usize = 80;

/// Breaks a line between words. Later lines begin with `indent` spaces.
fn wrapped(line: &str, indent: usize) -> String {
    let mut text = String::new();
    let mut rest = line.to_owned();
    while rest.chars().count() > WIDTH {
        let lead = rest.len() - rest.trim_start().len();
        let mut spaces = rest
            .char_indices()
            .enumerate()
            .filter(|(_, (at, c))| *c == ' ' && *at > lead);
        let fitting = spaces
            .clone()
            .take_while(|(column, _)| *column <= WIDTH)
            .last();
        let Some((_, (at, _))) = fitting.or_else(|| spaces.next()) else {
            break;
        };
        let _ = writeln!(text, "{}", rest[..at].trim_end());
        rest = format!("{:indent$}{}", "", rest[at..].trim_start());
    }
    let _ = writeln!(text, "{}", rest.trim_end());
    text
}

/// Escapes control characters.
pub(super) fn escaped(name: &str) -> String {
    name.chars().flat_map(char::escape_default).collect()
}

pub(super) fn text(report: &ProofReport) -> String {
    let head = format!(
        "{} in {}, observed for {:.1} s ({} s requested)",
        report.application, report.tunnel, report.seconds, report.requested_seconds
    );
    let mut text = wrapped(&head, 2);
    if let Some(effect) = &report.kill_switch {
        text += &wrapped(&format!("{} is down: {effect}", report.tunnel), 2);
    }
    text += "\nSelection, as `taupe explain` prints it:\n";
    for step in &report.steps {
        text += &wrapped(&format!("  {step}"), 6);
    }
    let ids: Vec<_> = report.processes.iter().map(ToString::to_string).collect();
    match ids.is_empty() {
        true => text += "  processes: none runs\n",
        false => text += &wrapped(&format!("  processes: {}", ids.join(", ")), 4),
    }
    for flow in report.flows.iter().take(FLOWS) {
        text += &wrapped(&format!("  {}", flows::line(flow)), 6);
    }
    if report.flows.len() > FLOWS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  and {} more flows", report.flows.len() - FLOWS);
    }
    let uplinks = match report.uplinks.is_empty() {
        true => "no uplink".into(),
        false => report.uplinks.join(", "),
    };
    let capture = format!(
        "Capture of packets that leave by {uplinks} or any other interface except loopback:"
    );
    text.push('\n');
    text += &wrapped(&capture, 2);
    text += &traffic(&report.tunnel, &report.traffic);
    text += &wrapped(&control(&report.control), 4);
    text.push('\n');
    text += &wrapped(&format!("Probe: {}", report.probe), 2);
    for probe in &report.probes {
        text += &line(probe);
    }
    text.push('\n');
    text += &conclusion(report);
    text += LIMITS;
    text
}

fn traffic(tunnel: &str, traffic: &ObservedTraffic) -> String {
    let mut text = String::new();
    let mut count = |what: &str, packets: u64| {
        text += &wrapped(&format!("  {packets:>8}  {what}"), 12);
    };
    count(
        &format!("WireGuard packets of {tunnel} sent"),
        traffic.wireguard_sent,
    );
    count("received", traffic.wireguard_received);
    count(
        "outside the tunnel from sockets of the application",
        traffic.leaked_packets,
    );
    count(
        "from its sockets, to destinations that the file lets bypass it",
        traffic.bypassing_packets,
    );
    count(
        "outside the tunnel from sockets of other programs",
        traffic.other_packets,
    );
    count(
        "outside the tunnel to which no socket fits",
        traffic.unattributed_packets,
    );
    count("lost by the capture", traffic.lost_packets);
    if traffic.uncounted_endpoints > 0 {
        let uncounted = format!(
            "  Packets from {} endpoints of {tunnel} are not counted as received: those beyond 8 of a \
             family, and new ones.",
            traffic.uncounted_endpoints
        );
        text += &wrapped(&uncounted, 4);
    }
    for flow in &traffic.leaked {
        text += &wrapped(&format!("  LEAKED at {}", outside(flow)), 4);
    }
    for flow in traffic.unattributed.iter().take(UNATTRIBUTED) {
        text += &wrapped(&format!("  without a socket: at {}", outside(flow)), 4);
    }
    text
}

fn outside(flow: &OutsideReport) -> String {
    let mut text = format!(
        "{} after {}: {} {} -> {}",
        flow.interface,
        time(flow.after_ms),
        protocol(flow.protocol),
        end(flow.source),
        end(flow.destination)
    );
    if flow.packets > 1 {
        let _ = write!(text, ", {} packets", flow.packets);
    }
    text
}

/// Formats an address, without the port if the protocol has none.
fn end(address: SocketAddr) -> String {
    match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    }
}

fn control(control: &ControlReport) -> String {
    if !control.tried {
        return "  Control: none (--no-control). The capture is not verified.".into();
    }
    let from = match control.by_packet_socket {
        true => "a packet socket, since every other one is selected or blocked,",
        false => "this program, which is not selected,",
    };
    let to = control
        .destination
        .map_or("the link".into(), |to| to.to_string());
    match (control.seen, &control.interface, &control.note) {
        (true, Some(interface), _) => {
            format!("  Control: packets from {from} to {to} were seen at {interface}.")
        }
        (_, _, Some(note)) => {
            format!("  Control: packets from {from} to {to} were not sent: {note}")
        }
        _ => format!("  Control: packets from {from} to {to} were NOT seen."),
    }
}

fn line(probe: &ProbeReport) -> String {
    let to = probe
        .destination
        .map(|to| format!("  {to}"))
        .unwrap_or_default();
    let verdict = match probe.verdict {
        ProbeVerdict::Tunnel => "through the tunnel",
        ProbeVerdict::Blocked => "blocked",
        ProbeVerdict::NotSeen => "not seen",
        ProbeVerdict::Leaked => "LEAKED",
        ProbeVerdict::ByFile => "bypass (in file)",
        ProbeVerdict::NotTried => "not tried",
    };
    let mut text = format!("  {:<20}  {:<18}{to}", verdict, probe.name);
    if let (Some(interface), Some(after)) = (&probe.interface, probe.after_ms) {
        let _ = write!(text, " at {interface} after {}", time(after));
        if let Some(seen) = probe
            .seen_destination
            .filter(|seen| probe.destination.is_none_or(|to| !is_same(*seen, to)))
        {
            let _ = write!(text, ", to {seen}");
        }
    }
    if let Some(note) = &probe.note {
        let _ = write!(text, " ({note})");
    }
    wrapped(&text, 24)
}

/// Compares ends without the links of link-local addresses, which packets do not name.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.ip() == other.ip() && one.port() == other.port()
}

fn conclusion(report: &ProofReport) -> String {
    let leaked = report
        .probes
        .iter()
        .filter(|probe| probe.verdict == ProbeVerdict::Leaked);
    let leaked: Vec<_> = leaked.map(|probe| probe.name).collect();
    let first = match report.result {
        ProofResult::NothingFound => format!(
            "NO LEAK FOUND: no packet attributed to {} left outside the tunnel, except to destinations \
             that the file lets bypass it.{}",
            report.application,
            unattributed(&report.traffic)
        ),
        ProofResult::Leak => {
            let mut parts = Vec::new();
            match report.traffic.leaked_packets {
                0 => {}
                1 => parts.push("1 packet of its sockets".into()),
                count => parts.push(format!("{count} packets of its sockets")),
            }
            if !leaked.is_empty() {
                parts.push(format!("probes: {}", leaked.join(", ")));
            }
            format!("LEAK: outside the tunnel: {}", parts.join("; "))
        }
        ProofResult::NotObserved => {
            let reasons = report.reasons.iter().map(|reason| why(*reason));
            let reasons: Vec<_> = reasons.collect();
            format!("NOT OBSERVED: {}.", reasons.join("; "))
        }
    };
    let sent = |probe: &&ProbeReport| probe.verdict != ProbeVerdict::NotTried;
    let observed = format!(
        "Observed for {:.1} s: packets that left by any interface except loopback; {} probes.",
        report.seconds,
        report.probes.iter().filter(sent).count()
    );
    wrapped(&first, 2) + &wrapped(&observed, 2)
}

/// Returns a sentence about packets of unknown owners.
fn unattributed(traffic: &ObservedTraffic) -> String {
    match traffic.unattributed_packets {
        0 => String::new(),
        1 => " 1 packet could not be attributed.".into(),
        count => format!(" {count} packets could not be attributed."),
    }
}

fn why(reason: Unobserved) -> &'static str {
    match reason {
        Unobserved::ControlNotSeen => {
            "the capture was blind, since it did not see the control; see which packet filter drops \
             it, or whether the uplink works"
        }
        Unobserved::PacketsLost => {
            "the capture lost packets; repeat it while there is less traffic"
        }
        Unobserved::TablesFull => "there were more flows than can be attributed",
        Unobserved::SocketsUnknown => "the kernel did not list the sockets",
        Unobserved::ProbeNotStarted => "the probe could not be started",
        Unobserved::ProbeEnded => "the probe ended early or did not answer",
        Unobserved::NoProbeSent => "no probe could be sent",
        Unobserved::ProbeNotSelected => "the tunnel did not select the probe",
        Unobserved::Interrupted => "a signal ended it early",
    }
}

fn time(milliseconds: u64) -> String {
    match milliseconds {
        ..1000 => format!("{milliseconds} ms"),
        _ => format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100),
    }
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        number => format!("protocol {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_no_control_characters() {
        assert_eq!(escaped("eth0"), "eth0");
        assert_eq!(escaped("e\x1b]0;x\x07"), "e\\u{1b}]0;x\\u{7}");
    }

    #[test]
    fn a_probe_is_one_line_that_says_where_it_left() {
        let mut probe = ProbeReport {
            name: "dns-local",
            verdict: ProbeVerdict::Leaked,
            destination: "127.0.0.53:53".parse().ok(),
            interface: Some("eth0".into()),
            seen_destination: "192.0.2.53:53".parse().ok(),
            after_ms: Some(1234),
            note: None,
        };
        assert_eq!(
            line(&probe),
            "  LEAKED                dns-local           127.0.0.53:53 at eth0 after 1.2 s,\n\
             \x20                       to 192.0.2.53:53\n"
        );
        probe.verdict = ProbeVerdict::NotTried;
        (probe.destination, probe.interface) = (None, None);
        probe.note = Some("no right".into());
        let expected = "  not tried             dns-local          (no right)\n";
        assert_eq!(line(&probe), expected);
    }

    #[test]
    fn lines_break_between_words() {
        let words = "word ".repeat(40);
        for indent in [0, 4, 24] {
            let text = wrapped(&format!("    {words}"), indent);
            assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
            assert_eq!(text.split_whitespace().count(), 40);
        }
        // A word that does not fit has a line of its own.
        let long = "\u{e9}".repeat(WIDTH + 1);
        let text = wrapped(&format!("  a {long} b"), 2);
        assert_eq!(text, format!("  a\n  {long}\n  b\n"));
        assert_eq!(wrapped("short", 2), "short\n");
    }

    #[test]
    fn the_conclusion_counts_packets_of_unknown_owners() {
        let mut traffic = ObservedTraffic {
            wireguard_sent: 0,
            wireguard_received: 0,
            uncounted_endpoints: 0,
            leaked_packets: 0,
            leaked: Vec::new(),
            bypassing_packets: 0,
            other_packets: 0,
            unattributed_packets: 0,
            unattributed: Vec::new(),
            lost_packets: 0,
        };
        assert_eq!(unattributed(&traffic), "");
        traffic.unattributed_packets = 7;
        assert_eq!(
            unattributed(&traffic),
            " 7 packets could not be attributed."
        );
    }
}
