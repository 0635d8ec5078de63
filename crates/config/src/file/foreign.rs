//! Keys of other programs: one diagnostic for all keys of the same purpose, at the first of them.
//! `AmneziaWG` alone writes sixteen.

use super::diagnostic::{DiagnosticKind, Severity};
use super::keys::ForeignPurpose;
use super::line::Span;
use super::report::Report;

/// Keys of other programs that a file has.
#[derive(Default)]
pub(super) struct ForeignKeys<'a> {
    groups: Vec<Group<'a>>,
}

/// Keys of one purpose and severity.
struct Group<'a> {
    what: ForeignPurpose,
    severity: Severity,
    first: Span<'a>,
    /// The keys without repetitions.
    names: Vec<&'static str>,
}

impl<'a> ForeignKeys<'a> {
    pub(super) fn add(
        &mut self,
        at: Span<'a>,
        name: &'static str,
        what: ForeignPurpose,
        severity: Severity,
    ) {
        let mut groups = self.groups.iter_mut();
        match groups.find(|group| (group.what, group.severity) == (what, severity)) {
            Some(group) if group.names.contains(&name) => {}
            Some(group) => group.names.push(name),
            None => self.groups.push(Group {
                what,
                severity,
                first: at,
                names: vec![name],
            }),
        }
    }

    pub(super) fn report(self, report: &mut Report) {
        for Group {
            what,
            severity,
            first,
            names,
        } in self.groups
        {
            report.add_as(severity, first, DiagnosticKind::Foreign { names, what });
        }
    }
}
