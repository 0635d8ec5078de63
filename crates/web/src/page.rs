//! The page: state first, then reasons, tunnels and applications.

mod applications;
mod plot;
mod switches;
mod tunnel;
mod units;

use crate::facts::{Facts, State, Tunnel};
use crate::history::{History, Rate};
use crate::text::Text;
use applications::Blocked;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse as _, Response};
use maud::{DOCTYPE, Markup, html};
pub(crate) use switches::Controls;

/// Seconds after which a browser without scripts loads the page again.
const RELOAD: u32 = 5;

/// Sentences for browsers that are not admitted.
pub(crate) const NO_SESSION: &str = "This browser has no session. Open the address that `taupe web` \
    prints; in its terminal, Enter prints a new one.";
pub(crate) const NO_TOKEN: &str = "This address has been used, or is older than 60 seconds. Press Enter \
    in the terminal of `taupe web` for a new one, or start it again.";

/// Returns the page with a content. Each event repeats the value `run`.
pub(crate) fn full(content: &str, run: &str, has_switches: bool) -> Markup {
    let body = html! {
        a.skip href="#main" { "Skip to the state" }
        header.top {
            p.brand { img src="icon.svg" alt="" width="28" height="28"; "Taupe" }
            p #live.live { "read when the page was loaded" }
        }
        main #main tabindex="-1" { (maud::PreEscaped(content)) }
        footer {
            @if has_switches {
                "This page can move applications into tunnels and out of them, and shows the state. "
            } @else {
                "This page only shows the state. "
            }
            "Commands such as " code { "taupe app" } " and " code { "taupe reload" } " change it."
        }
    };
    document("Taupe", Some(run), &body)
}

/// Returns an answer with one sentence.
pub(crate) fn answer(status: StatusCode, text: &str) -> Response {
    (status, Html(message(text).into_string())).into_response()
}

fn message(text: &str) -> Markup {
    let body = html! {
        header.top {
            p.brand { img src="icon.svg" alt="" width="28" height="28"; "Taupe" }
        }
        main #main {
            section.hero.none aria-labelledby="state" {
                h1 #state { "No page" }
                p { (sentence(&Text::of(text))) }
            }
        }
    };
    document("Taupe", None, &body)
}

fn document(title: &str, run: Option<&str>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href="icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="style.css";
                @if let Some(run) = run {
                    script src="script.js" data-run=(run) defer {}
                    noscript { meta http-equiv="refresh" content=(RELOAD); }
                }
            }
            body { (body) }
        }
    }
}

/// Returns the content if the state cannot be read.
pub(crate) fn unreadable(reason: &Text) -> Markup {
    html! {
        section.hero.down aria-labelledby="state" data-title="unknown" {
            (sign(State::Down))
            h1 #state { "The state cannot be read" }
            ul.reasons { li { (sentence(reason)) } }
        }
    }
}

/// Returns the content of the page. It has no line feeds.
pub(crate) fn content(facts: &Facts, history: &History, controls: Option<&Controls>) -> Markup {
    let tunnels = &facts.status.tunnels;
    html! {
        (switches::notice(controls))
        (hero(facts, history))
        (applications::section(facts, controls))
        @for tunnel in tunnels {
            (tunnel::card(tunnel, facts, history, controls))
        }
    }
}

fn hero(facts: &Facts, history: &History) -> Markup {
    let tunnels = &facts.status.tunnels;
    let blocked = Blocked::of(facts);
    let Some(worst) = tunnels.iter().map(|it| it.state).max() else {
        return html! {
            section.hero.none aria-labelledby="state" data-title="no tunnel" {
                h1 #state { "Taupe has no tunnel up here" }
                p { code { "taupe up" } " brings one up." }
                @if !blocked.is_empty() {
                    ul.reasons aria-label="Reasons" { (blocked.items()) }
                }
            }
        };
    };
    let headline = headline(tunnels);
    let has_reasons = tunnels.iter().any(|it| !it.findings.is_empty()) || !blocked.is_empty();
    html! {
        section.hero.(word(worst)) aria-labelledby="state" data-title=(headline) {
            (sign(worst))
            h1 #state { (headline) }
            p.sum { (sum(tunnels, history)) }
            @if tunnels.len() > 1 {
                nav aria-label="Tunnels" {
                    ul.tunnels {
                        @for tunnel in tunnels {
                            li {
                                a.pill.(word(tunnel.state)) href={ "#tunnel-" (tunnel.interface) } {
                                    (tunnel.interface) " is " (word(tunnel.state))
                                }
                            }
                        }
                    }
                }
            }
            @if has_reasons {
                ul.reasons aria-label="Reasons" {
                    @for tunnel in tunnels {
                        @for finding in &tunnel.findings {
                            li {
                                a href={ "#tunnel-" (tunnel.interface) } { (tunnel.interface) }
                                ": " (sentence(&finding.text)) " " span.code { (finding.code) }
                            }
                        }
                    }
                    (blocked.items())
                }
            }
        }
    }
}

fn headline(tunnels: &[Tunnel]) -> String {
    let not_up: Vec<_> = tunnels.iter().filter(|it| it.state != State::Up).collect();
    match (tunnels, &*not_up) {
        ([one], _) => format!("{} is {}", one.interface, word(one.state)),
        (all, []) => format!("All {} tunnels are up", all.len()),
        ([first, second], [one]) => {
            let other = if one.interface == first.interface {
                second
            } else {
                first
            };
            format!(
                "{} is {}, {} is up",
                one.interface,
                word(one.state),
                other.interface
            )
        }
        (_, [one]) => format!(
            "{} is {}, the others are up",
            one.interface,
            word(one.state)
        ),
        (all, several) => format!(
            "{} of {} tunnels are not fully up",
            several.len(),
            all.len()
        ),
    }
}

fn sum(tunnels: &[Tunnel], history: &History) -> Markup {
    let peers: usize = tunnels.iter().map(|it| it.peers.len()).sum();
    let latest = |it: &Tunnel| history.of_tunnel(&it.interface).last().map(|one| one.rate);
    let rates: Vec<Rate> = tunnels.iter().filter_map(latest).collect();
    let received: f64 = rates.iter().map(|it| it.received).sum();
    let sent: f64 = rates.iter().map(|it| it.sent).sum();
    html! {
        (units::count(tunnels.len(), "tunnel")) " with " (units::count(peers, "peer"))
        @if !rates.is_empty() {
            ", receiving " strong { (units::rate(received)) }
            ", sending " strong { (units::rate(sent)) }
        }
    }
}

const fn word(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Degraded => "degraded",
        State::Down => "down",
    }
}

/// Returns a text with its commands, which are between backticks, as such.
fn sentence(text: &Text) -> Markup {
    html! {
        @for (at, part) in text.as_str().split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Returns the sign of a state, which has a form of its own for each. Its word is beside it.
fn sign(state: State) -> Markup {
    let path = match state {
        State::Up => "M4 12.5l5 5L20 6.5",
        State::Degraded => "M12 5v9M12 18.5v.5",
        State::Down => "M6 6l12 12M18 6L6 18",
    };
    html! {
        svg.sign viewBox="0 0 24 24" width="40" height="40" aria-hidden="true" {
            path d=(path) fill="none" stroke="currentColor" stroke-width="3"
                stroke-linecap="round" stroke-linejoin="round" {}
        }
    }
}

#[cfg(test)]
mod tests;
