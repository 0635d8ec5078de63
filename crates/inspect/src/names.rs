//! DNS queries of selected applications: configurations that may have an unexpected effect.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};

/// The C library's list of name servers.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Returns a sentence for each name server of the tunnel that may not work as expected, and for
/// missing ones.
///
/// DNS queries are redirected to these servers after the rules about destinations. So `routed`
/// alone, the networks of the tunnel's peers, decides whether the tunnel carries them.
pub fn doubts(servers: &[IpAddr], routed: &[IpNet]) -> Vec<String> {
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    doubts_with(servers, routed, &text)
}

/// Checks whether the networks of a peer contain an address.
pub fn is_routed(routed: &[IpNet], address: IpAddr) -> bool {
    routed.iter().any(|network| network.contains(&address))
}

fn doubts_with(servers: &[IpAddr], routed: &[IpNet], resolv_conf: &str) -> Vec<String> {
    if servers.is_empty() {
        let sentence = "there is no DNS under [Interface]: whatever chosen applications ask a \
                        service of this machine (systemd-resolved, dnsmasq, nscd), it asks past \
                        the tunnel; write DNS = and the address of a name server in the tunnel";
        return vec![sentence.to_owned()];
    }
    let mut sentences = Vec::new();
    for server in servers {
        if !is_routed(routed, *server) {
            sentences.push(format!(
                "{server} in DNS is not in the tunnel, through which it is asked; add it to \
                 AllowedIPs, or take it out of DisallowedIPs"
            ));
        }
    }
    for (family, is_ipv4) in [("IPv4", true), ("IPv6", false)] {
        if servers.iter().any(|server| server.is_ipv4() == is_ipv4) {
            continue;
        }
        let mut asked = asked(resolv_conf);
        asked.retain(|server| server.is_ipv4() == is_ipv4);
        if let Some(server) = asked.first() {
            sentences.push(format!(
                "no server in DNS has an {family} address: chosen applications get no answer \
                 where {RESOLV_CONF} has them ask {server}; add one to DNS"
            ));
        }
    }
    sentences
}

/// Returns a sentence if a resolver on this machine sends applications' queries past a tunnel
/// without name servers of its own.
pub fn way_past() -> Option<String> {
    let local = system_servers().into_iter().find(IpAddr::is_loopback)?;
    Some(format!(
        "names are looked up by this machine's resolver at {local}, which asks past the tunnel, \
         for chosen applications too; write DNS = and the address of a name server in the tunnel \
         into its file"
    ))
}

/// Returns the servers to which the C library sends queries on this system.
pub fn system_servers() -> Vec<IpAddr> {
    asked(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

/// Returns the servers in a `resolv.conf(5)`. Without any, the C library asks this machine.
fn asked(resolv_conf: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let server = words.next().filter(|word| *word == "nameserver");
        // An interface may follow the address, separated by a percent sign.
        let address = server.and_then(|_| words.next())?.split('%').next()?;
        address.parse().ok()
    };
    let servers: Vec<IpAddr> = resolv_conf.lines().filter_map(server).collect();
    match servers.is_empty() {
        true => vec![Ipv4Addr::LOCALHOST.into()],
        false => servers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_uapi::networks::subtract;
    use taupe_uapi::prefix;

    fn doubts_of(servers: &[&str], resolv_conf: &str) -> Vec<String> {
        let servers: Vec<IpAddr> = servers.iter().map(|text| text.parse().unwrap()).collect();
        let networks = |list: &[&str]| -> Vec<IpNet> {
            list.iter()
                .map(|text| prefix::parse(text).unwrap())
                .collect()
        };
        let routed = subtract(
            &networks(&["10.0.0.0/8", "fd00::/8"]),
            &networks(&["10.9.0.0/16"]),
        );
        doubts_with(&servers, &routed, resolv_conf)
    }

    #[test]
    fn what_may_surprise_is_said() {
        let stub = "# a stub\nnameserver 127.0.0.53\noptions edns0\nsearch lan\n";
        assert_eq!(doubts_of(&["10.0.0.1"], stub), [""; 0]);
        assert_eq!(doubts_of(&["10.0.0.1"], ""), [""; 0]);
        let said = |servers: &[&str], resolv_conf: &str, part: &str| {
            let said = doubts_of(servers, resolv_conf);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(part), "{said:?}");
        };
        said(&[], stub, "no DNS");
        said(&["fd00::1"], stub, "ask 127.0.0.53");
        said(&["fd00::1"], "search lan", "ask 127.0.0.1");
        said(
            &["10.0.0.1"],
            "nameserver 10.0.0.2\nnameserver fe80::1%eth0",
            "ask fe80::1;",
        );
        said(&["9.9.9.9"], stub, "9.9.9.9 in DNS is not in the tunnel");
        said(&["10.9.0.1"], stub, "10.9.0.1 in DNS is not in the tunnel");
    }
}
