//! Controls that move applications into tunnels and out of them.

use crate::facts::{Application, Facts, Mode, RuleLine, Tunnel, Verdict};
use crate::form::{ALLOWED, DISALLOWED, NOWHERE};
use crate::switches::Latest;
use crate::text::Text;
use maud::{Markup, html};
use std::fmt::Write as _;

/// Tunnels for which an application has a control, at most.
const MAX_TUNNELS: usize = 3;

/// Characters of an application in a form, at most.
const MAX_APPLICATION: usize = 1000;

/// Parts that only a page with switches has.
pub(crate) struct Controls {
    /// Value of the session for forms.
    pub(crate) form: String,
    pub(crate) latest: Option<Latest>,
}

/// Returns true if the page may change the applications of a tunnel.
fn is_switchable(tunnel: &Tunnel) -> bool {
    tunnel.mode == Some(Mode::Transparent) && tunnel.file.is_some()
}

/// Returns the result of the latest change.
pub(super) fn notice(controls: Option<&Controls>) -> Markup {
    let Some(Latest {
        switch, outcome, ..
    }) = controls.and_then(|it| it.latest.as_ref())
    else {
        return html! {};
    };
    let (application, tunnel) = (Text::of(&switch.application), Text::of(&switch.tunnel));
    html! {
        section.card.notice.down[!outcome.is_done] #notice aria-labelledby="notice-title" {
            h2 #notice-title {
                @if outcome.is_done { "Changed" } @else { "Not changed" }
                ": " (application) " and " (tunnel)
            }
            div role="status" {
                ul.remarks {
                    @for sentence in &outcome.sentences {
                        li { (super::sentence(&Text::of(sentence))) }
                    }
                }
            }
        }
    }
}

/// Returns the controls of an application with connections.
pub(super) fn of_application(
    one: &Application,
    facts: &Facts,
    controls: Option<&Controls>,
) -> Markup {
    let tunnels = facts.status.tunnels.iter().filter(|it| is_switchable(it));
    let path = one.application.as_ref().filter(|it| is_entry(it));
    html! {
        @if let (Some(controls), Some(path)) = (controls, path) {
            @for tunnel in tunnels.take(MAX_TUNNELS) {
                @if let Some(change) = Change::of(one, path, tunnel) {
                    (control(&change, tunnel, one.uid, controls))
                }
            }
        }
    }
}

/// Returns true if a file can have the path of a program as it is shown. Otherwise a button would select
/// another program than the one beside it.
fn is_entry(path: &Text) -> bool {
    let is_escaped = |path: &str| path.contains('\\');
    let path = path.exact();
    path.is_some_and(|path| path.starts_with('/') && !is_escaped(path))
}

/// Change of a tunnel's file that moves an application.
struct Change<'a> {
    place: &'static str,
    /// The application as the file has it, or its path.
    entry: &'a Text,
}

impl<'a> Change<'a> {
    /// Returns the change for which an application has a control. Rules that select it otherwise than by
    /// its path or name have their own controls.
    fn of(one: &Application, path: &'a Text, tunnel: &'a Tunnel) -> Option<Self> {
        let name = path.as_str().rsplit('/').next();
        let names_it = |rule: &&RuleLine| {
            let entry = rule.application.as_str();
            entry == path.as_str() || Some(entry) == name
        };
        let is_allowed = |rule: &&RuleLine| rule.key.as_str() == "AllowedApps";
        let carrier = one
            .tunnel
            .as_ref()
            .filter(|_| one.verdict != Verdict::Direct);
        // An application can use only one tunnel.
        if carrier.is_some_and(|it| *it != tunnel.interface) {
            return None;
        }
        let is_inside = carrier.is_some();
        let selects = tunnel.rules.iter().any(|rule| is_allowed(&rule));
        let rule = tunnel.rules.iter().find(names_it);
        let change = |place, entry| Some(Self { place, entry });
        match (is_inside, rule) {
            (true, Some(rule)) if is_allowed(&rule) => change(NOWHERE, &rule.application),
            (true, None) if !selects => change(DISALLOWED, path),
            (false, Some(rule)) if !is_allowed(&rule) => change(ALLOWED, &rule.application),
            (false, None) if selects => change(ALLOWED, path),
            _ => None,
        }
    }
}

fn control(change: &Change<'_>, tunnel: &Tunnel, uid: u32, controls: &Controls) -> Markup {
    let Change { place, entry } = change;
    let words = match *place {
        ALLOWED => "Into",
        _ => "Out of",
    };
    let fields = [
        ("tunnel", tunnel.interface.as_str()),
        ("application", entry.as_str()),
        ("place", place),
    ];
    html! {
        // The script replaces a form by that of another application, instead of changing it: the focus
        // must not move from one to the other.
        form.switch method="post" action="switch" id=(id(&[place, tunnel.interface.as_str(), entry.as_str(), &uid.to_string()])) {
            (hidden(controls, &fields))
            button aria-label={ (words) " " (tunnel.interface) ": " (entry) } {
                (words) " " (tunnel.interface)
            }
        }
    }
}

/// Returns the control that removes an entry of a tunnel's file.
pub(super) fn of_rule(rule: &RuleLine, tunnel: &Tunnel, controls: Option<&Controls>) -> Markup {
    let fields = [
        ("tunnel", tunnel.interface.as_str()),
        ("application", rule.application.as_str()),
        ("place", NOWHERE),
    ];
    html! {
        @if let Some(controls) = controls.filter(|_| is_switchable(tunnel) && rule.application.exact().is_some()) {
            form.switch method="post" action="switch" id=(id(&["rule", tunnel.interface.as_str(), rule.key.as_str(), rule.application.as_str()])) {
                (hidden(controls, &fields))
                button aria-label={ "Remove " (rule.application) " from the lists of " (tunnel.interface) } {
                    "Remove"
                }
            }
        }
    }
}

/// Returns the form that adds an application to a tunnel.
pub(super) fn addition(tunnel: &Tunnel, controls: Option<&Controls>) -> Markup {
    let field = id(&["add", tunnel.interface.as_str()]);
    let fields = [("tunnel", tunnel.interface.as_str()), ("place", ALLOWED)];
    html! {
        @if let Some(controls) = controls.filter(|_| is_switchable(tunnel)) {
            form.switch.add method="post" action="switch" id=(id(&["form", tunnel.interface.as_str()])) {
                (hidden(controls, &fields))
                label for=(field) { "Application for " (tunnel.interface) ", by name or path" }
                input id=(field) name="application" required maxlength=(MAX_APPLICATION)
                    autocomplete="off" autocapitalize="off" spellcheck="false";
                button { "Into " (tunnel.interface) }
            }
        }
    }
}

fn hidden(controls: &Controls, fields: &[(&str, &str)]) -> Markup {
    html! {
        input type="hidden" name="form" value=(controls.form);
        @for (name, value) in fields {
            input type="hidden" name=(name) value=(value);
        }
    }
}

/// Returns an identifier of parts. It has no spaces, and no other parts have the same.
fn id(parts: &[&str]) -> String {
    let mut id = "switch".to_owned();
    for part in parts {
        id.push(':');
        for c in part.chars() {
            match c {
                '%' | ':' => _ = write!(id, "%{:x};", u32::from(c)),
                c if c.is_whitespace() => _ = write!(id, "%{:x};", u32::from(c)),
                c => id.push(c),
            }
        }
    }
    id
}
