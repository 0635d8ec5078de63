//! `net.ipv4.conf.all.src_valid_mark`, which all tunnels share.

use std::fs;

use taupe_os_linux::netlink::{Mark, Rule};
use taupe_packet::ip::Family;

use super::Linux;
use crate::change::Change;
use crate::machine::StepError;
use crate::namespace::Namespace;

/// The file of [`Change::ValidMark`].
pub(super) const VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";

impl Linux<'_> {
    /// Returns the value before the first tunnel that changed it.
    pub(super) fn original_valid_mark(&self, own: &[Change]) -> Option<u32> {
        let others = self.state.others(self.interface, &Namespace::current());
        let original = |change: &Change| match change {
            Change::ValidMark { original } => *original,
            _ => None,
        };
        let known = own.iter().chain(&others).find_map(original);
        known.or_else(|| fs::read_to_string(VALID_MARK).ok()?.trim().parse().ok())
    }

    /// Returns true if another tunnel, of Taupe or `wg-quick`, needs the reverse-path filter to
    /// consider marks. The rule of this tunnel still exists when its setting is undone.
    pub(super) fn valid_mark_is_wanted(&mut self) -> bool {
        let others = self.state.others(self.interface, &Namespace::current());
        let wants = |change: &Change| matches!(change, Change::ValidMark { .. });
        let is_wg_quicks = |rule: &&Rule| {
            let is_table = |mark: Mark| mark.value == rule.table;
            rule.family == Family::V4 && rule.invert && rule.mark.is_some_and(is_table)
        };
        let rules = self.system.rules().unwrap_or_default();
        others.iter().any(wants) || rules.iter().filter(is_wg_quicks).count() > 1
    }
}

/// Writes the value unless it is set already: in most containers the file is read-only.
pub(super) fn write_valid_mark(value: u32) -> Result<(), StepError> {
    let is = fs::read_to_string(VALID_MARK).unwrap_or_default();
    if is.trim().parse() == Ok(value) {
        return Ok(());
    }
    fs::write(VALID_MARK, value.to_string()).map_err(|source| StepError::Io {
        what: format!(
            "cannot write {value} to {VALID_MARK} (in a container, start it with \
             --sysctl net.ipv4.conf.all.src_valid_mark={value})"
        ),
        source,
    })
}
