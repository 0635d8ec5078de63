//! The nf_tables table of a tunnel.

use rustix::io::Errno;
use taupe_net::system::{Family, Firewall};

use super::Linux;
use crate::machine::StepError;

impl Linux<'_> {
    pub(super) fn add_firewall(&mut self, family: Family, mark: u32) -> Result<(), StepError> {
        let index = self.index()?;
        // As the kernel lists them, which is the order that wg-quick has.
        let addresses = self.system.addresses()?;
        let own = addresses
            .iter()
            .filter(|address| address.interface == index)
            .map(|address| address.network.addr())
            .filter(|address| Family::of_address(*address) == family);
        let firewall = Firewall {
            family,
            name: firewall_name(self.interface),
            interface: self.interface.to_owned(),
            addresses: own.collect(),
            mark,
        };
        let added = self.system.add_firewall(&firewall);
        added.map_err(|error| match error.errno().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP) => StepError::NoFirewall(error),
            _ => error.into(),
        })
    }
}

pub(super) fn firewall_name(interface: &str) -> String {
    format!("wg-quick-{interface}")
}
