//! Text output of `taupe status`.

use crate::paint::{Colour, Paint};
use std::fmt::Write as _;
use std::time::Duration;
use taupe_inspect::span;
use taupe_inspect::status::{Mode, State, Status, Tunnel, now};

pub(super) fn text(status: &Status, paint: Paint) -> String {
    if status.tunnels.is_empty() {
        return "no tunnel is up; `taupe up` brings one up, `taupe show` lists other WireGuard \
                interfaces\n"
            .into();
    }
    status
        .tunnels
        .iter()
        .map(|one| tunnel(one, paint))
        .collect()
}

fn tunnel(tunnel: &Tunnel, paint: Paint) -> String {
    let (word, colour) = match tunnel.state {
        State::Up => ("up", Colour::Green),
        State::Degraded => ("degraded", Colour::Yellow),
        State::Down => ("down", Colour::Red),
    };
    let mode = match tunnel.mode {
        Some(Mode::Transparent) => ", for selected applications",
        Some(Mode::Marks) => ", for selected applications, in adapter mode by the mark of sockets",
        Some(Mode::Adapter) => ", for all applications (adapter mode)",
        None => "",
    };
    let mut text = format!(
        "{}: {}{mode}\n",
        tunnel.interface,
        paint.paint(word, colour)
    );
    for finding in &tunnel.findings {
        let mark = paint.paint("[!]", Colour::Yellow);
        let _ = writeln!(text, "  {mark} {}", finding.text);
    }
    for note in &tunnel.notes {
        let _ = writeln!(text, "  {note}");
    }
    // A gap that degrades the tunnel is already among the findings.
    let is_finding = |text: &str| tunnel.findings.iter().any(|finding| finding.text == text);
    for gap in tunnel.gaps.iter().filter(|gap| !is_finding(&gap.text)) {
        let _ = writeln!(text, "  {}", gap.text);
    }
    if let Some(outer) = &tunnel.via {
        let _ = writeln!(text, "  goes through {outer}");
    }
    let file = tunnel.file.as_ref().map(|file| file.display().to_string());
    let file = file.unwrap_or_default();
    for rule in &tunnel.rules {
        let _ = writeln!(
            text,
            "  {file}:{}: {} = {}",
            rule.line, rule.key, rule.application
        );
    }
    if tunnel.rules.is_empty() && !file.is_empty() {
        let _ = match tunnel.mode {
            Some(Mode::Transparent | Mode::Marks) => {
                writeln!(text, "  {file} selects no applications, so all use it")
            }
            // Without a mode, the applications that use it are unknown.
            Some(Mode::Adapter) | None => writeln!(text, "  {file}"),
        };
    }
    if tunnel.forwarded {
        let _ = writeln!(text, "  {file}: forwarded traffic uses it too");
    }
    if tunnel.mode == Some(Mode::Transparent) {
        let guarded = tunnel.uplinks.iter().filter(|uplink| uplink.guarded);
        let names: Vec<_> = guarded.map(|uplink| &*uplink.name).collect();
        let _ = writeln!(
            text,
            "  guarded links: {}",
            match names.as_slice() {
                [] => "none, so selected applications have no network".to_owned(),
                names => names.join(", "),
            }
        );
    }
    for peer in &tunnel.peers {
        let mut parts = Vec::new();
        if let Some(at) = peer.latest_handshake {
            let age = now().saturating_sub(Duration::from_secs(at));
            parts.push(format!("latest handshake {} ago", span(age)));
        }
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
        let _ = writeln!(text, "  peer {endpoint}: {}", parts.join(", "));
    }
    for counter in &tunnel.counters {
        let _ = writeln!(text, "  {} {}", counter.count, counter.text);
    }
    text
}

/// Formats a number of bytes, such as `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"");
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_are_shown_in_units() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
