//! The tunnels that there are, as `taupe status` has them.

use super::{Check, Outcome};
use crate::root::is_root;
use crate::status;

const NAME: &str = "tunnel";

pub(super) fn checks() -> Vec<Check> {
    if !is_root() {
        return vec![Check::unknown(NAME)];
    }
    let tunnels = match status::look(None) {
        Ok(status) => status.tunnels,
        Err(failure) => {
            return vec![found(
                Outcome::Warn,
                format!("tunnels cannot be looked at: {failure}"),
            )];
        }
    };
    let each = tunnels.iter().flat_map(|tunnel| {
        let name = &tunnel.interface;
        let nothing = found(Outcome::Ok, format!("nothing is amiss with {name}"));
        let nothing = tunnel.findings.is_empty().then_some(nothing);
        let findings = tunnel.findings.iter();
        nothing.into_iter().chain(
            findings.map(move |finding| found(Outcome::Warn, format!("{name}: {}", finding.text))),
        )
    });
    each.collect()
}

/// What to do is said with it.
fn found(result: Outcome, text: String) -> Check {
    Check {
        name: NAME,
        result,
        text,
        fix: None,
    }
}
