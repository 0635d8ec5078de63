//! The steps about the destination: this host and its link, `DisallowedIPs`, `AllowedIPs`.

use super::steps::{Explanation, Packets, StepOutcome};
use crate::destination::Destination;
use ipnet::IpNet;
use std::net::IpAddr;
use taupe_config::destinations::{Class, class_of, is_link_local, is_local};
use taupe_config::file::edit::{Entry, entries};
use taupe_config::file::{Key, KillSwitch};
use taupe_uapi::prefix;

impl Explanation<'_> {
    pub(super) fn disallowed(
        &self,
        to: Option<Destination>,
        table: &[(IpNet, Class)],
    ) -> StepOutcome {
        let list = entries(self.text, Key::DisallowedIps);
        let lan = entries(self.text, Key::BypassLanTraffic);
        let lan = lan.first().filter(|_| self.bypasses_lan());
        let Some(Destination { address, .. }) = to else {
            let all = list.iter().map(|entry| self.at(Key::DisallowedIps, entry));
            let lan = lan.map(|entry| self.at(Key::BypassLanTraffic, entry));
            let all: Vec<_> = all.chain(lan).collect();
            return StepOutcome::Continues(match all.as_slice() {
                [] => "there are none".into(),
                all => format!("bypasses the tunnel: {}", all.join("; ")),
            });
        };
        let by = most_specific(&list, address);
        match (class_of(table, address), by, lan) {
            (Class::Direct, Some(entry), _) => StepOutcome::Decides(format!(
                "bypasses the tunnel{} ({})",
                self.meanwhile(to, table),
                self.at(Key::DisallowedIps, entry)
            )),
            (Class::Direct, None, Some(entry)) if is_local(address) => {
                StepOutcome::Decides(format!(
                    "bypasses the tunnel{} ({})",
                    self.meanwhile(to, table),
                    self.at(Key::BypassLanTraffic, entry)
                ))
            }
            (_, Some(entry), _) => StepOutcome::Continues(format!(
                "{} does not apply: the address belongs to another peer",
                self.at(Key::DisallowedIps, entry)
            )),
            _ => StepOutcome::Continues(format!("{address} is in none")),
        }
    }

    pub(super) fn allowed(&self, to: Option<Destination>, table: &[(IpNet, Class)]) -> StepOutcome {
        let list = entries(self.text, Key::AllowedIps);
        let Some(Destination { address, .. }) = to else {
            let all: Vec<_> = list
                .iter()
                .map(|entry| self.at(Key::AllowedIps, entry))
                .collect();
            return StepOutcome::Continues(match all.as_slice() {
                [] => "there are none: all packets bypass the tunnel".into(),
                all => format!(
                    "{}: {}; other destinations: {}",
                    self.in_tunnel(),
                    all.join("; "),
                    elsewhere(table)
                ),
            });
        };
        let by = most_specific(&list, address).map(|entry| self.at(Key::AllowedIps, entry));
        StepOutcome::Decides(match (class_of(table, address), by) {
            // An earlier step has explained a destination that is direct for another reason.
            (Class::Tunnel | Class::Direct, Some(by)) => match self.reason_of_refusal(address) {
                Some(why) => format!("refused at once: {why} ({by})"),
                None => format!("{} ({by})", self.in_tunnel()),
            },
            (Class::Tunnel | Class::Direct, None) => {
                format!("bypasses the tunnel: {address} is in none")
            }
            (Class::Refuse, _) => {
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                format!(
                    "refused at once: the tunnel has all addresses of the other family and none of \
                     {family}"
                )
            }
            (Class::Drop, _) => "dropped: no tunnel carries multicast and broadcast; \
                                 BypassLanTraffic lets them bypass it"
                .into(),
        })
    }

    /// Returns the reason why a packet for an address in the tunnel is refused.
    fn reason_of_refusal(&self, address: IpAddr) -> Option<String> {
        if self.is_by_mark {
            return None;
        }
        let mut own = self.file.interface.addresses.iter();
        if !own.any(|own| own.addr().is_ipv4() == address.is_ipv4()) {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            return Some(format!("no Address in the file is an {family} address"));
        }
        (self.missing_route)(address).map(|lack| lack.to_string())
    }

    /// Returns words for the effect of `KillSwitch = all` on packets that bypass the tunnel.
    pub(super) fn meanwhile(
        &self,
        to: Option<Destination>,
        table: &[(IpNet, Class)],
    ) -> &'static str {
        if self.file.transparent.kill_switch != Some(KillSwitch::All) {
            return "";
        }
        let Some(Destination { address, port }) = to else {
            return "; while its process is gone, only where selected applications bypass it too";
        };
        match (class_of(table, address), port) {
            (Class::Direct, port) if port != Some(53) => "",
            _ => "; blocked while its process is gone",
        }
    }

    /// Returns words for packets that are for the tunnel.
    pub(super) fn in_tunnel(&self) -> &'static str {
        match self.file.transparent.kill_switch {
            Some(KillSwitch::Off) => "through the tunnel; bypasses it while its process is gone",
            _ => "through the tunnel; blocked while its process is gone",
        }
    }
}

pub(super) fn local(packets: &Packets<'_>, is_redirected: bool) -> StepOutcome {
    let Some(Destination { address, port }) = packets.to else {
        return StepOutcome::Continues(
            "bypasses the tunnel: loopback, link-local without a router, DHCP, NDP".into(),
        );
    };
    if packets.is_this_host(address) {
        if is_redirected {
            let text = format!("{address} is this host, but the packet is a DNS query");
            return StepOutcome::Continues(text);
        }
        return StepOutcome::Decides(format!("bypasses the tunnel: {address} is this host"));
    }
    if is_link_local(address) {
        return match port {
            Some(53) => StepOutcome::Continues("link-local, but a DNS query".into()),
            _ if packets.is_on_link => {
                StepOutcome::Decides(format!("bypasses the tunnel: {address} is link-local"))
            }
            _ => StepOutcome::Continues(format!("{address} is link-local, but behind a router")),
        };
    }
    StepOutcome::Continues(format!("{address} is neither this host nor link-local"))
}

/// Returns words for destinations that no list names.
fn elsewhere(table: &[(IpNet, Class)]) -> &'static str {
    let refused = table.iter().find(|(_, class)| *class == Class::Refuse);
    match refused {
        Some((network, _)) if network.addr().is_ipv4() => "bypass the tunnel, IPv4 refused",
        Some(_) => "bypass the tunnel, IPv6 refused",
        None => "bypass the tunnel",
    }
}

/// Returns the most specific network of a list that contains an address.
fn most_specific<'a, 'b>(list: &'a [Entry<'b>], address: IpAddr) -> Option<&'a Entry<'b>> {
    let network = |entry: &Entry<'_>| prefix::parse(entry.text).ok();
    let fitting = list
        .iter()
        .filter(|entry| network(entry).is_some_and(|network| network.contains(&address)));
    fitting.max_by_key(|entry| network(entry).map(|network| network.prefix_len()))
}
