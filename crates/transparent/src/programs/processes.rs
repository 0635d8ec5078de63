//! The rules of processes, which `bpf/processes.h` keeps.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use taupe_config::application::{AppRules, Decision, Judgement, Rule};

use super::Programs;
use crate::fault::Fault;
use crate::rules::number;
use crate::state::{ALLOW, DIRECT, DISALLOW, RULE_NUMBER};
use crate::syscall::Target;

/// The name of their map.
pub(super) const MAP: &str = "processes";

/// How often all processes are gone through at most. A process has its rule a round after
/// its parent has it, at the latest; most parents come before their children.
const ROUNDS: usize = 64;

/// How many processes there can be at once, as the system is set up: no entry is refused
/// for want of room. Only used entries take memory.
pub(super) fn most() -> u32 {
    /// As many as Linux has at most (`PID_MAX_LIMIT`).
    const LIMIT: u32 = 4 << 20;
    let limit = |name| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse().ok()
    };
    let limits = ["pid_max", "threads-max"].into_iter().filter_map(limit);
    limits.min().unwrap_or(LIMIT).clamp(1024, LIMIT)
}

/// The time in which processes learn new rules. When it is dropped, none keeps another rule.
#[derive(Debug)]
#[must_use]
pub(super) struct Learning<'a>(&'a AtomicU32);

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Programs {
    /// Has processes keep the rules that they have, besides those that are to be in use,
    /// until [`Self::learn_processes`].
    pub(super) fn keep_processes(&self) -> Learning<'_> {
        // Never 0. The kernel compares it with its own seconds, cut to as many bits.
        let second = (taupe_runtime::clock::kernel_monotonic().as_secs() as u32).max(1);
        let learning = Learning(&self.maps.state.learning);
        learning.0.store(second, Ordering::Release);
        learning
    }

    /// Gives all processes the rules in use, and what they inherit by these; then none has
    /// any other.
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
    /// Of the hash that rules have their numbers by.
    key: (u64, u64),
}

/// `struct judged` of `bpf/judged.h`, without the process's number.
#[derive(Debug, Clone, Copy)]
struct Entry {
    bits: u32,
    verdict: u32,
    own: u64,
    inherited: u64,
    /// The rule of what the process starts, if no rule names that.
    handed_on: u64,
}

/// The length of an entry with the number, in bytes.
const ENTRY: usize = 40;

/// `RULE_INHERITED`, `OWN`.
const INHERITED: u32 = 1 << 7;
const OWN: u32 = 2;

impl Judged {
    /// Decides for a process as the kernel does; `None` where it knows no such process. A
    /// rule about users or control groups is not named.
    #[must_use]
    pub fn judge<'a>(&self, id: u32, rules: &'a AppRules) -> Option<Judgement<'a>> {
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
        Some(Judgement {
            decision: match entry.verdict {
                DIRECT | OWN => Decision::Bypass,
                _ => Decision::Tunnel,
            },
            rule: is_by_it.then(|| self.rule(value, rules)).flatten(),
            is_inherited,
        })
    }

    /// Decides for what a process would start, if no rule names it: by the rule that it
    /// would inherit, if there is one.
    #[must_use]
    pub fn judge_child<'a>(&self, id: u32, rules: &'a AppRules) -> Option<Judgement<'a>> {
        let entry = self.entries.get(&id)?;
        let value = entry.handed_on;
        (value & u64::from(ALLOW | DISALLOW) != 0).then(|| Judgement {
            decision: match value & u64::from(ALLOW) {
                0 => Decision::Bypass,
                _ => Decision::Tunnel,
            },
            rule: self.rule(value, rules),
            is_inherited: true,
        })
    }

    /// The rule of a value of `names` or `exact`.
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
    /// Asks the kernel for its verdicts on the processes of the tunnel's network namespace
    /// that the calling thread's PID namespace has.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`].
    pub fn judged(&self) -> Result<Judged, Fault> {
        let listed = self.list("taupe_judged", Target::Iterator)?;
        Ok(Judged::read(&listed, self.maps.state.key()))
    }
}
