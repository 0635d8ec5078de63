//! The report as text.

use crate::flows;
use std::fmt::Write as _;
use std::net::SocketAddr;
use taupe_inspect::prove::{
    ClearReport, ControlReport, ObservedTraffic, ProbeReport, ProbeVerdict, ProofReport,
    ProofResult, Unobserved,
};

/// Flows that the text lists.
const FLOWS: usize = 10;

/// Flows without a socket that the text lists.
const UNATTRIBUTED: usize = 5;

/// Limits of every observation.
const LIMITS: &str = "\
Not proved: traffic before and after this time; traffic by way of another program, such as a proxy on
  this machine or a service of the desktop; other network namespaces and containers; other
  machines; an application that recognises the test.
";

/// Escapes control characters.
pub(super) fn escaped(name: &str) -> String {
    name.chars().flat_map(char::escape_default).collect()
}

pub(super) fn text(report: &ProofReport) -> String {
    let mut text = format!(
        "{} in {}, observed for {:.1} s ({} s asked)\n",
        report.application, report.tunnel, report.seconds, report.asked_seconds
    );
    // Writing to a string does not fail.
    if let Some(effect) = &report.kill_switch {
        let _ = writeln!(text, "{} is down: {effect}", report.tunnel);
    }
    text += "\nSelection, as `taupe explain` prints it:\n";
    for step in &report.steps {
        let _ = writeln!(text, "  {step}");
    }
    let ids: Vec<_> = report.processes.iter().map(ToString::to_string).collect();
    match ids.is_empty() {
        true => text += "  processes: none runs\n",
        false => {
            let _ = writeln!(text, "  processes: {}", ids.join(", "));
        }
    }
    for flow in report.flows.iter().take(FLOWS) {
        let _ = writeln!(text, "  {}", flows::line(flow));
    }
    if report.flows.len() > FLOWS {
        let _ = writeln!(text, "  and {} more flows", report.flows.len() - FLOWS);
    }
    let _ = writeln!(
        text,
        "\nCapture of packets that leave by {} or any other interface except loopback:",
        match report.uplinks.is_empty() {
            true => "no uplink".into(),
            false => report.uplinks.join(", "),
        }
    );
    text += &traffic(&report.tunnel, &report.traffic);
    text += &control(&report.control);
    let _ = writeln!(text, "\nProbe: {}", report.probe);
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
        let _ = writeln!(text, "  {packets:>8}  {what}");
    };
    count(
        &format!("WireGuard packets of {tunnel} sent"),
        traffic.wireguard_sent,
    );
    count("received", traffic.wireguard_received);
    count(
        "in clear from sockets of the application",
        traffic.clear_packets,
    );
    count(
        "from its sockets, to destinations that bypass the tunnel by the file",
        traffic.bypassing_packets,
    );
    count(
        "in clear from sockets of other programs",
        traffic.other_packets,
    );
    count(
        "in clear to which no socket fits",
        traffic.unattributed_packets,
    );
    count("lost by the capture", traffic.lost_packets);
    for flow in &traffic.clear {
        let _ = writeln!(text, "  LEFT IN CLEAR at {}", clear_flow(flow));
    }
    for flow in traffic.unattributed.iter().take(UNATTRIBUTED) {
        let _ = writeln!(text, "  without a socket: at {}", clear_flow(flow));
    }
    text
}

fn clear_flow(flow: &ClearReport) -> String {
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
        return "  Control: none (--no-control). It is not shown that the capture sees packets.\n"
            .into();
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
            format!("  Control: packets from {from} to {to} were seen in clear at {interface}.\n")
        }
        (_, _, Some(note)) => {
            format!("  Control: packets from {from} to {to} were not sent: {note}\n")
        }
        _ => format!("  Control: packets from {from} to {to} were NOT seen.\n"),
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
        ProbeVerdict::LeftInClear => "LEFT IN CLEAR",
        ProbeVerdict::ByFile => "bypasses by the file",
        ProbeVerdict::NotTried => "not tried",
    };
    let mut text = format!("  {:<20}  {:<18}{to}", verdict, probe.name);
    if let (Some(interface), Some(after)) = (&probe.interface, probe.after_ms) {
        let _ = write!(text, " at {interface} after {}", time(after));
        if let Some(seen) = probe
            .seen_destination
            .filter(|seen| Some(*seen) != probe.destination)
        {
            let _ = write!(text, ", to {seen}");
        }
    }
    if let Some(note) = &probe.note {
        let _ = write!(text, " ({note})");
    }
    format!("{}\n", text.trim_end())
}

fn conclusion(report: &ProofReport) -> String {
    let leaked = report
        .probes
        .iter()
        .filter(|probe| probe.verdict == ProbeVerdict::LeftInClear);
    let leaked: Vec<_> = leaked.map(|probe| probe.name).collect();
    let first = match report.result {
        ProofResult::NothingFound => format!(
            "Nothing found: no packet of {} was seen in clear.",
            report.application
        ),
        ProofResult::Leak => {
            let mut parts = Vec::new();
            if report.traffic.clear_packets > 0 {
                parts.push(format!(
                    "{} packets of its sockets",
                    report.traffic.clear_packets
                ));
            }
            if !leaked.is_empty() {
                parts.push(format!("probes: {}", leaked.join(", ")));
            }
            format!("LEAK: in clear left {}.", parts.join("; "))
        }
        ProofResult::NotObserved => {
            let reasons = report.reasons.iter().map(|reason| why(*reason));
            let reasons: Vec<_> = reasons.collect();
            format!("NOT OBSERVED: {}.", reasons.join("; "))
        }
    };
    let sent = |probe: &&ProbeReport| probe.verdict != ProbeVerdict::NotTried;
    format!(
        "{first}\nObserved: every packet that left for {:.1} s, and {} probes.\n",
        report.seconds,
        report.probes.iter().filter(sent).count()
    )
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
            verdict: ProbeVerdict::LeftInClear,
            destination: "127.0.0.53:53".parse().ok(),
            interface: Some("eth0".into()),
            seen_destination: "192.0.2.53:53".parse().ok(),
            after_ms: Some(1234),
            note: None,
        };
        assert_eq!(
            line(&probe),
            "  LEFT IN CLEAR         dns-local           127.0.0.53:53 at eth0 after 1.2 s, to \
             192.0.2.53:53\n"
        );
        probe.verdict = ProbeVerdict::NotTried;
        (probe.destination, probe.interface) = (None, None);
        probe.note = Some("no right".into());
        let expected = "  not tried             dns-local          (no right)\n";
        assert_eq!(line(&probe), expected);
    }
}
