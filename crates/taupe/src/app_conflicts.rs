//! Check that no application is selected by two tunnels in one network namespace.

use std::path::{Path, PathBuf};
use taupe_adapter::State;
use taupe_config::application::{AppRules, Rule};
use taupe_inspect::check;
use taupe_inspect::rules::resolved;
use taupe_transparent::capture::is_in_effect;

/// Reason why applications cannot be selected for a tunnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppConflict {
    /// A running tunnel has selected one of them already.
    #[error(
        "{here}: an application that this selects uses {tunnel} already ({there}), and an application \
         can use only one tunnel; delete it in one of the two files, or take {tunnel} down"
    )]
    Common {
        here: String,
        there: String,
        tunnel: String,
    },
    /// The running tunnel's applications are unknown.
    #[error(
        "an application can use only one tunnel, and the applications of {tunnel} are unknown: its \
         file {} {why}; correct the file, or take {tunnel} down", .file.display()
    )]
    Unknown {
        tunnel: String,
        file: PathBuf,
        why: String,
    },
}

/// Names the place where a file selects an application. A file without AllowedApps selects all, and
/// has no line to name.
fn place(file: &Path, rule: Option<&Rule>) -> String {
    let file = file.display();
    match rule {
        Some(rule) => format!("{file}:{}: {}", rule.line, rule.application),
        None => format!("{file}: without AllowedApps, all that it does not disallow"),
    }
}

/// Checks that no tunnel other than `interface` has selected an application of these rules.
pub(crate) fn check(interface: &str, shown: &Path, rules: &AppRules) -> Result<(), AppConflict> {
    let others = State::default().here().into_iter();
    others
        .filter(|header| header.interface != interface)
        .filter(|header| is_in_effect(&header.interface).unwrap_or(true))
        .try_for_each(|header| {
            let other = rules_of(&header.config).map_err(|why| AppConflict::Unknown {
                tunnel: header.interface.clone(),
                file: header.config.clone(),
                why,
            })?;
            match common(rules, &other) {
                None => Ok(()),
                Some((here, there)) => Err(AppConflict::Common {
                    here: place(shown, here),
                    there: place(&header.config, there),
                    tunnel: header.interface,
                }),
            }
        })
}

/// Returns the current rules of a file, or the reason why they cannot be read.
fn rules_of(file: &Path) -> Result<AppRules, String> {
    let text = check::read(file).map_err(|error| format!("cannot be read ({error})"))?;
    let file = check::parse_with_available_keys(file, &text).file;
    let file = file.ok_or("has errors (`taupe check` says which)")?;
    Ok(resolved(file.transparent.apps))
}

/// Returns the rules by which two rule sets select the same application. `None` in place of a rule
/// means that an empty AllowedApps selects it.
fn common<'a>(a: &'a AppRules, b: &'a AppRules) -> Option<(Option<&'a Rule>, Option<&'a Rule>)> {
    let by_both = a.allowed.iter().find_map(|a| {
        let mut others = b.allowed.iter();
        let by = others
            .find(|b| a.application.covers(&b.application) || b.application.covers(&a.application));
        by.map(|by| (Some(a), Some(by)))
    });
    // An empty AllowedApps allows every application that is not disallowed.
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
            let rule = |(index, text): (usize, &&str)| {
                Rule::new(text.parse().expect("an application"), index + 1)
            };
            texts.iter().enumerate().map(rule).collect()
        };
        AppRules {
            allowed: list(allowed),
            disallowed: list(disallowed),
            ..AppRules::default()
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
            // One tunnel has all applications except the one that the other has.
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
