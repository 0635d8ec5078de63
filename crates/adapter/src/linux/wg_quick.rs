//! Routing policy rules created by `wg-quick`.

use taupe_os_linux::netlink::{Mark, Route, Rule};

/// Returns the rules for a table of `wg-quick`, each with the rule that `wg-quick` placed before
/// it.
pub(super) fn wg_quick_rules(rules: &[Rule], mark: u32) -> Vec<Rule> {
    let mut found = Vec::new();
    let its_own = Mark {
        value: mark,
        mask: u32::MAX,
    };
    for rule in rules.iter().filter(|rule| !rule.is_incomplete) {
        if !(rule.invert && rule.mark == Some(its_own) && rule.table == mark) {
            continue;
        }
        found.push(rule.clone());
        let before = rules.iter().filter(|other| {
            other.family == rule.family
                && other.priority < rule.priority
                && other.table == Route::MAIN_TABLE
                && other.suppress_prefix_length == Some(0)
                && !other.is_incomplete
        });
        found.extend(before.max_by_key(|other| other.priority).cloned());
    }
    found
}
