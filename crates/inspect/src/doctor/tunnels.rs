//! Existing tunnels, judged as by `taupe status`.

use super::Check;
use crate::advice;
use crate::is_root;
use crate::status::{self, FindingCode, StatusError};
use crate::tunnel::file_argument;

const NAME: &str = "tunnel";

pub(super) fn checks() -> Vec<Check> {
    if !is_root() {
        return vec![Check::unknown(NAME)];
    }
    let tunnels = match status::look(None) {
        Ok(status) => status.tunnels,
        Err(failure) => {
            let failure = match &failure {
                StatusError::Fault(fault) => advice::error(fault),
                failure => failure.to_string(),
            };
            let text = format!("cannot read the state of tunnels: {failure}");
            return vec![Check::warn(
                NAME,
                text,
                "see `taupe status` for each tunnel",
            )];
        }
    };
    let each = tunnels.iter().flat_map(|tunnel| {
        let name = &tunnel.interface;
        let word = file_argument(name, tunnel.file.as_deref());
        let fine = Check::ok(NAME, format!("{name} works"));
        let fine = tunnel.findings.is_empty().then_some(fine);
        let findings = tunnel.findings.iter();
        fine.into_iter().chain(findings.map(move |finding| {
            let text = format!("{name}: {}", finding.text);
            Check::warn(NAME, text, fix(finding.code, name, &word))
        }))
    });
    each.collect()
}

/// Returns advice about a finding, by its code.
fn fix(code: FindingCode, interface: &str, word: &str) -> String {
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
            format!(
                "write name servers that answer as DNS into its file, and `taupe reload {word}`"
            )
        }
        FindingCode::NamesPastTunnel => format!(
            "follow the advice in the message, or write name servers that the tunnel reaches as DNS \
             into its file, and `taupe reload {word}`"
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
            "leave this network or remove the route, or add its network to DisallowedIPs in the \
             file, and `taupe reload {word}`"
        ),
        FindingCode::NoHandshake | FindingCode::HandshakeOld | FindingCode::PeerSilent => {
            "check that the server runs and can be reached by UDP, and compare keys and Endpoint"
                .into()
        }
        _ => format!("see `taupe status {interface}`"),
    }
}
