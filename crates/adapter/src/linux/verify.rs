//! Reading the state of the system for a comparison.

use std::fs;

use taupe_os_linux::netlink::{Firewall, Link};
use taupe_packet::ip::Family;

use super::Linux;
use super::firewall::interface_match;
use super::valid_mark::VALID_MARK;
use crate::bypass::{self, Surroundings};
use crate::change::Change;
use crate::comparison::{Comparison, Deviation, Observed};
use crate::machine::StepError;

impl Linux<'_> {
    /// Compares all changes with one listing of the system.
    pub(super) fn compare(
        &mut self,
        changes: &[&Change],
        index: Option<u32>,
    ) -> Result<Comparison, StepError> {
        let observed = self.observe(changes, index)?;
        let mut deviations = observed.deviations(changes);
        for (change, deviation) in changes.iter().zip(&mut deviations) {
            if let Change::Dns(dns) = change {
                let name = observed.name().unwrap_or(self.interface);
                let dns = dns.renamed(name);
                *deviation = dns.verify(&self.paths)?.map(Deviation::NameServers);
            }
        }
        Ok(Comparison {
            deviations,
            bypasses: observed.bypasses,
        })
    }

    fn observe(&mut self, changes: &[&Change], index: Option<u32>) -> Result<Observed, StepError> {
        let has = |wanted: fn(&Change) -> bool| changes.iter().any(|change| wanted(change));
        let links = self.system.links()?;
        let link = links.iter().find(|link| Some(link.index) == index).cloned();
        let firewalls = self.firewalls(changes, link.as_ref());
        // Routes are listed only if needed, because there may be many.
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
        let addresses = self.system.addresses()?;
        // A device that does not answer is reported elsewhere.
        let device = has(|change| matches!(change, Change::Mark(_) | Change::Rule(_)))
            .then(|| taupe_client::read(self.interface).ok())
            .flatten();
        let peers = device.iter().flat_map(|device| &device.status.peers);
        let surroundings = Surroundings {
            links: &links,
            addresses: &addresses,
            routes: &routes,
            endpoints: peers.filter_map(|peer| Some(peer.endpoint?.ip())).collect(),
            own: index,
        };
        let bypasses = bypass::find(changes, &surroundings);
        let mut observed = Observed::new(link, addresses, routes, self.system.rules()?);
        observed.bypasses = bypasses;
        observed.links = links;
        observed.mark = device.map(|device| device.fwmark);
        for (firewall, family) in firewalls {
            let state = self.system.firewall_state(&firewall)?;
            observed.firewalls.insert(family, state);
        }
        if has(|change| matches!(change, Change::ValidMark { .. })) {
            let text = fs::read_to_string(VALID_MARK).ok();
            observed.valid_mark = text.and_then(|text| text.trim().parse().ok());
        }
        Ok(observed)
    }

    /// Returns the firewalls as they should be. Rules that match the interface by name should use
    /// its present name.
    fn firewalls(&self, changes: &[&Change], link: Option<&Link>) -> Vec<(Firewall, Family)> {
        let firewall = |change: &&Change| {
            let Change::Firewall {
                family,
                interface,
                mark,
                addresses,
            } = change
            else {
                return None;
            };
            // An interface in another namespace sends nothing here, so the rules have nothing to
            // accept.
            let interface = interface_match(*interface, link?);
            let firewall = self.firewall(*family, interface, *mark, addresses.clone());
            Some((firewall, *family))
        };
        changes.iter().filter_map(firewall).collect()
    }
}
