//! The system, looked at to compare changes with it.

use std::collections::BTreeMap;
use std::fs;

use super::Linux;
use super::valid_mark::VALID_MARK;
use crate::change::Change;
use crate::machine::StepError;
use crate::verify::{Deviation, Observed};

impl Linux<'_> {
    /// Compares changes with the system, which is listed once for all of them.
    pub(super) fn deviations(
        &mut self,
        changes: &[&Change],
        index: Option<u32>,
    ) -> Result<Vec<Option<Deviation>>, StepError> {
        let observed = self.observe(changes, index)?;
        let mut deviations = observed.deviations(changes);
        for (change, deviation) in changes.iter().zip(&mut deviations) {
            if let Change::Dns(dns) = change {
                *deviation = dns.verify(&self.paths)?.map(Deviation::NameServers);
            }
        }
        Ok(deviations)
    }

    fn observe(&mut self, changes: &[&Change], index: Option<u32>) -> Result<Observed, StepError> {
        let has = |wanted: fn(&Change) -> bool| changes.iter().any(|change| wanted(change));
        let links = self.system.links()?;
        let link = links.into_iter().find(|link| Some(link.index) == index);
        // Somebody may have many routes.
        let routes = if has(|change| {
            matches!(
                change,
                Change::Route { .. } | Change::Unreachable { .. } | Change::Special { .. }
            )
        }) {
            self.system.routes()?
        } else {
            Vec::new()
        };
        let mut observed =
            Observed::new(link, self.system.addresses()?, routes, self.system.rules()?);
        let name = firewall_name(self.interface);
        let mut firewalls = BTreeMap::new();
        for change in changes {
            if let Change::Firewall { family, .. } = change {
                firewalls.insert(*family, self.system.firewall_rules(*family, &name)?);
            }
        }
        observed.firewalls = firewalls;
        if has(|change| matches!(change, Change::ValidMark { .. })) {
            let text = fs::read_to_string(VALID_MARK).ok();
            observed.valid_mark = text.and_then(|text| text.trim().parse().ok());
        }
        if has(|change| matches!(change, Change::Mark(_) | Change::Rule(_))) {
            // One that does not answer is told of elsewhere.
            let device = taupe_client::read(self.interface).ok();
            observed.mark = device.map(|device| device.fwmark);
        }
        Ok(observed)
    }
}
