//! Network settings that another program has changed since `taupe up`.

use super::code::FindingCode;
use super::findings::Finding;
use taupe_adapter::{Journals, Place, Setting, verify};

/// Compares the settings that `up` made with the system's. `word` is the argument by which
/// `taupe reload` finds the tunnel.
pub(super) fn findings(interface: &str, word: &str) -> Vec<Finding> {
    let findings = match verify(interface) {
        Ok(findings) => findings.unwrap_or_default(),
        Err(error) => {
            let text = format!("its network settings cannot be compared: {error}");
            return vec![Finding::new(FindingCode::SettingsUnknown, text)];
        }
    };
    let findings = findings
        .iter()
        .map(|finding| Finding::new(code(finding.setting), with_advice(finding, word)));
    findings.collect()
}

/// Adds advice to a finding. `word` is the argument by which `taupe reload` finds the tunnel.
#[must_use]
pub fn with_advice(finding: &taupe_adapter::Finding, word: &str) -> String {
    let text = &finding.text;
    match finding.setting {
        Setting::Bypass => format!(
            "{text}; leave this network, or remove the route (`ip route delete`); to keep it, add \
             its network to DisallowedIPs in the file and run `taupe reload {word}`"
        ),
        _ => format!("{text}; `taupe reload {word}` restores it"),
    }
}

/// Returns a note if the interface was renamed or moved to another namespace.
pub(super) fn relocation_note(journals: &Journals, interface: &str) -> Option<String> {
    match journals.place(interface)? {
        Place::Here => None,
        Place::Renamed(name) => Some(format!("its interface has been renamed to {name}")),
        Place::Elsewhere => Some(
            "its interface was moved to another network namespace: Taupe does not compare \
             addresses and routes there"
                .to_owned(),
        ),
    }
}

/// Returns the code of a setting in JSON.
const fn code(setting: Setting) -> FindingCode {
    match setting {
        Setting::Link => FindingCode::LinkChanged,
        Setting::Mtu => FindingCode::MtuChanged,
        Setting::Addresses => FindingCode::AddressesChanged,
        Setting::NameServers => FindingCode::DnsChanged,
        Setting::Routes => FindingCode::RoutesChanged,
        Setting::Rules => FindingCode::RulesChanged,
        Setting::Firewall => FindingCode::FirewallChanged,
        Setting::Mark => FindingCode::MarkChanged,
        Setting::Sysctl => FindingCode::SysctlChanged,
        Setting::Bypass => FindingCode::BypassRoute,
    }
}
