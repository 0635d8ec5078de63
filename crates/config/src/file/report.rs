//! Collects diagnostics with their severity.

use super::Dialect;
use super::diagnostic::{Diagnostic, DiagnosticKind, EndpointProblem, Severity, UnusableAddress};
use super::keys::Key;
use super::line::Span;

/// Diagnostics of each severity that are listed. Further ones are only counted.
const MAX_LISTED: usize = 1000;

/// Diagnostics found so far.
pub(super) struct Report {
    dialect: Dialect,
    found: Vec<Diagnostic>,
    errors: SeverityCount,
    warnings: SeverityCount,
}

#[derive(Default)]
struct SeverityCount {
    count: usize,
    /// Position of the first diagnostic that is not listed.
    first_unlisted: Option<(usize, usize)>,
}

impl Report {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            found: Vec::new(),
            errors: SeverityCount::default(),
            warnings: SeverityCount::default(),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns true if further errors are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.errors.count >= MAX_LISTED
    }

    /// Adds a diagnostic about `span`.
    pub(super) fn add(&mut self, span: Span, kind: DiagnosticKind) {
        let severity = severity(&kind, self.dialect);
        self.add_as(severity, span, kind);
    }

    /// Adds a diagnostic with another severity than its usual one.
    pub(super) fn add_as(&mut self, severity: Severity, span: Span, kind: DiagnosticKind) {
        let counted = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        counted.count += 1;
        if counted.count <= MAX_LISTED {
            self.found.push(Diagnostic {
                line: span.number,
                column: span.column(),
                severity,
                kind,
            });
        } else if counted.first_unlisted.is_none() {
            counted.first_unlisted = Some((span.number, span.column()));
        }
    }

    /// Returns true if there is an error.
    pub(super) fn has_errors(&self) -> bool {
        self.errors.count > 0
    }

    /// Returns all diagnostics, by line and column.
    pub(super) fn finish(self) -> Vec<Diagnostic> {
        let mut found = self.found;
        for (severity, counted) in [
            (Severity::Error, self.errors),
            (Severity::Warning, self.warnings),
        ] {
            found.extend(counted.first_unlisted.map(|(line, column)| Diagnostic {
                line,
                column,
                severity,
                kind: DiagnosticKind::More {
                    more: counted.count - MAX_LISTED,
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
        | DiagnosticKind::MtuTooSmall { min: 576, .. }
        | DiagnosticKind::HostBits { .. }
        | DiagnosticKind::Unusable {
            what:
                UnusableAddress::Loopback
                | UnusableAddress::Network
                | UnusableAddress::SubnetBroadcast
                | UnusableAddress::ZeroLength
                | UnusableAddress::NoScope,
            ..
        }
        | DiagnosticKind::SingleUnspecified { .. }
        | DiagnosticKind::Overlap { .. }
        | DiagnosticKind::NoAllowedIps
        | DiagnosticKind::LightHandshakes
        | DiagnosticKind::DisallowedOutsideAllowed { .. }
        | DiagnosticKind::AllDisallowed
        | DiagnosticKind::Endpoint {
            problem: EndpointProblem::Unbracketed | EndpointProblem::NoScope,
        }
        | DiagnosticKind::NoDnsServer
        | DiagnosticKind::Ignored { .. }
        | DiagnosticKind::Covered { .. }
        | DiagnosticKind::AppWarning(_)
        | DiagnosticKind::AllowedWins { .. }
        | DiagnosticKind::OtherUser { .. }
        | DiagnosticKind::DisallowedAppsWithoutEffect { .. }
        | DiagnosticKind::NotForWgQuick { comment: true, .. }
        | DiagnosticKind::WorldAccessible { .. }
        | DiagnosticKind::KeyFileAccessible { .. } => Severity::Warning,
        // An empty list is allowed, but `wg` accepts no empty value. An empty list of applications
        // would tunnel all of them.
        DiagnosticKind::NoValue { key }
            if !key.is_known_to_wg() && !key.is_taupe_only() && *key != Key::SaveConfig =>
        {
            Severity::Warning
        }
        DiagnosticKind::Repeated { .. }
        | DiagnosticKind::ZeroKey { .. }
        | DiagnosticKind::RepeatedPeer { .. }
        | DiagnosticKind::PublicKeyIsPrivate { .. }
        | DiagnosticKind::PeerIsSelf { .. }
        | DiagnosticKind::Unusable { .. }
        | DiagnosticKind::Endpoint {
            problem: EndpointProblem::PortZero,
        } if dialect.is_device_only() => Severity::Warning,
        _ => Severity::Error,
    }
}
