//! The step about the application: a line of the file sends it through the tunnel or past it.

use super::steps::{Explanation, Verdict};
use crate::destination::Destination;
use ipnet::IpNet;
use taupe_config::application::{AppRules, AppVerdict, Decision, Process, Rule};
use taupe_config::destinations::Class;
use taupe_config::file::Key;

impl Explanation<'_> {
    /// Explains the judgement on a process.
    pub(super) fn application(
        &self,
        process: &Process<'_>,
        judgement: &AppVerdict<'_>,
        to: Option<Destination>,
        table: &[(IpNet, Class)],
    ) -> Verdict {
        let AppRules {
            allowed,
            disallowed,
            ..
        } = &self.file.transparent.apps;
        let by = |rule: &Rule, key: Key| {
            let line = self.line(rule, key);
            if judgement.is_inherited {
                format!("({line}), as the program that started it")
            } else if rule.matches(process) {
                format!("({line})")
            } else {
                format!("({line}), which named its executable when it was started")
            }
        };
        match (judgement.decision, judgement.rule) {
            (Decision::Bypass, Some(rule)) => Verdict::Decides(format!(
                "past the tunnel{} {}",
                self.meanwhile(to, table),
                by(rule, Key::DisallowedApps)
            )),
            (Decision::Bypass, None) => Verdict::Decides(format!(
                "past the tunnel{}: none of the {} AllowedApps is this one",
                self.meanwhile(to, table),
                allowed.len()
            )),
            (Decision::Tunnel, Some(rule)) => {
                Verdict::Passes(format!("uses the tunnel {}", by(rule, Key::AllowedApps)))
            }
            (Decision::Tunnel, None) if disallowed.is_empty() => {
                Verdict::Passes("uses the tunnel: the file chooses none, so all do".into())
            }
            (Decision::Tunnel, None) if !allowed.is_empty() => {
                Verdict::Passes("uses the tunnel, by an entry that is no longer in the file".into())
            }
            (Decision::Tunnel, None) => Verdict::Passes(format!(
                "uses the tunnel: none of the {} DisallowedApps is this one",
                disallowed.len()
            )),
        }
    }

    fn line(&self, rule: &Rule, key: Key) -> String {
        format!(
            "{}:{}: {} = {}",
            self.shown.display(),
            rule.line,
            key.name(),
            rule.application
        )
    }
}
