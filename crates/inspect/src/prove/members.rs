//! The running processes of the application.

use super::target::ProofTarget;
use crate::app_matcher::AppMatcher;
use crate::processes::Subject;
use std::collections::{HashMap, HashSet};
use taupe_config::application::Decision;

/// Processes that belong to the application. One that has belonged to it stays, also when its parent
/// ends and process 1 adopts it.
#[derive(Debug, Default)]
pub struct Members {
    /// Start times, by process ids.
    known: HashMap<u32, u64>,
}

impl Members {
    /// Reads the running processes of the application: those of its executable that the tunnel selects,
    /// and selected programs that they have started.
    pub fn refresh(&mut self, target: &ProofTarget, except: &[u32]) -> Vec<u32> {
        // Rules and processes may have changed since the last time.
        let matcher = AppMatcher::of(&target.tunnel);
        let rules = target.rules();
        let mut all = Subject::all();
        all.retain(|one| one.id.is_some_and(|id| !except.contains(&id)));
        let mut members = HashMap::new();
        let mut selected = Vec::new();
        for one in &all {
            let verdict = matcher.decide(rules, one);
            let Some((id, start)) = one.id.and_then(|id| Some((id, start_time(id)?))) else {
                continue;
            };
            let is_selected = verdict.decision == Decision::Tunnel;
            let is_known = self.known.get(&id) == Some(&start);
            let has_own_rule = verdict.rule.is_some() && !verdict.is_inherited;
            // Without a parent, only its own rule decides against it.
            if is_selected && one.path == target.subject.path
                || is_known && (is_selected || !has_own_rule)
            {
                members.insert(id, start);
            } else if is_selected {
                selected.push((one, id, start));
            }
        }
        let own: HashSet<u32> = members.keys().copied().collect();
        let is_own = |one: &Subject| one.id.is_some_and(|id| own.contains(&id));
        let started = selected
            .into_iter()
            .filter(|(one, ..)| one.ancestors().iter().any(is_own));
        members.extend(started.map(|(_, id, start)| (id, start)));
        let mut ids: Vec<u32> = members.keys().copied().collect();
        ids.sort_unstable();
        self.known = members;
        ids
    }
}

/// Returns the start time of a process in ticks since the system's start. With it, an id that is used
/// again is another process.
fn start_time(id: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    started(&text)
}

/// Parses `/proc/PID/stat` (`proc_pid_stat(5)`): field 22, behind a name that may contain anything.
fn started(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let own = start_time(std::process::id()).expect("this process runs");
        assert_eq!(start_time(std::process::id()), Some(own));
        let fields: Vec<String> = (4..30).map(|number| number.to_string()).collect();
        let stat = format!("12 (a) S 99 (b) S {}", fields.join(" "));
        assert_eq!(started(&stat), Some(22));
        assert_eq!(started("12 (a"), None);
    }
}
