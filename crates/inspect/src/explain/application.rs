//! The step about the application: a line of the file selects it, or lets it bypass the tunnel.

use super::steps::{Explanation, StepOutcome};
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
    ) -> StepOutcome {
        let AppRules {
            allowed,
            disallowed,
            of_user,
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
        if let (true, Some(only)) = (judgement.is_of_other_user, of_user) {
            return StepOutcome::Decides(format!(
                "bypasses the tunnel{}: it belongs to user {}, and the tunnel is for applications of \
                 one user ({}:{}: {} = {})",
                self.meanwhile(to, table),
                process.uid,
                self.shown.display(),
                only.line,
                Key::AppsOfUser,
                only.user
            ));
        }
        match (judgement.decision, judgement.rule) {
            (Decision::Bypass, Some(rule)) => StepOutcome::Decides(format!(
                "bypasses the tunnel{} {}",
                self.meanwhile(to, table),
                by(rule, Key::DisallowedApps)
            )),
            (Decision::Bypass, None) => StepOutcome::Decides(format!(
                "bypasses the tunnel{}: none of the {} AllowedApps matches",
                self.meanwhile(to, table),
                allowed.len()
            )),
            (Decision::Tunnel, Some(rule)) => {
                StepOutcome::Continues(format!("uses the tunnel {}", by(rule, Key::AllowedApps)))
            }
            (Decision::Tunnel, None) if disallowed.is_empty() => StepOutcome::Continues(
                "uses the tunnel: the file selects no application, so all do".into(),
            ),
            (Decision::Tunnel, None) if !allowed.is_empty() => StepOutcome::Continues(
                "uses the tunnel, by an entry that is no longer in the file".into(),
            ),
            (Decision::Tunnel, None) => StepOutcome::Continues(format!(
                "uses the tunnel: none of the {} DisallowedApps matches",
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
