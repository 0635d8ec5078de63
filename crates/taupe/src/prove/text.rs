//! The report as text.

use crate::flows;
use std::fmt::Write as _;
use taupe_inspect::prove::{
    ControlReport, Outcome, ProbeReport, ProbeVerdict, ProofReport, TrafficReport, Unobserved,
};

/// Flows that the text lists.
const FLOWS: usize = 10;

/// Limits of every observation.
const LIMITS: &str = "\
Not proved: traffic before and after this time, and by connections that were open before; traffic
  by way of another program, such as a proxy on this machine or a service of the desktop; other
  network namespaces and containers; other machines; an application that recognises the test.
";

/// Escapes control characters.
pub(super) fn escaped(name: &str) -> String {
    name.chars().flat_map(char::escape_default).collect()
}

pub(super) fn text(report: &ProofReport) -> String {
    let mut text = format!(
        "{} in {}, observed for {:.1} s of {} s\n",
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

fn traffic(tunnel: &str, traffic: &TrafficReport) -> String {
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
        let _ = writeln!(
            text,
            "  LEFT IN CLEAR at {} after {}: {} {} -> {}, {} packets",
            flow.interface,
            time(flow.after_ms),
            protocol(flow.protocol),
            flow.source,
            flow.destination,
            flow.packets
        );
    }
    text
}

fn control(control: &ControlReport) -> String {
    if !control.tried {
        return "  Control: none (--no-control). It is not shown that the capture sees packets.\n"
            .into();
    }
    let from = match control.by_packet_socket {
        true => "a packet socket, since the file selects every program,",
        false => "this program, which is not selected,",
    };
    let to = control
        .destination
        .map_or("anywhere".into(), |to| to.to_string());
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
    let to = probe.destination.map_or(String::new(), |to| to.to_string());
    let verdict = match probe.verdict {
        ProbeVerdict::Tunnel => "through the tunnel",
        ProbeVerdict::Blocked => "blocked",
        ProbeVerdict::LeftInClear => "LEFT IN CLEAR",
        ProbeVerdict::ByFile => "bypasses by the file",
        ProbeVerdict::NotTried => "not tried",
    };
    let mut text = format!("  {:<20}  {:<18}  {to}", verdict, probe.name);
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
        Outcome::NothingFound => format!(
            "Nothing found: no packet of {} was seen in clear.",
            report.application
        ),
        Outcome::Leak => {
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
        Outcome::NotObserved => {
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
