//! Collects diagnostics with their severity.

use super::Dialect;
use super::diagnostic::{Diagnostic, DiagnosticKind, EndpointProblem, Severity, Unusable};
use super::line::Piece;
use super::word::Key;

/// Diagnostics of each severity that are listed. Further ones are only counted.
const MOST: usize = 1000;

/// Diagnostics found so far.
pub(super) struct Report {
    dialect: Dialect,
    found: Vec<Diagnostic>,
    errors: Tally,
    warnings: Tally,
}

#[derive(Default)]
struct Tally {
    count: usize,
    /// Position of the first diagnostic that is not listed.
    beyond: Option<(usize, usize)>,
}

impl Report {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            found: Vec::new(),
            errors: Tally::default(),
            warnings: Tally::default(),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns true if further errors are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.errors.count >= MOST
    }

    /// Adds a diagnostic about `piece`.
    pub(super) fn add(&mut self, piece: Piece, kind: DiagnosticKind) {
        let severity = severity(&kind, self.dialect);
        self.add_as(severity, piece, kind);
    }

    /// Adds a diagnostic with another severity than its usual one.
    pub(super) fn add_as(&mut self, severity: Severity, piece: Piece, kind: DiagnosticKind) {
        let tally = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        tally.count += 1;
        if tally.count <= MOST {
            self.found.push(Diagnostic {
                line: piece.number,
                column: piece.column(),
                severity,
                kind,
            });
        } else if tally.beyond.is_none() {
            tally.beyond = Some((piece.number, piece.column()));
        }
    }

    /// Returns true if there is an error.
    pub(super) fn refuses(&self) -> bool {
        self.errors.count > 0
    }

    /// Returns all diagnostics, by line and column.
    pub(super) fn finish(self) -> Vec<Diagnostic> {
        let mut found = self.found;
        for (severity, tally) in [
            (Severity::Error, self.errors),
            (Severity::Warning, self.warnings),
        ] {
            found.extend(tally.beyond.map(|(line, column)| Diagnostic {
                line,
                column,
                severity,
                kind: DiagnosticKind::More {
                    more: tally.count - MOST,
                },
            }));
        }
        found.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        found
    }
}

/// Returns the severity: an error if `wg` or `wg-quick` would fail, or if the file cannot work as
/// written. For `wg setconf`, which must accept what it always has, only the former counts.
fn severity(kind: &DiagnosticKind, dialect: Dialect) -> Severity {
    match kind {
        DiagnosticKind::RepeatedInterface { .. }
        | DiagnosticKind::Repeated { same: true, .. }
        | DiagnosticKind::ZeroKey {
            key: Key::PresharedKey,
        }
        | DiagnosticKind::PresharedKeyIsPublic { .. }
        | DiagnosticKind::PresharedKeyIsPrivate { .. }
        | DiagnosticKind::MtuTooSmall { least: 576, .. }
        | DiagnosticKind::HostBits { .. }
        | DiagnosticKind::Unusable {
            what:
                Unusable::Loopback
                | Unusable::Network
                | Unusable::SubnetBroadcast
                | Unusable::Everything
                | Unusable::NoScope,
            ..
        }
        | DiagnosticKind::SingleUnspecified { .. }
        | DiagnosticKind::Overlap { .. }
        | DiagnosticKind::NoAllowedIps
        | DiagnosticKind::LightHandshakes
        | DiagnosticKind::DisallowedElsewhere { .. }
        | DiagnosticKind::AllDisallowed
        | DiagnosticKind::Endpoint {
            problem: EndpointProblem::Unbracketed | EndpointProblem::NoScope,
        }
        | DiagnosticKind::NoDnsServer
        | DiagnosticKind::Ignored { .. }
        | DiagnosticKind::Covered { .. }
        | DiagnosticKind::Doubtful(_)
        | DiagnosticKind::AllowedWins { .. }
        | DiagnosticKind::NothingToDisallow { .. }
        | DiagnosticKind::NotForQuick { comment: true, .. }
        | DiagnosticKind::WorldAccessible { .. }
        | DiagnosticKind::KeyFileAccessible { .. } => Severity::Warning,
        // An empty list is allowed, but `wg` accepts no empty value. An empty list of applications
        // would tunnel all of them.
        DiagnosticKind::NoValue { key }
            if !key.known_to_wg() && !key.is_of_taupe() && *key != Key::SaveConfig =>
        {
            Severity::Warning
        }
        DiagnosticKind::Repeated { .. }
        | DiagnosticKind::ZeroKey { .. }
        | DiagnosticKind::RepeatedPeer { .. }
        | DiagnosticKind::PublicKeyIsPrivate { .. }
        | DiagnosticKind::OwnPeer { .. }
        | DiagnosticKind::Unusable { .. }
        | DiagnosticKind::Endpoint {
            problem: EndpointProblem::PortZero,
        } if dialect.is_of_device() => Severity::Warning,
        _ => Severity::Error,
    }
}
