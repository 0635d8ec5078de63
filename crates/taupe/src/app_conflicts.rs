//! Check that no application is selected by two tunnels in one network namespace.

use std::path::{Path, PathBuf};
use taupe_adapter::State;
use taupe_config::application::{AppRules, Application, Rule};
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
    let only = |rules: &'a AppRules| rules.of_user.as_ref().map(|only| &only.user);
    if let (Some(a), Some(b)) = (only(a), only(b))
        && a.is_other_than(b)
    {
        return None;
    }
    // All processes that both select are of this user.
    let user = only(a).or(only(b));
    let is_of_other_user = |rule: &Rule| match (&rule.application, user) {
        (Application::User(one), Some(user)) => one.is_other_than(user),
        _ => false,
    };
    let allowed = |rules: &'a AppRules| {
        let rules = rules.allowed.iter();
        rules.filter(move |rule| !is_of_other_user(rule))
    };
    let by_both = allowed(a).find_map(|a| {
        let mut others = allowed(b);
        let by = others
            .find(|b| a.application.covers(&b.application) || b.application.covers(&a.application));
        by.map(|by| (Some(a), Some(by)))
    });
    // A rule about the user includes whatever rules about this user alone select.
    let by_user = |one: &'a AppRules, other: &'a AppRules| {
        let user = Application::User(only(one)?.clone());
        let rule = allowed(other).find(|rule| rule.application == user)?;
        Some((allowed(one).next(), Some(rule)))
    };
    // An empty AllowedApps allows every application that is not disallowed.
    let allows_by_default = |one: &AppRules| {
        let of_user = user.map(|user| Application::User(user.clone()));
        let mut disallowed = one.disallowed.iter();
        one.allowed.is_empty() && !disallowed.any(|by| Some(&by.application) == of_user.as_ref())
    };
    let by_default = |one: &AppRules, rule: &Rule| {
        allows_by_default(one)
            && !one
                .disallowed
                .iter()
                .any(|by| by.application.covers(&rule.application))
    };
    by_both
        .or_else(|| by_user(a, b))
        .or_else(|| by_user(b, a).map(|(b, a)| (a, b)))
        .or_else(|| {
            let rule = allowed(a).find(|rule| by_default(b, rule))?;
            Some((Some(rule), None))
        })
        .or_else(|| {
            let rule = allowed(b).find(|rule| by_default(a, rule))?;
            Some((None, Some(rule)))
        })
        .or_else(|| (allows_by_default(a) && allows_by_default(b)).then_some((None, None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_config::application::AppsOfUser;

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

    #[test]
    fn tunnels_of_different_users_have_nothing_in_common() {
        let of = |user: Option<&str>, rules: AppRules| AppRules {
            of_user: user.map(|user| AppsOfUser {
                user: user.parse().expect("a user"),
                line: 9,
            }),
            ..rules
        };
        let curl = || rules(&["curl"], &[]);
        let all = || rules(&[], &["wget"]);
        for (one, other, is_common) in [
            (Some("1000"), Some("1001"), false),
            (Some("1000"), Some("1000"), true),
            (Some("1000"), None, true),
            (None, Some("1000"), true),
            (None, None, true),
            // A name that is unknown may be anybody's.
            (Some("1000"), Some("alice"), true),
        ] {
            for (a, b) in [
                (curl(), curl()),
                (all(), curl()),
                (curl(), all()),
                (all(), all()),
            ] {
                let (a, b) = (of(one, a), of(other, b));
                assert_eq!(common(&a, &b).is_some(), is_common, "{a:?} {b:?}");
            }
        }
        // A rule about a user, beside rules about one user.
        for (uid, is_common) in [("uid:1000", true), ("uid:1001", false)] {
            let uid = rules(&[uid], &[]);
            for one in [curl(), all()] {
                let one = of(Some("1000"), one);
                for (a, b) in [(&one, &uid), (&uid, &one)] {
                    assert_eq!(common(a, b).is_some(), is_common, "{a:?} {b:?}");
                }
            }
        }
        // Another tunnel has everything except this user's processes.
        let others = rules(&[], &["uid:1000"]);
        for one in [curl(), all()] {
            for (user, is_common) in [(Some("1000"), false), (Some("1001"), true), (None, true)] {
                let one = of(user, one.clone());
                for (a, b) in [(&one, &others), (&others, &one)] {
                    assert_eq!(common(a, b).is_some(), is_common, "{a:?} {b:?}");
                }
            }
        }
        // Without an own rule, the other tunnel's line is the one that is named.
        let (a, b) = (of(Some("1000"), all()), rules(&["uid:1000"], &[]));
        let line = |rule: Option<&Rule>| rule.map(|rule| rule.line);
        let found = common(&a, &b).map(|(a, b)| (line(a), line(b)));
        assert_eq!(found, Some((None, Some(1))));
    }
}
