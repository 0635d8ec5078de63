//! A tunnel: rates, applications and peers.

use super::switches::{self, Controls};
use super::{plot, sentence, units, word};
use crate::facts::{Device, Facts, KillSwitch, Mode, Peer, Tunnel};
use crate::history::History;
use crate::text::Text;
use maud::{Markup, html};

/// Peers that are always visible.
const VISIBLE_PEERS: usize = 10;

/// Applications as chips.
const MAX_CHIPS: usize = 60;

/// Time after which a session cannot be used any more (whitepaper section 6.1), in seconds.
const SESSION_LIFETIME: u64 = 180;

/// Returns the identifier of a part. The name of the tunnel is last: as first part, that of `home-peers`
/// would collide with that of the peers of `home`.
fn id(kind: &str, tunnel: &Tunnel) -> String {
    format!("{kind}-{}", tunnel.interface)
}

pub(super) fn card(
    tunnel: &Tunnel,
    facts: &Facts,
    history: &History,
    controls: Option<&Controls>,
) -> Markup {
    let title = id("title", tunnel);
    let device = facts
        .devices
        .iter()
        .find(|it| it.interface == tunnel.interface);
    let samples = history.of_tunnel(&tunnel.interface);
    html! {
        article.card.(word(tunnel.state)) id=(id("tunnel", tunnel)) aria-labelledby=(title) {
            div.title {
                h2 id=(title) { (tunnel.interface) }
                span.pill.(word(tunnel.state)) { (word(tunnel.state)) }
                p.mode { (mode(tunnel)) }
            }
            (figures(tunnel, facts.at, device, history))
            (applications(tunnel, facts, controls))
            (switches::addition(tunnel, controls))
            (plot::large(&samples))
            (peers(tunnel, facts.at, history))
            (remarks(tunnel))
            (more(tunnel, device, history))
        }
    }
}

fn mode(tunnel: &Tunnel) -> Markup {
    let mode = match tunnel.mode {
        Some(Mode::Transparent) => "for selected applications",
        Some(Mode::Marks) => "for selected applications, by the mark of sockets",
        Some(Mode::Adapter) => "for all applications (adapter mode)",
        None => "",
    };
    html! {
        (mode)
        @if let Some(user) = &tunnel.apps_of_user { " of user " (user) }
        @if tunnel.forwarded { ", and for forwarded traffic" }
        @if let Some(outer) = &tunnel.via { ", through " (outer) }
    }
}

fn figures(tunnel: &Tunnel, now: u64, device: Option<&Device>, history: &History) -> Markup {
    let rate = history
        .of_tunnel(&tunnel.interface)
        .last()
        .map(|it| it.rate);
    let total = |of: fn(&Peer) -> u64| {
        units::bytes(tunnel.peers.iter().map(of).fold(0, u64::saturating_add))
    };
    let shown = |rate: Option<f64>| rate.map_or("–".to_owned(), units::rate);
    let latest = tunnel
        .peers
        .iter()
        .filter_map(|it| it.latest_handshake)
        .max();
    let handshakes = device.and_then(|it| it.handshakes.as_ref());
    let waits = history.recent_waits(&tunnel.interface);
    html! {
        dl.figures {
            div.received {
                dt { "Receiving" }
                dd { (shown(rate.map(|it| it.received))) }
                dd.small { (total(|it| it.received_bytes)) " in all" }
            }
            div.sent {
                dt { "Sending" }
                dd { (shown(rate.map(|it| it.sent))) }
                dd.small { (total(|it| it.sent_bytes)) " in all" }
            }
            div {
                dt { "Latest handshake" }
                dd { @match latest { Some(at) => (units::ago(now, at)), None => "never" } }
                @if let Some(since) = tunnel.since {
                    dd.small { "set up " (units::ago(now, since)) }
                }
            }
            @if let Some(half) = handshakes.and_then(|it| units::within(it, 0.5)) {
                div {
                    dt { "Handshake latency" }
                    dd { (half) }
                    dd.small {
                        "half of them"
                        @if let Some(most) = handshakes.and_then(|it| units::within(it, 0.95)) {
                            "; 95 % " (most)
                        }
                    }
                }
            }
            @if let Some(mean) = waits.as_ref().and_then(units::mean) {
                div {
                    dt { "Wait in the queue" }
                    dd { (mean) }
                    dd.small {
                        "mean of 2 min"
                        @if let Some(most) = waits.as_ref().and_then(|it| units::within(it, 0.95)) {
                            "; 95 % " (most)
                        }
                    }
                }
            }
        }
    }
}

