//! Formatting differences as sentences.

use std::fmt;

use ipnet::IpNet;
use taupe_os_linux::netlink::Route;

use crate::bypass::{Bypass, Listed};
use crate::change::{Change, VALID_MARK};
use crate::comparison::{Deviation, Drift};
use crate::setting::Setting;

/// A difference between the changes of `up` and the present system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The settings concerned.
    pub setting: Setting,
    /// The change, as a sentence.
    pub text: String,
}

fn setting_of(drift: &Drift) -> Option<Setting> {
    match drift.deviation {
        Deviation::Down => Some(Setting::Link),
        Deviation::Overtaken(_) => Some(Setting::Bypass),
        _ => drift.change.step().setting,
    }
}

/// Returns one finding for each kind of the tunnel's settings that has changed. [`bypass_finding`]
/// reports foreign routes that have precedence over the tunnel's.
pub(crate) fn findings(interface: &str, drifts: &[Drift]) -> Vec<Finding> {
    let is_down = drifts
        .iter()
        .any(|drift| drift.deviation == Deviation::Down);
    // An interface that is down has lost these because of that.
    let is_consequence =
        |change: &Change| is_down && matches!(change, Change::Address(_) | Change::Route { .. });
    let finding = |setting: Setting| {
        let of_kind = drifts
            .iter()
            .filter(|drift| setting_of(drift) == Some(setting) && !is_consequence(&drift.change));
        let items: Vec<&Drift> = of_kind.collect();
        let text = sentence(interface, setting, &items)?;
        Some(Finding { setting, text })
    };
    Setting::OWN.into_iter().filter_map(finding).collect()
}

/// Returns the finding about foreign routes that bypass the tunnel, if there are any.
pub(crate) fn bypass_finding(interface: &str, bypasses: &[Bypass]) -> Option<Finding> {
    let listed = Listed(bypasses);
    let text = format!(
        "since {interface} came up, another program, a DHCP server or a router has added {listed}: \
         traffic to these destinations bypasses the tunnel"
    );
    (!bypasses.is_empty()).then_some(Finding {
        setting: Setting::Bypass,
        text,
    })
}

fn sentence(interface: &str, setting: Setting, drifts: &[&Drift]) -> Option<String> {
    let first = drifts.first()?;
    let listed = List { interface, drifts };
    Some(match (setting, &first.change, &first.deviation) {
        (Setting::Link, ..) => format!("{interface} has been set down: nothing gets through it"),
        (Setting::Mtu, Change::Up { mtu }, Deviation::Mtu(found)) => {
            format!("the MTU of {interface} is {found} instead of {mtu}")
        }
        (Setting::Addresses, ..) => format!("{interface} has lost {listed}"),
        (Setting::NameServers, _, Deviation::NameServers(deviation)) => deviation.to_string(),
        (Setting::Routes | Setting::Rules, ..) => {
            format!("another program has removed {listed}: packets may leave outside the tunnel")
        }
        (Setting::Firewall, _, Deviation::Altered) => {
            format!("another program has changed {listed}")
        }
        (Setting::Firewall, ..) => {
            format!("another program has removed or emptied {listed}")
        }
        (Setting::Mark, _, Deviation::Mark(mark)) => format!(
            "the fwmark of {interface} is now {mark:#x}: its own datagrams may be routed into the \
             tunnel"
        ),
        (Setting::Sysctl, _, Deviation::Setting(value)) => format!(
            "{VALID_MARK} is {value} instead of 1: strict reverse-path filters may drop the peers' \
             datagrams"
        ),
        _ => format!("{listed} no longer holds"),
    })
}

/// Formats the first few of several changes.
struct List<'a> {
    interface: &'a str,
    drifts: &'a [&'a Drift],
}

/// Number of changes to name.
const NAMED: usize = 3;

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, drift) in self.drifts.iter().take(NAMED).enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            write_name(self.interface, &drift.change, f)?;
        }
        match self.drifts.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

fn write_name(interface: &str, change: &Change, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match change {
        Change::Address(network) => write!(f, "the address {network}"),
        Change::Route { destination, table } => write_route("", destination, *table, f),
        Change::Unreachable { destination, table } => {
            write_route("unreachable ", destination, *table, f)
        }
        Change::Special {
            kind,
            destination,
            table,
        } => write_route(&format!("{kind} "), destination, *table, f),
        Change::Rule(_) => {
            let command = change.command(interface).to_string();
            let rule = command.replace(" rule add ", " rule ");
            write!(f, "the rule `{rule}`")
        }
        Change::Firewall { family, .. } => {
            let family = crate::change::nft(*family);
            write!(f, "the nftables table {family} wg-quick-{interface}")
        }
        other => write!(f, "`{}`", other.command(interface)),
    }
}

fn write_route(
    kind: &str,
    destination: &IpNet,
    table: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    write!(f, "the {kind}route {destination}")?;
    match table {
        Route::MAIN_TABLE => Ok(()),
        table => write!(f, " of table {table}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: &str, deviation: Deviation) -> Drift {
        Drift {
            number: 0,
            change: Change::Route {
                destination: destination.parse().expect("a network"),
                table: 7,
            },
            deviation,
        }
    }

    fn texts(drifts: &[Drift]) -> Vec<String> {
        let findings = findings("wg0", drifts).into_iter();
        findings.map(|finding| finding.text).collect()
    }

    #[test]
    fn many_are_one_finding() {
        let all: Vec<Drift> = (0..9)
            .map(|number| route(&format!("10.{number}.0.0/16"), Deviation::Removed))
            .collect();
        assert_eq!(
            texts(&all),
            [
                "another program has removed the route 10.0.0.0/16 of table 7, the route 10.1.0.0/16 of table 7, the route \
                 10.2.0.0/16 of table 7 and 6 more: packets may leave outside the tunnel"
            ]
        );
    }

    #[test]
    fn bypasses_are_named() {
        let bypass = Bypass {
            destination: "0.0.0.0/1".parse().expect("a network"),
            gateway: Some("192.0.2.2".parse().expect("an address")),
            interface: "eth0".to_owned(),
        };
        let finding = bypass_finding("wg0", &[bypass]).expect("a finding");
        assert_eq!(finding.setting, Setting::Bypass);
        assert_eq!(
            finding.text,
            "since wg0 came up, another program, a DHCP server or a router has added the route \
             `0.0.0.0/1 via 192.0.2.2 dev eth0`: traffic to these destinations bypasses the tunnel"
        );
        assert_eq!(bypass_finding("wg0", &[]), None);
    }

    #[test]
    fn what_an_interface_that_is_down_has_lost_is_not_told() {
        let down = Drift {
            number: 1,
            change: Change::Up { mtu: 1420 },
            deviation: Deviation::Down,
        };
        let all = [route("10.0.0.0/8", Deviation::Removed), down];
        assert_eq!(
            texts(&all),
            ["wg0 has been set down: nothing gets through it"]
        );
    }
}
