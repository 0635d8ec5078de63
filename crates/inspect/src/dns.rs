//! DNS queries of selected applications: warnings about configurations with unexpected effects.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr};

/// The C library's list of name servers.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Returns a warning for each name server of the tunnel that may not work as expected, and for
/// missing ones.
///
/// DNS queries are redirected to these servers after the rules about destinations. So `routed`
/// alone, the networks of the tunnel's peers, decides whether the tunnel carries them.
#[must_use]
pub fn warnings(servers: &[IpAddr], routed: &[IpNet]) -> Vec<String> {
    let text = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    warnings_with(servers, routed, &text)
}

/// Checks whether the networks of a peer contain an address.
pub(crate) fn is_routed(routed: &[IpNet], address: IpAddr) -> bool {
    routed.iter().any(|network| network.contains(&address))
}

fn warnings_with(servers: &[IpAddr], routed: &[IpNet], resolv_conf: &str) -> Vec<String> {
    if servers.is_empty() {
        let sentence = "there is no DNS under [Interface]: if selected applications ask a service \
                        of this machine for a name (systemd-resolved, dnsmasq, nscd), its query \
                        bypasses the tunnel; write DNS = and the address of a name server in the \
                        tunnel";
        return vec![sentence.to_owned()];
    }
    let mut sentences = Vec::new();
    for server in servers {
        if !is_routed(routed, *server) {
            sentences.push(format!(
                "{server} in DNS is not in the tunnel, but queries to it go through the tunnel; \
                 add it to AllowedIPs, or remove it from DisallowedIPs"
            ));
        }
    }
    for (family, is_ipv4) in [("IPv4", true), ("IPv6", false)] {
        if servers.iter().any(|server| server.is_ipv4() == is_ipv4) {
            continue;
        }
        let mut nameservers = nameservers(resolv_conf);
        nameservers.retain(|server| server.is_ipv4() == is_ipv4);
        if let Some(server) = nameservers.first() {
            sentences.push(format!(
                "no server in DNS has an {family} address: queries of selected applications to \
                 {server} in {RESOLV_CONF} get no answer; add an {family} server to DNS"
            ));
        }
    }
    sentences
}

/// Returns a warning if a resolver on this machine sends applications' queries past a tunnel
/// without name servers of its own.
#[must_use]
pub fn local_resolver_warning() -> Option<String> {
    let local = system_servers().into_iter().find(IpAddr::is_loopback)?;
    Some(format!(
        "this machine's resolver at {local} looks up names, also for selected applications, and \
         its queries bypass the tunnel; write DNS = and the address of a name server in the tunnel \
         into the file"
    ))
}

/// Returns the servers to which the C library sends queries on this system.
pub(crate) fn system_servers() -> Vec<IpAddr> {
    nameservers(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

/// Returns the servers in a `resolv.conf(5)`. Without any, the C library asks this machine.
pub(crate) fn nameservers(resolv_conf: &str) -> Vec<IpAddr> {
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

    fn warnings_of(servers: &[&str], resolv_conf: &str) -> Vec<String> {
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
        warnings_with(&servers, &routed, resolv_conf)
    }

    #[test]
    fn servers_that_do_not_work_as_expected_are_warned_of() {
        let stub = "# a stub\nnameserver 127.0.0.53\noptions edns0\nsearch lan\n";
        assert_eq!(warnings_of(&["10.0.0.1"], stub), [""; 0]);
        assert_eq!(warnings_of(&["10.0.0.1"], ""), [""; 0]);
        let expect = |servers: &[&str], resolv_conf: &str, part: &str| {
            let found = warnings_of(servers, resolv_conf);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(part), "{found:?}");
        };
        expect(&[], stub, "no DNS");
        expect(&["fd00::1"], stub, "to 127.0.0.53 in");
        expect(&["fd00::1"], "search lan", "to 127.0.0.1 in");
        expect(
            &["10.0.0.1"],
            "nameserver 10.0.0.2\nnameserver fe80::1%eth0",
            "to fe80::1 in",
        );
        expect(&["9.9.9.9"], stub, "9.9.9.9 in DNS is not in the tunnel");
        expect(&["10.9.0.1"], stub, "10.9.0.1 in DNS is not in the tunnel");
    }
}