fn applications(tunnel: &Tunnel, facts: &Facts, controls: Option<&Controls>) -> Markup {
    let id = id("rules", tunnel);
    let is_selective = matches!(tunnel.mode, Some(Mode::Transparent | Mode::Marks));
    html! {
        @if !tunnel.rules.is_empty() {
            h3 id=(id) { "Applications" }
            ul.chips aria-labelledby=(id) {
                @for rule in tunnel.rules.iter().take(MAX_CHIPS) {
                    @let is_allowed = rule.key.as_str() == "AllowedApps";
                    @let running = facts.rules.iter().find(|it| it.tunnel == tunnel.interface
                        && it.key == rule.key && it.application == rule.application);
                    li.chip.allowed[is_allowed].excluded[!is_allowed] {
                        span.name { (rule.application) }
                        @if !is_allowed { span.small { "not in the tunnel" } }
                        @match running.map(|it| it.processes) {
                            Some(0) => span.small { "not running" },
                            Some(count) => span.small { (count) " running" },
                            None => "",
                        }
                        (switches::of_rule(rule, tunnel, controls))
                    }
                }
                @if tunnel.rules.len() > MAX_CHIPS {
                    li.chip { "and " (tunnel.rules.len() - MAX_CHIPS) " more" }
                }
            }
        } @else if is_selective {
            p.remark { "Its file selects no applications, so all use it." }
        }
    }
}

fn peers(tunnel: &Tunnel, now: u64, history: &History) -> Markup {
    let id = id("peers", tunnel);
    let (all, shown) = (tunnel.peers.len(), tunnel.shown_peers());
    let in_session = tunnel
        .peers
        .iter()
        .filter(|it| has_session(it, now))
        .count();
    html! {
        @if all > 0 {
            h3 id=(id) {
                (units::count(all, "peer"))
                span.small { " " (in_session) " with a session" }
            }
            @let (first, rest) = shown.split_at(shown.len().min(VISIBLE_PEERS));
            (table(tunnel, first, &id, now, history))
            @if !rest.is_empty() {
                details id=(self::id("otherpeers", tunnel)) {
                    summary { (units::count(rest.len(), "more peer")) " of " (tunnel.interface) }
                    (table(tunnel, rest, &id, now, history))
                }
            }
            @if all > shown.len() {
                p.remark {
                    "and " (all - shown.len()) " more; " code { "taupe status --peers" }
                    " lists all"
                }
            }
        }
    }
}

fn table(tunnel: &Tunnel, peers: &[&Peer], label: &str, now: u64, history: &History) -> Markup {
    html! {
        table.peers role="table" aria-labelledby=(label) {
            thead role="rowgroup" {
                tr role="row" {
                    @for title in ["Peer", "Handshake", "Rate", "Received", "Sent"] {
                        th scope="col" role="columnheader" { (title) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for peer in peers { (row(tunnel, peer, now, history)) }
            }
        }
    }
}

fn has_session(peer: &Peer, now: u64) -> bool {
    let age = |at: u64| now.saturating_sub(at);
    peer.latest_handshake
        .is_some_and(|at| age(at) < SESSION_LIFETIME)
}

fn row(tunnel: &Tunnel, peer: &Peer, now: u64, history: &History) -> Markup {
    let samples = history.of_peer(&tunnel.interface, &peer.public_key);
    let is_active = has_session(peer, now);
    let handshake = match peer.latest_handshake {
        Some(at) => units::ago(now, at),
        None => "never".to_owned(),
    };
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                span.name { @match &peer.name { Some(name) => (name), None => (peer.public_key) } }
                span.path { @match &peer.endpoint { Some(at) => (at), None => "no endpoint" } }
                @if let Some(state) = &peer.post_quantum {
                    span.path { "post-quantum: " (state.text) }
                }
            }
            td role="cell" data-label="Handshake" {
                span.pill.up[is_active].plain[!is_active] {
                    @match (is_active, peer.latest_handshake) {
                        (true, _) => "session",
                        (false, Some(_)) => "expired",
                        (false, None) => "no session",
                    }
                }
                span.small { (handshake) }
                @if peer.unanswered_handshakes > 0 {
                    span.small.bad { (peer.unanswered_handshakes) " unanswered" }
                }
            }
            td.rate role="cell" data-label="Rate" {
                (plot::small(&samples))
                @if let Some(latest) = samples.last() {
                    span.small {
                        "↓ " (units::rate(latest.rate.received))
                        " ↑ " (units::rate(latest.rate.sent))
                    }
                }
            }
            td.number role="cell" data-label="Received" { (units::bytes(peer.received_bytes)) }
            td.number role="cell" data-label="Sent" { (units::bytes(peer.sent_bytes)) }
        }
    }
}

