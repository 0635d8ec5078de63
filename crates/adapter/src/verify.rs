//! Comparison of a running tunnel's changes with the present system.
//!
//! Other programs change network settings while a tunnel is up: a DHCP client writes
//! `/etc/resolv.conf`, a network manager flushes routes, a firewall reloads its rules. [`verify`]
//! compares every step of the journal with the system. `taupe status`, `taupe reload` and the
//! tunnel's own process ([`crate::Watch`]) call it.
//!
//! A PostUp command may deliberately change a setting that `up` has just made, for example the MTU.
//! [`note_alterations`] records which steps this concerns, and they are not reported. Differences
//! that exist before the first of these commands come from other programs and are reported.

mod report;

use crate::bypass::Bypass;
use crate::change::Change;
use crate::comparison::{Comparison, Deviation, Drift};
use crate::journal::{Journal, JournalError, State};
use crate::linux::Linux;
use crate::machine::{Machine, StepError};
use crate::report::Report;
use crate::request::NoDevices;

pub use report::Finding;
use report::bypass_finding;
pub(crate) use report::findings;

/// The result of a comparison.
#[derive(Default, Debug)]
pub(crate) struct Differences {
    pub(crate) drifts: Vec<Drift>,
    /// The foreign routes that bypass the tunnel.
    pub(crate) bypasses: Vec<Bypass>,
}

/// Compares the changes of a running tunnel with the present system. Returns `None` while another
/// process brings it up or down or reloads it, and no findings for a tunnel that is not up.
///
/// # Errors
/// If the system cannot be examined.
pub fn verify(interface: &str) -> Result<Option<Vec<Finding>>, StepError> {
    let state = State::default();
    if state.is_changing(interface) {
        return Ok(None);
    }
    let Some(applied) = state.applied(interface) else {
        return Ok(Some(Vec::new()));
    };
    let mut devices = NoDevices;
    let mut machine = Linux::new(interface, &state, &mut devices)?;
    let mut found = differences(&mut machine, applied.changes, Some(applied.index))?;
    match applied.bypasses {
        Some(known) => found.bypasses.retain(|bypass| !known.contains(bypass)),
        None => found.bypasses.clear(),
    }
    let mut findings = findings(interface, &found.drifts);
    let mut bypasses = overtaking(&found.drifts);
    bypasses.append(&mut found.bypasses);
    findings.extend(bypass_finding(interface, &bypasses));
    // Another process may have begun to change the tunnel meanwhile.
    let is_valid = findings.is_empty() || !state.is_changing(interface);
    Ok(is_valid.then_some(findings))
}

/// Compares changes with a system. `index` is the index of the tunnel's interface.
pub(crate) fn differences(
    machine: &mut dyn Machine,
    applied: Vec<(usize, Change)>,
    index: Option<u32>,
) -> Result<Differences, StepError> {
    let changes: Vec<&Change> = applied.iter().map(|(_, change)| change).collect();
    let Comparison {
        deviations,
        bypasses,
    } = machine.verify(&changes, index)?;
    let drift = |((number, change), deviation): ((usize, Change), Option<Deviation>)| {
        Some(Drift {
            number,
            change,
            deviation: deviation?,
        })
    };
    let drifts = applied.into_iter().zip(deviations).filter_map(drift);
    Ok(Differences {
        drifts: drifts.collect(),
        bypasses,
    })
}

/// Returns the foreign routes that have precedence over the tunnel's own to the same network.
fn overtaking(drifts: &[Drift]) -> Vec<Bypass> {
    let other = |drift: &Drift| match &drift.deviation {
        Deviation::Overtaken(other) => Some(other.clone()),
        _ => None,
    };
    drifts.iter().filter_map(other).collect()
}

/// Records and reports the changes that PostUp commands have altered. `before` are the differences
/// from before the commands, which come from other programs. A difference that another program
/// causes while the commands run cannot be distinguished from theirs.
///
/// Also records the foreign routes that bypass the tunnel at this time: the user knows of them, or
/// has added them with a command.
pub(crate) fn note_alterations(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    before: &[Drift],
    report: &mut dyn Report,
) -> Result<(), JournalError> {
    // If the system cannot be examined now, later comparisons assume that no command has changed
    // it.
    let Ok(mut found) = differences(machine, journal.applied(), journal.interface()) else {
        return Ok(());
    };
    found
        .drifts
        .retain(|drift| before.iter().all(|known| known.number != drift.number));
    let interface = &journal.header().interface;
    let overtaken = bypass_finding(interface, &overtaking(&found.drifts));
    for finding in findings(interface, &found.drifts)
        .into_iter()
        .chain(overtaken)
    {
        report.note(&format!(
            "{}; this changed while PostUp commands ran, so Taupe attributes it to them, and \
             a reload does not restore it",
            finding.text
        ));
    }
    found
        .drifts
        .iter()
        .try_for_each(|drift| journal.altered(drift.number))?;
    journal.record_bypasses(found.bypasses)
}
