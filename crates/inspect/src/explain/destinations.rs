//! The steps about the destination: this host and its link, `DisallowedIPs`, `AllowedIPs`.

use super::steps::{Explanation, Question, Verdict};
use crate::destination::Destination;
use ipnet::IpNet;
use std::net::IpAddr;
use taupe_config::destinations::{Class, class_of, is_link_local, is_local};
use taupe_config::file::edit::{Entry, entries};
use taupe_config::file::{InterfaceAddress, Key, KillSwitch};
use taupe_uapi::prefix;

impl Explanation<'_> {
    pub(super) fn past(&self, to: Option<Destination>, table: &[(IpNet, Class)]) -> Verdict {
        let list = entries(self.text, Key::DisallowedIps);
        let lan = entries(self.text, Key::BypassLanTraffic);
        let lan = lan.first().filter(|_| self.bypasses_lan());
        let Some(Destination { address, .. }) = to else {
            let all = list.iter().map(|entry| self.at(Key::DisallowedIps, entry));
            let lan = lan.map(|entry| self.at(Key::BypassLanTraffic, entry));
            let all: Vec<_> = all.chain(lan).collect();
            return Verdict::Passes(match all.as_slice() {
                [] => "there are none".into(),
                all => format!("past the tunnel: {}", all.join("; ")),
            });
        };
        let by = longest(&list, address);
        match (class_of(table, address), by, lan) {
            (Class::Direct, Some(entry), _) => Verdict::Decides(format!(
                "past the tunnel{} ({})",
                self.meanwhile(to, table),
                self.at(Key::DisallowedIps, entry)
            )),
            (Class::Direct, None, Some(entry)) if is_local(address) => Verdict::Decides(format!(
                "past the tunnel{} ({})",
                self.meanwhile(to, table),
                self.at(Key::BypassLanTraffic, entry)
            )),
            (_, Some(entry), _) => Verdict::Passes(format!(
                "{} does not count: another peer has it",
                self.at(Key::DisallowedIps, entry)
            )),
            _ => Verdict::Passes(format!("{address} is in none")),
        }
    }

    pub(super) fn allowed(&self, to: Option<Destination>, table: &[(IpNet, Class)]) -> Verdict {
        let list = entries(self.text, Key::AllowedIps);
        let Some(Destination { address, .. }) = to else {
            let all: Vec<_> = list
                .iter()
                .map(|entry| self.at(Key::AllowedIps, entry))
                .collect();
            return Verdict::Passes(match all.as_slice() {
                [] => "there are none: all goes past the tunnel".into(),
                all => format!(
                    "{}: {}; other destinations: {}",
                    self.inside(),
                    all.join("; "),
                    others(table)
                ),
            });
        };
        let by = longest(&list, address).map(|entry| self.at(Key::AllowedIps, entry));
        Verdict::Decides(match (class_of(table, address), by) {
            // An earlier step has explained a destination that is direct for another reason.
            (Class::Tunnel | Class::Direct, Some(by)) => match self.refusal(address) {
                Some(why) => format!("refused at once: {why} ({by})"),
                None => format!("{} ({by})", self.inside()),
            },
            (Class::Tunnel | Class::Direct, None) => {
                format!("past the tunnel: {address} is in none")
            }
            (Class::Refuse, _) => {
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                format!(
                    "refused at once: the tunnel has all of the other family and nothing of {family}"
                )
            }
            (Class::Drop, _) => "dropped: multicast and broadcast are past any tunnel, and only \
                            BypassLanTraffic lets them out"
                .into(),
        })
    }

    /// Returns the reason why a packet for an address in the tunnel is refused.
    fn refusal(&self, address: IpAddr) -> Option<String> {
        if self.by_mark {
            return None;
        }
        let own = self.file.interface.addresses.iter();
        let is_of_family = |own: &InterfaceAddress| own.address.is_ipv4() == address.is_ipv4();
        if !own.copied().any(|own| is_of_family(&own)) {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            return Some(format!("no Address in the file is an {family} address"));
        }
        (self.lack_of_route)(address).map(|lack| lack.to_string())
    }

    /// Returns words for other applications' packets while the tunnel is down.
    pub(super) fn meanwhile(
        &self,
        to: Option<Destination>,
        table: &[(IpNet, Class)],
    ) -> &'static str {
        if self.file.transparent.kill_switch != Some(KillSwitch::All) {
            return "";
        }
        let Some(Destination { address, port }) = to else {
            return ", but while its process is gone only where a chosen one's packets go past it";
        };
        match (class_of(table, address), port) {
            (Class::Direct, port) if port != Some(53) => "",
            _ => ", or nowhere while its process is gone",
        }
    }

    /// Returns words for packets that are for the tunnel.
    pub(super) fn inside(&self) -> &'static str {
        match self.file.transparent.kill_switch {
            Some(KillSwitch::Off) => "through the tunnel, or past it while its process is gone",
            _ => "through the tunnel, or nowhere while its process is gone",
        }
    }
}

pub(super) fn host(question: &Question<'_>, is_asked_instead: bool) -> Verdict {
    let Some(Destination { address, port }) = question.to else {
        return Verdict::Passes(
            "past the tunnel: loopback, link-local without a router, DHCP, NDP".into(),
        );
    };
    if question.is_this_host(address) {
        if is_asked_instead {
            let text = format!("{address} is this host, but it is a question for a name");
            return Verdict::Passes(text);
        }
        return Verdict::Decides(format!("past the tunnel: {address} is this host"));
    }
    if is_link_local(address) {
        return match port {
            Some(53) => Verdict::Passes("link-local, but a question for a name".into()),
            _ if question.is_neighbour => {
                Verdict::Decides(format!("past the tunnel: {address} is link-local"))
            }
            _ => Verdict::Passes(format!("{address} is link-local, but behind a router")),
        };
    }
    Verdict::Passes(format!("{address} is neither"))
}

/// Returns words for destinations that no list names.
fn others(table: &[(IpNet, Class)]) -> &'static str {
    let refused = table.iter().find(|(_, class)| *class == Class::Refuse);
    match refused {
        Some((network, _)) if network.addr().is_ipv4() => "past the tunnel, IPv4 refused",
        Some(_) => "past the tunnel, IPv6 refused",
        None => "past the tunnel",
    }
}

/// Returns the most specific network of a list that contains an address.
fn longest<'a, 'b>(list: &'a [Entry<'b>], address: IpAddr) -> Option<&'a Entry<'b>> {
    let network = |entry: &Entry<'_>| prefix::parse(entry.text).ok();
    let fitting = list
        .iter()
        .filter(|entry| network(entry).is_some_and(|network| network.contains(&address)));
    fitting.max_by_key(|entry| network(entry).map(|network| network.prefix_len()))
}
