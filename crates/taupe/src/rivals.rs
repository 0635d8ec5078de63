//! Applications that two tunnels would have at once, in one network namespace.

use crate::capture::user_id;
use std::fs;
use std::path::Path;
use taupe_adapter::State;
use taupe_config::application::{AppRules, Rule};
use taupe_config::file::{self, Dialect};
use taupe_transparent::capture::is_in_effect;
use zeroize::Zeroizing;

/// An application that a tunnel which is up has already.
#[derive(Debug, thiserror::Error)]
#[error(
    "{here}: what this chooses uses {tunnel} already ({there}), and an application can use one \
     tunnel only; delete it in one of the two files, or take {tunnel} down; nothing was changed"
)]
pub(crate) struct Clash {
    here: String,
    there: String,
    tunnel: String,
}

/// Where a file chooses an application: by a line, or by none where it names none and
/// so chooses all.
fn place(file: &Path, rule: Option<&Rule>) -> String {
    let file = file.display();
    match rule {
        Some(rule) => format!("{file}:{}: {}", rule.line, rule.application),
        None => format!("{file}: without AllowedApps, all that it does not disallow"),
    }
}

/// Finds a tunnel other than `interface` that has an application of these rules.
pub(crate) fn clash(interface: &str, shown: &Path, rules: &AppRules) -> Option<Clash> {
    let others = State::default().here().into_iter();
    others
        .filter(|header| header.interface != interface)
        .filter(|header| is_in_effect(&header.interface).unwrap_or(false))
        .find_map(|header| {
            let text = Zeroizing::new(fs::read(&header.config).ok()?);
            let mut other = file::parse(&text, Dialect::Taupe).file?.transparent.apps;
            // A name that nobody has is in no process.
            let _ = other.resolve_users(user_id);
            let (here, there) = common(rules, &other)?;
            Some(Clash {
                here: place(shown, here),
                there: place(&header.config, there),
                tunnel: header.interface,
            })
        })
}

/// What two files both choose: the rule of each, or none where it is by none.
fn common<'a>(a: &'a AppRules, b: &'a AppRules) -> Option<(Option<&'a Rule>, Option<&'a Rule>)> {
    let by_both = a.allowed.iter().find_map(|a| {
        let mut others = b.allowed.iter();
        let by = others
            .find(|b| a.application.covers(&b.application) || b.application.covers(&a.application));
        by.map(|by| (Some(a), Some(by)))
    });
    // A list that is not there allows all that is not disallowed.
    let by_default = |one: &AppRules, rule: &Rule| {
        one.allowed.is_empty()
            && !one
                .disallowed
                .iter()
                .any(|by| by.application.covers(&rule.application))
    };
    by_both
        .or_else(|| {
            let mut allowed = a.allowed.iter();
            let rule = allowed.find(|rule| by_default(b, rule))?;
            Some((Some(rule), None))
        })
        .or_else(|| {
            let mut allowed = b.allowed.iter();
            let rule = allowed.find(|rule| by_default(a, rule))?;
            Some((None, Some(rule)))
        })
        .or_else(|| (a.allowed.is_empty() && b.allowed.is_empty()).then_some((None, None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allowed: &[&str], disallowed: &[&str]) -> AppRules {
        let list = |texts: &[&str]| {
            let rule = |(index, text): (usize, &&str)| Rule {
                application: text.parse().expect("an application"),
                line: index + 1,
            };
            texts.iter().enumerate().map(rule).collect()
        };
        AppRules {
            allowed: list(allowed),
            disallowed: list(disallowed),
        }
    }

    #[test]
    fn no_application_is_in_two() {
        for (a, b, lines) in [
            (rules(&["curl"], &[]), rules(&["wget"], &[]), None),
            (
                rules(&["wget", "curl"], &[]),
                rules(&["cur*"], &[]),
                Some((Some(2), Some(1))),
            ),
            (
                rules(&["/usr/bin/curl"], &[]),
                rules(&["x", "curl"], &[]),
                Some((Some(1), Some(2))),
            ),
            // All but one, and that one.
            (rules(&[], &["curl"]), rules(&["curl"], &[]), None),
            (
                rules(&[], &["curl"]),
                rules(&["curl", "wget"], &[]),
                Some((None, Some(2))),
            ),
            (
                rules(&["curl"], &[]),
                rules(&[], &[]),
                Some((Some(1), None)),
            ),
            (rules(&[], &["a"]), rules(&[], &["b"]), Some((None, None))),
        ] {
            let line = |rule: Option<&Rule>| rule.map(|rule| rule.line);
            let found = common(&a, &b).map(|(a, b)| (line(a), line(b)));
            assert_eq!(found, lines, "{a:?} {b:?}");
        }
    }
}
