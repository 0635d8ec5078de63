//! The rules of processes, which the eBPF programs store (`bpf/processes.h`).

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use taupe_config::application::{AppRules, AppVerdict, Decision, Rule};

use super::Programs;
use crate::error::TransparentError;
use crate::records::{self, ProcessRecord};
use crate::rules::rule_number;
use crate::state::{ALLOW, DIRECT, DISALLOW, EXEMPT, INHERITED, OTHER_USER, RULE_NUMBER_SHIFT};

pub(super) const MAP: &str = "processes";

/// Maximum number of passes over all processes. A child process gets its rule at the latest one
/// pass after its parent; most parents precede their children in the list.
const MAX_ROUNDS: usize = 64;

/// Returns the maximum number of processes on this system, so that the map never lacks room. Only
/// entries in use take memory.
pub(super) fn max_processes() -> u32 {
    /// The kernel's own maximum (`PID_MAX_LIMIT`).
    const LIMIT: u32 = 4 << 20;
    let limit = |name| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let limits = ["pid_max", "threads-max"].into_iter().filter_map(limit);
    limits.min().unwrap_or(LIMIT).clamp(1024, LIMIT)
}

/// Marks the time in which processes may still follow the previous rules. Dropping it ends that
/// time.
#[derive(Debug)]
#[must_use]
pub(super) struct Learning<'a>(&'a AtomicU32);

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Programs {
    /// Lets processes keep their previous rules until [`Self::learn_processes`] has given them the
    /// new ones.
    pub(super) fn begin_learning(&self) -> Learning<'_> {
        // 0 means "not learning". The kernel compares the value with its own seconds, cut to 32
        // bits.
        let second = (taupe_runtime::system::kernel_monotonic().as_secs() as u32).max(1);
        let learning = Learning(&self.maps.state.learning_since);
        learning.0.store(second, Ordering::Release);
        learning
    }

    /// Gives all processes the rules in use, and the rules that they inherit. Afterwards no process
    /// has another rule.
    pub(super) fn learn_processes(&self, learning: Learning<'_>) -> Result<(), TransparentError> {
        self.run_learn_passes()?;
        drop(learning);
        self.run_learn_passes()
    }

    pub(super) fn run_learn_passes(&self) -> Result<(), TransparentError> {
        for _ in 0..MAX_ROUNDS {
            if self.iterators.read("taupe_learn")?.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// The kernel's verdicts on processes.
#[derive(Debug, Default)]
pub struct ProcessVerdicts {
    /// By PID.
    processes: BTreeMap<u32, ProcessRecord>,
    /// Key of the hash that numbers rules.
    key: (u64, u64),
}

impl ProcessVerdicts {
    /// Returns the kernel's verdict on a process, or `None` if the kernel does not know the
    /// process. Rules for users or control groups are not named.
    #[must_use]
    pub fn verdict<'a>(&self, id: u32, rules: &'a AppRules) -> Option<AppVerdict<'a>> {
        let process = self.processes.get(&id)?;
        let is_inherited = process.bits & INHERITED != 0;
        let value = if is_inherited {
            process.inherited
        } else {
            process.own
        };
        let bit = match process.bits & ALLOW {
            0 => DISALLOW,
            _ => ALLOW,
        };
        let is_of_other_user = process.bits & OTHER_USER != 0;
        let is_by_rule = value & u64::from(bit) != 0 && !is_of_other_user;
        Some(AppVerdict {
            decision: match process.verdict {
                DIRECT | EXEMPT => Decision::Bypass,
                _ => Decision::Tunnel,
            },
            rule: is_by_rule.then(|| self.rule(value, rules)).flatten(),
            is_inherited,
            is_of_other_user,
        })
    }

    /// Returns the verdict on a program that the process would start, if no rule names that
    /// program and the user stays the same. Returns `None` if it would inherit no rule.
    #[must_use]
    pub fn child_verdict<'a>(&self, id: u32, rules: &'a AppRules) -> Option<AppVerdict<'a>> {
        let process = self.processes.get(&id)?;
        let value = process.handed_on;
        (value & u64::from(ALLOW | DISALLOW) != 0).then(|| AppVerdict {
            decision: match value & u64::from(ALLOW) {
                0 => Decision::Bypass,
                _ => Decision::Tunnel,
            },
            rule: self.rule(value, rules),
            is_inherited: true,
            is_of_other_user: false,
        })
    }

    /// Returns the rule for a value of the maps `names` or `exact`.
    fn rule<'a>(&self, value: u64, rules: &'a AppRules) -> Option<&'a Rule> {
        let lists = [(&rules.allowed, ALLOW), (&rules.disallowed, DISALLOW)];
        let mut all = lists
            .into_iter()
            .flat_map(|(list, bits)| list.iter().map(move |rule| (rule, bits)));
        let found = all.find(|(rule, bits)| {
            u64::from(rule_number(&rule.application, *bits, self.key)) == value >> RULE_NUMBER_SHIFT
        });
        found.map(|(rule, _)| rule)
    }

    pub(crate) fn read(listed: &[u8], key: (u64, u64)) -> Self {
        let records = records::parse(listed);
        Self {
            processes: records
                .map(|record: ProcessRecord| (record.id, record))
                .collect(),
            key,
        }
    }
}

impl Programs {
    /// Returns the kernel's verdicts on the processes that are in the tunnel's network namespace
    /// and visible in the calling thread's PID namespace.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub fn process_verdicts(&self) -> Result<ProcessVerdicts, TransparentError> {
        let listed = self.iterators.read("taupe_verdicts")?;
        Ok(ProcessVerdicts::read(&listed, self.maps.state.key()))
    }
}
