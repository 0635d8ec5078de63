//! Existing tunnels, judged as by `taupe status`.

use super::Check;
use crate::is_root;
use crate::status::{self, FindingCode};
use crate::tunnel::word_of;

const NAME: &str = "tunnel";

pub(super) fn checks() -> Vec<Check> {
    if !is_root() {
        return vec![Check::unknown(NAME)];
    }
    let tunnels = match status::look(None) {
        Ok(status) => status.tunnels,
        Err(failure) => {
            let text = format!("tunnels cannot be looked at: {failure}");
            return vec![Check::warn(NAME, text, "`taupe status` says more of each")];
        }
    };
    let each = tunnels.iter().flat_map(|tunnel| {
        let name = &tunnel.interface;
        let nothing = Check::ok(NAME, format!("nothing is amiss with {name}"));
        let nothing = tunnel.findings.is_empty().then_some(nothing);
        let findings = tunnel.findings.iter();
        nothing.into_iter().chain(findings.map(move |finding| {
            let text = format!("{name}: {}", finding.text);
            Check::warn(NAME, text, fix(finding.code, name))
        }))
    });
    each.collect()
}

/// Returns advice about a finding, by its code.
fn fix(code: FindingCode, interface: &str) -> String {
    let word = word_of(interface);
    match code {
        FindingCode::Down | FindingCode::ProcessEnded | FindingCode::Changing => {
            format!("`taupe up {word}`, or `taupe down {interface}`")
        }
        FindingCode::ProcessSilent => format!("`taupe down {interface}`, then `taupe up {word}`"),
        FindingCode::UplinkUnguarded => {
            "remove the filter that comes first (`bpftool net`), or use another link".into()
        }
        FindingCode::NoRoute | FindingCode::NoCarrier | FindingCode::NextHopSilent => {
            "connect this machine to a network".into()
        }
        FindingCode::KeyShared => {
            format!(
                "run `taupe down {interface}`, or give one of the two tunnels a PrivateKey of \
                 its own"
            )
        }
        FindingCode::UdpSwallowed => {
            "log in to this network in a browser, or use another network".into()
        }
        FindingCode::EndpointUnresolved => {
            format!("correct Endpoint in its file, and `taupe reload {word}`")
        }
        FindingCode::NameServersSilent => {
            format!("name servers that answer as DNS of its file, and `taupe reload {word}`")
        }
        FindingCode::NamesPastTunnel => format!(
            "name servers that the tunnel reaches as DNS of its file, and `taupe reload {word}`, or \
             what is said there"
        ),
        FindingCode::LinkChanged
        | FindingCode::MtuChanged
        | FindingCode::AddressesChanged
        | FindingCode::DnsChanged
        | FindingCode::RoutesChanged
        | FindingCode::RulesChanged
        | FindingCode::FirewallChanged
        | FindingCode::MarkChanged
        | FindingCode::SysctlChanged => format!(
            "run `taupe reload {word}`, and configure the other program so that it does not \
             change this again"
        ),
        FindingCode::BypassRoute => format!(
            "leave this network or remove the route, or have it in DisallowedIPs of its file, and \
             `taupe reload {word}`"
        ),
        FindingCode::NoHandshake | FindingCode::HandshakeOld | FindingCode::PeerSilent => {
            "see that the server runs and is reached by UDP, and compare keys and Endpoint".into()
        }
        _ => format!("`taupe status {interface}` says more"),
    }
}