/// Returns notes, and promises that do not hold on this system.
fn remarks(tunnel: &Tunnel) -> Markup {
    let is_finding = |text: &Text| tunnel.findings.iter().any(|finding| finding.text == *text);
    let gaps = tunnel.gaps.iter().map(|gap| &gap.text);
    let gaps: Vec<_> = gaps.filter(|text| !is_finding(text)).collect();
    html! {
        @if !tunnel.notes.is_empty() {
            ul.remarks aria-label="Remarks" {
                @for note in &tunnel.notes { li { (sentence(note)) } }
            }
        }
        @if !gaps.is_empty() {
            details id=(id("limits", tunnel)) {
                summary {
                    (units::count(gaps.len(), "limit")) " of " (tunnel.interface) " on this system"
                }
                ul.remarks { @for gap in gaps { li { (sentence(gap)) } } }
            }
        }
    }
}

fn more(tunnel: &Tunnel, device: Option<&Device>, history: &History) -> Markup {
    let kill_switch = match tunnel.kill_switch {
        Some(KillSwitch::App) => Some("blocks the selected applications if its process ends"),
        Some(KillSwitch::All) => Some("blocks all traffic if its process ends"),
        Some(KillSwitch::Off) => Some("off: traffic leaves directly if its process ends"),
        None => None,
    };
    let waits = history.recent_waits(&tunnel.interface);
    let waits = waits.filter(|it| it.counts.iter().any(|count| *count > 0));
    let guarded: Vec<_> = tunnel.uplinks.iter().filter(|it| it.guarded).collect();
    html! {
        details id=(id("settings", tunnel)) {
            summary { "Settings and counters of " (tunnel.interface) }
            dl.more {
                @if let Some(file) = &tunnel.file {
                    div { dt { "File" } dd { code { (file) } } }
                }
                @if let Some(text) = kill_switch {
                    div { dt { "Kill switch" } dd { (text) } }
                }
                @if tunnel.mode == Some(Mode::Transparent) {
                    div {
                        dt { "Guarded links" }
                        dd {
                            @if guarded.is_empty() {
                                "none, so selected applications have no network"
                            }
                            @for (at, link) in guarded.iter().enumerate() {
                                @if at > 0 { ", " } (link.name)
                            }
                        }
                    }
                }
                @if let Some(times) = device.and_then(|it| it.handshakes.as_ref()) {
                    div { dt { "Handshake latencies" } dd { (plot::bars(times)) } }
                }
                @if let Some(times) = &waits {
                    div { dt { "Waits in the queue" } dd { (plot::bars(times)) } }
                }
                @if !tunnel.counters.is_empty() {
                    div {
                        dt { "Selected applications" }
                        @for counter in &tunnel.counters {
                            dd { (counter.count) " " (counter.text) }
                        }
                    }
                }
                @if let Some(device) = device.filter(|it| !it.drops.is_empty()) {
                    div {
                        dt { "Dropped by the device" }
                        @for drop in &device.drops { dd { (drop.count) " " (drop.reason) } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_session_lasts_as_long_as_in_the_status() {
        let expected = taupe_inspect::status::SESSION_LIFETIME;
        assert_eq!(super::SESSION_LIFETIME, expected.as_secs());
    }
}
