//! Existing tunnels, judged as by `taupe status`.

use super::Check;
use crate::is_root;
use crate::status;
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
fn fix(code: &str, interface: &str) -> String {
    let word = word_of(interface);
    match code {
        "down" | "process-ended" | "changing" => {
            format!("`taupe up {word}`, or `taupe down {interface}`")
        }
        "process-silent" => format!("`taupe down {interface}`, then `taupe up {word}`"),
        "uplink-unguarded" => {
            "remove the filter that comes first (`bpftool net`), or use another link".into()
        }
        "no-route" | "no-carrier" | "next-hop-silent" => "connect this machine to a network".into(),
        "key-shared" => {
            format!(
                "run `taupe down {interface}`, or give one of the two tunnels a PrivateKey of \
                 its own"
            )
        }
        "udp-swallowed" => "log in to this network in a browser, or use another network".into(),
        "endpoint-unresolved" => {
            format!("correct Endpoint in its file, and `taupe reload {word}`")
        }
        "name-servers-silent" => {
            format!("name servers that answer as DNS of its file, and `taupe reload {word}`")
        }
        "names-past-tunnel" => format!(
            "name servers that the tunnel reaches as DNS of its file, and `taupe reload {word}`, or \
             what is said there"
        ),
        "link-changed" | "mtu-changed" | "addresses-changed" | "dns-changed" | "routes-changed"
        | "rules-changed" | "firewall-changed" | "mark-changed" | "sysctl-changed" => format!(
            "run `taupe reload {word}`, and configure the other program so that it does not \
             change this again"
        ),
        "bypass-route" => format!(
            "leave this network or remove the route, or have it in DisallowedIPs of its file, and \
             `taupe reload {word}`"
        ),
        "no-handshake" | "handshake-old" | "peer-silent" => {
            "see that the server runs and is reached by UDP, and compare keys and Endpoint".into()
        }
        _ => format!("`taupe status {interface}` says more"),
    }
}
