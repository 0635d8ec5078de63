//! Decides about processes as the kernel does.

use crate::processes::Subject;
use taupe_config::application::{AppRules, AppVerdict};
use taupe_transparent::programs::{ProcessVerdicts, Programs};

/// Decides which processes use a tunnel: the kernel's decision if the tunnel is up, else the one
/// that the kernel would make.
#[derive(Debug, Default)]
pub struct AppMatcher {
    kernel: Option<ProcessVerdicts>,
}

impl AppMatcher {
    /// Asks the kernel about the tunnel `interface`. A user without the right to ask gets the
    /// decision that the kernel would make.
    #[must_use]
    pub fn of(interface: &str) -> Self {
        let programs = Programs::open(interface).ok().flatten();
        Self {
            kernel: programs.and_then(|programs| programs.process_verdicts().ok()),
        }
    }

    /// Decides for a process, or for an executable as if it were started from here.
    #[must_use]
    pub fn decide<'a>(&self, rules: &'a AppRules, subject: &Subject) -> AppVerdict<'a> {
        let process = subject.process();
        let by_kernel = match (&self.kernel, subject.id) {
            (Some(kernel), Some(id)) => kernel.verdict(id, rules),
            (Some(kernel), None) => {
                let own = rules.decide_with_ancestors(&process, []);
                let parent = std::os::unix::process::parent_id();
                let inherited = || kernel.child_verdict(parent, rules);
                let is_own = own.rule.is_some() || own.is_of_other_user;
                inherited().filter(|_| !is_own).or(Some(own))
            }
            (None, _) => None,
        };
        let Some(mut judgement) = by_kernel else {
            let ancestors = subject.ancestors();
            return rules.decide_with_ancestors(&process, ancestors.iter().map(Subject::process));
        };
        // The kernel's decision does not name the rule for a user or a control group.
        let own = rules.decide_with_ancestors(&process, []);
        if judgement.rule.is_none() && !judgement.is_inherited && own.decision == judgement.decision
        {
            judgement.rule = own.rule;
        }
        judgement
    }
}
