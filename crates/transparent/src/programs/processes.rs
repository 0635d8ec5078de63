//! The rules of processes, which the eBPF programs store (`bpf/processes.h`).

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use taupe_config::application::{AppRules, AppVerdict, Decision, Rule};

use super::Programs;
use crate::fault::Fault;
use crate::rules::number;
use crate::state::{ALLOW, DIRECT, DISALLOW, RULE_NUMBER};
use crate::syscall::Target;

pub(super) const MAP: &str = "processes";

/// Maximum number of passes over all processes. A child process gets its rule at the latest one
/// pass after its parent; most parents precede their children in the list.
const ROUNDS: usize = 64;

/// Returns the maximum number of processes on this system, so that the map never lacks room. Only
/// entries in use take memory.
pub(super) fn most() -> u32 {
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
    pub(super) fn keep_processes(&self) -> Learning<'_> {
        // 0 means "not learning". The kernel compares the value with its own seconds, cut to 32
        // bits.
        let second = (taupe_runtime::system::kernel_monotonic().as_secs() as u32).max(1);
        let learning = Learning(&self.maps.state.learning);
        learning.0.store(second, Ordering::Release);
        learning
    }

    /// Gives all processes the rules in use, and the rules that they inherit. Afterwards no process
    /// has another rule.
    pub(super) fn learn_processes(&self, learning: Learning<'_>) -> Result<(), Fault> {
        self.go_through_processes()?;
        drop(learning);
        self.go_through_processes()
    }

    pub(super) fn go_through_processes(&self) -> Result<(), Fault> {
        for _ in 0..ROUNDS {
            if self.list("taupe_learn", Target::Iterator)?.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// The kernel's verdicts on processes.
#[derive(Debug, Default)]
pub struct Judged {
    entries: BTreeMap<u32, Entry>,
    /// Key of the hash that numbers rules.
    key: (u64, u64),
}

/// `struct judged` of `bpf/judged.h`, without the PID.
#[derive(Debug, Clone, Copy)]
struct Entry {
    bits: u32,
    verdict: u32,
    own: u64,
    inherited: u64,
    /// The rule that a started program inherits if no rule names it.
    handed_on: u64,
}

/// Length of an entry including the PID, in bytes.
const ENTRY: usize = 40;

/// `RULE_INHERITED` and `OWN` of the C headers.
const INHERITED: u32 = 1 << 7;
const OWN: u32 = 2;

impl Judged {
    /// Returns the kernel's verdict on a process, or `None` if the kernel does not know the
    /// process. Rules for users or control groups are not named.
    #[must_use]
    pub fn judge<'a>(&self, id: u32, rules: &'a AppRules) -> Option<AppVerdict<'a>> {
        let entry = self.entries.get(&id)?;
        let is_inherited = entry.bits & INHERITED != 0;
        let value = if is_inherited {
            entry.inherited
        } else {
            entry.own
        };
        let bit = match entry.bits & ALLOW {
            0 => DISALLOW,
            _ => ALLOW,
        };
        let is_by_it = value & u64::from(bit) != 0;
        Some(AppVerdict {
            decision: match entry.verdict {
                DIRECT | OWN => Decision::Bypass,
                _ => Decision::Tunnel,
            },
            rule: is_by_it.then(|| self.rule(value, rules)).flatten(),
            is_inherited,
        })
    }

    /// Returns the verdict on a program that the process would start, if no rule names that
    /// program. Returns `None` if it would inherit no rule.
    #[must_use]
    pub fn judge_child<'a>(&self, id: u32, rules: &'a AppRules) -> Option<AppVerdict<'a>> {
        let entry = self.entries.get(&id)?;
        let value = entry.handed_on;
        (value & u64::from(ALLOW | DISALLOW) != 0).then(|| AppVerdict {
            decision: match value & u64::from(ALLOW) {
                0 => Decision::Bypass,
                _ => Decision::Tunnel,
            },
            rule: self.rule(value, rules),
            is_inherited: true,
        })
    }

    /// Returns the rule for a value of the maps `names` or `exact`.
    fn rule<'a>(&self, value: u64, rules: &'a AppRules) -> Option<&'a Rule> {
        let lists = [(&rules.allowed, ALLOW), (&rules.disallowed, DISALLOW)];
        let mut all = lists
            .into_iter()
            .flat_map(|(list, bits)| list.iter().map(move |rule| (rule, bits)));
        let found = all.find(|(rule, bits)| {
            u64::from(number(&rule.application, *bits, self.key)) == value >> RULE_NUMBER
        });
        found.map(|(rule, _)| rule)
    }

    fn read(listed: &[u8], key: (u64, u64)) -> Self {
        let (entries, _) = listed.as_chunks::<ENTRY>();
        let entries = entries.iter().map(|entry| {
            let word = |at: usize| {
                let bytes = entry
                    .get(at..at + 4)
                    .and_then(|bytes| bytes.try_into().ok());
                u32::from_ne_bytes(bytes.unwrap_or_default())
            };
            let long = |at: usize| {
                let bytes = entry
                    .get(at..at + 8)
                    .and_then(|bytes| bytes.try_into().ok());
                u64::from_ne_bytes(bytes.unwrap_or_default())
            };
            let values = Entry {
                bits: word(4),
                verdict: word(8),
                own: long(16),
                inherited: long(24),
                handed_on: long(32),
            };
            (word(0), values)
        });
        Self {
            entries: entries.collect(),
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
    /// [`Fault::Call`].
    pub fn judged(&self) -> Result<Judged, Fault> {
        let listed = self.list("taupe_judged", Target::Iterator)?;
        Ok(Judged::read(&listed, self.maps.state.key()))
    }
}
