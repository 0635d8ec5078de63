//! The nf_tables table of a tunnel.

use std::net::IpAddr;

use rustix::io::Errno;
use taupe_os_linux::netlink::{Firewall, InterfaceMatch, Link};
use taupe_packet::ip::Family;

use super::Linux;
use crate::change::InterfaceKey;
use crate::machine::StepError;

impl Linux<'_> {
    pub(super) fn add_firewall(
        &mut self,
        family: Family,
        key: InterfaceKey,
        mark: u32,
    ) -> Result<(), StepError> {
        let link = self.link()?.ok_or(StepError::NoInterface)?;
        // In the kernel's order, which is also wg-quick's.
        let addresses = self.system.addresses()?;
        let own = addresses
            .iter()
            .filter(|address| address.interface == link.index)
            .map(|address| address.network.addr())
            .filter(|address| Family::of(*address) == family);
        let interface = interface_match(key, &link);
        let firewall = self.firewall(family, interface, mark, own.collect());
        let added = self.system.add_firewall(&firewall);
        added.map_err(|error| match error.errno().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP) => StepError::NoFirewall(error),
            _ => error.into(),
        })
    }

    /// Returns the tunnel's firewall of one family.
    pub(super) fn firewall(
        &self,
        family: Family,
        interface: InterfaceMatch,
        mark: u32,
        addresses: Vec<IpAddr>,
    ) -> Firewall {
        Firewall {
            family,
            name: firewall_name(self.interface),
            interface,
            addresses,
            mark,
        }
    }
}

/// Returns the interface match of the rules for the present interface.
pub(super) fn interface_match(key: InterfaceKey, link: &Link) -> InterfaceMatch {
    match key {
        InterfaceKey::Name => InterfaceMatch::Name(link.name.clone()),
        InterfaceKey::Index => InterfaceMatch::Index(link.index),
    }
}

pub(super) fn firewall_name(interface: &str) -> String {
    format!("wg-quick-{interface}")
}
