//! Changes that were made, compared with the system as it is now.
//!
//! Other programs change network settings while a tunnel is up: a DHCP client
//! writes `/etc/resolv.conf`, a network manager flushes routes, a firewall
//! reloads its rules. [`verify`] compares every step of the journal with the
//! system; `taupe status`, `taupe reload` and the tunnel's own process
//! ([`crate::Watch`]) call it.
//!
//! A PostUp command may change what `up` has made just before, for example the
//! MTU. [`note_alterations`] writes down which steps that concerns: they are as
//! the file's owner wants them. What differs before the first of these commands is
//! another program's work, and stays a finding.

mod report;

use crate::bypass::Bypass;
use crate::change::Change;
use crate::comparison::{Comparison, Deviation, Drift};
use crate::journal::{self, Journal, State};
use crate::linux::Linux;
use crate::machine::{Machine, StepError};
use crate::report::Report;
use crate::request::NoDevices;

use report::bypass_finding;
pub(crate) use report::findings;
pub use report::{Finding, Kind};

/// Everything that a comparison has found.
#[derive(Default, Debug)]
pub(crate) struct Differences {
    pub(crate) drifts: Vec<Drift>,
    /// As in [`Comparison`].
    pub(crate) bypasses: Vec<Bypass>,
}

/// Compares the changes of a tunnel that is up with the system as it is now.
/// `None` while another process brings it up or down, or reloads it; nothing for
/// a tunnel that is not up.
///
/// # Errors
/// When the system cannot be looked at.
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
    // Another process may have begun to change some of it in between.
    let is_valid = findings.is_empty() || !state.is_changing(interface);
    Ok(is_valid.then_some(findings))
}

/// Compares changes with a system. `index` is the number of the tunnel's
/// interface.
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

/// Returns the routes that come before the tunnel's own to the same network.
fn overtaking(drifts: &[Drift]) -> Vec<Bypass> {
    let other = |drift: &Drift| match &drift.deviation {
        Deviation::Overtaken(other) => Some(other.clone()),
        _ => None,
    };
    drifts.iter().filter_map(other).collect()
}

/// Writes down, and says, which changes PostUp commands have altered. `before` are the
/// differences from before the commands: those are another program's. A difference of another
/// program's that comes while the commands run cannot be told from theirs.
///
/// The routes of others that lead around the tunnel then are written down, too: the owner
/// knows of them, or has added them by a command.
pub(crate) fn note_alterations(
    machine: &mut dyn Machine,
    journal: &mut Journal,
    before: &[Drift],
    report: &mut dyn Report,
) -> Result<(), journal::Error> {
    // A system that cannot be looked at now is judged later, as if no command had changed
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
             `taupe reload` does not restore it",
            finding.text
        ));
    }
    found
        .drifts
        .iter()
        .try_for_each(|drift| journal.altered(drift.number))?;
    journal.record_bypasses(found.bypasses)
}
