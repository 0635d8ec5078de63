//! Text output of `taupe status`.

use super::peers;
use crate::paint::{Colour, Paint};
use std::fmt::Write as _;
use taupe_inspect::status::{Mode, State, Status, Tunnel, now};

/// Sentence for the case that there are no tunnels.
pub(crate) const NO_TUNNEL: &str =
    "no tunnel is up; `taupe up` brings one up, `taupe show` lists other WireGuard interfaces";

pub(super) fn text(status: &Status, all_peers: bool, paint: Paint) -> String {
    if status.tunnels.is_empty() {
        return format!("{NO_TUNNEL}\n");
    }
    status
        .tunnels
        .iter()
        .map(|one| tunnel(one, all_peers, paint))
        .collect()
}

fn tunnel(tunnel: &Tunnel, all_peers: bool, paint: Paint) -> String {
    let (word, colour) = match tunnel.state {
        State::Up => ("up", Colour::Green),
        State::Degraded => ("degraded", Colour::Yellow),
        State::Down => ("down", Colour::Red),
    };
    let mode = mode(tunnel.mode).map(|mode| format!(", {mode}"));
    let mut text = format!(
        "{}: {}{}\n",
        tunnel.interface,
        paint.paint(word, colour),
        mode.unwrap_or_default()
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
    if let Some(user) = &tunnel.apps_of_user {
        let _ = writeln!(text, "  {file}: only applications of user {user}");
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
    peers::write(&mut text, &tunnel.peers, all_peers, now());
    for counter in &tunnel.counters {
        let _ = writeln!(text, "  {} {}", counter.count, counter.text);
    }
    text
}

/// Returns words for the mode of a tunnel.
pub(crate) const fn mode(mode: Option<Mode>) -> Option<&'static str> {
    Some(match mode {
        Some(Mode::Transparent) => "for selected applications",
        Some(Mode::Marks) => "for selected applications, in adapter mode by the mark of sockets",
        Some(Mode::Adapter) => "for all applications (adapter mode)",
        None => return None,
    })
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
