//! Applications: the tunnel that carries each, or the reason why none does.

use super::switches::{self, Controls};
use super::{sentence as words, units};
use crate::facts::{Application, Facts, Verdict};
use maud::{Markup, html};
use std::collections::HashMap;

/// Rows of a table, of which the first are always visible. The parent sends more.
const MAX_ROWS: usize = 100;
const VISIBLE: usize = 8;

/// Reasons in the summary, at most: in all, and for applications of one user.
const MAX_BLOCKED: usize = 10;
const MAX_BLOCKED_OF_USER: usize = 4;

/// Applications whose packets are blocked, for the summary.
pub(super) struct Blocked<'a> {
    shown: Vec<&'a Application>,
    left_out: u64,
}

impl<'a> Blocked<'a> {
    pub(super) fn of(facts: &'a Facts) -> Self {
        let mut of_users: HashMap<u32, usize> = HashMap::new();
        let refused = facts.applications.iter();
        let refused = refused.filter(|it| it.verdict == Verdict::Refused);
        let mut blocked = Self {
            shown: Vec::new(),
            left_out: facts.blocked_left_out,
        };
        for one in refused {
            let of_user = of_users.entry(one.uid).or_default();
            if *of_user < MAX_BLOCKED_OF_USER && blocked.shown.len() < MAX_BLOCKED {
                *of_user += 1;
                blocked.shown.push(one);
            } else {
                blocked.left_out = blocked.left_out.saturating_add(1);
            }
        }
        blocked
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.left_out == 0
    }

    /// Returns a sentence about each, as items of a list.
    pub(super) fn items(&self) -> Markup {
        html! {
            @for one in &self.shown { li { (sentence(one)) } }
            @if self.left_out > 0 {
                @let count = usize::try_from(self.left_out).unwrap_or(usize::MAX);
                li {
                    (units::count(count, "more application"))
                    @if count == 1 { " is" } @else { " are" }
                    " blocked; " code { "taupe flows" } " lists all"
                }
            }
        }
    }
}

fn sentence(one: &Application) -> Markup {
    let connections = usize::try_from(one.connections).unwrap_or(usize::MAX);
    let verb = if connections == 1 { "is" } else { "are" };
    html! {
        strong { (name(one)) } ": "
        (units::count(connections, "connection")) " " (verb) " blocked"
        @if let Some(why) = &one.why { ", " (words(why)) }
    }
}

/// Returns the file name of a program.
fn name(one: &Application) -> &str {
    let path = one
        .application
        .as_ref()
        .map_or("unknown process", |it| it.as_str());
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.is_empty() { path } else { name }
}

/// Returns the section about applications with connections.
pub(super) fn section(facts: &Facts, controls: Option<&Controls>) -> Markup {
    let (direct, others): (Vec<_>, Vec<_>) = facts
        .applications
        .iter()
        .partition(|it| it.verdict == Verdict::Direct);
    let table = |rows: &[&Application], label: &str| table(rows, label, facts, controls);
    html! {
        section.card #applications aria-labelledby="applications-title" {
            h2 #applications-title { "Applications with connections" }
            @if let Some(error) = &facts.flows_error {
                p.remark { "Connections cannot be listed: " (words(error)) }
            } @else if others.is_empty() {
                p.empty { "No application has a connection in a tunnel now." }
            } @else {
                @let (first, rest) = others.split_at(others.len().min(VISIBLE));
                (table(first, "applications-title"))
                @if !rest.is_empty() {
                    details #others {
                        summary { (units::count(rest.len(), "more application")) }
                        (table(rest, "applications-title"))
                    }
                }
            }
            @if !direct.is_empty() {
                details #direct {
                    summary #direct-title { (units::count(direct.len(), "application")) " outside every tunnel" }
                    (table(&direct, "direct-title"))
                }
            }
            @if facts.applications_truncated {
                p.remark { "There are more applications than this page shows." }
            }
        }
    }
}

fn table(rows: &[&Application], label: &str, facts: &Facts, controls: Option<&Controls>) -> Markup {
    html! {
        table role="table" aria-labelledby=(label) {
            thead role="rowgroup" {
                tr role="row" {
                    @for title in ["Application", "Path", "Connections", "To", "Reason"] {
                        th scope="col" role="columnheader" { (title) }
                    }
                }
            }
            tbody role="rowgroup" {
                @for one in rows.iter().take(MAX_ROWS) { (row(one, facts, controls)) }
            }
        }
        @if rows.len() > MAX_ROWS {
            p.remark { "and " (rows.len() - MAX_ROWS) " more; " code { "taupe flows" } " lists all" }
        }
    }
}

fn row(one: &Application, facts: &Facts, controls: Option<&Controls>) -> Markup {
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                span.name { (name(one)) }
                @if let Some(path) = &one.application {
                    span.path { (path) @if one.uid != 0 { " of user " (one.uid) } }
                }
            }
            td role="cell" data-label="Path" {
                (path(one))
                (switches::of_application(one, facts, controls))
            }
            td role="cell" data-label="Connections" {
                (one.connections)
                @if one.processes > 1 { span.small { "of " (one.processes) " processes" } }
                @if let (Some(received), Some(sent)) = (one.received_bytes, one.sent_bytes) {
                    span.small { "↓ " (units::bytes(received)) " ↑ " (units::bytes(sent)) }
                }
            }
            td.remotes role="cell" data-label="To" {
                @if one.remotes.is_empty() { "anywhere" }
                @for remote in &one.remotes { span { (remote) } }
            }
            td role="cell" data-label="Reason" {
                @match &one.why { Some(why) => (words(why)), None => "no tunnel applies" }
            }
        }
    }
}

fn path(one: &Application) -> Markup {
    html! {
        @match (one.verdict, &one.tunnel) {
            (Verdict::Refused, _) => span.pill.down { "blocked" },
            (Verdict::Tunnel, Some(tunnel)) => span.pill.up { "through " (tunnel) },
            (Verdict::Tunnel, None) => span.pill.up { "through a tunnel" },
            (Verdict::Direct, Some(tunnel)) => span.pill.plain { "direct, past " (tunnel) },
            (Verdict::Direct, None) => span.pill.plain { "direct" },
        }
    }
}
