use super::{Reach, Servers, in_hosts};
use std::net::IpAddr;
use taupe_client::EndpointName;

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    let addresses = texts.iter().map(|text| text.parse().expect("an address"));
    addresses.collect()
}

/// Returns the name servers for an outer tunnel with an IPv4 address.
fn chosen(dns: &[&str], routes: &[&str], system: &[&str]) -> Servers {
    let routes = routes.iter().map(|text| text.parse().expect("a network"));
    let reach = Reach {
        addresses: vec!["10.0.0.2/32".parse().expect("a network")],
        routes: routes.collect(),
    };
    Servers::choose(&addresses(dns), &reach, || addresses(system))
}

const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

#[test]
fn local_servers_of_the_system_are_not_asked_elsewhere() {
    for local in [
        "192.168.1.1",
        "10.1.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "100.127.255.254",
        "169.254.1.1",
        "::ffff:192.168.1.1",
    ] {
        let servers = chosen(&[], &ALL, &[local]);
        assert_eq!(servers.reachable, addresses(&[]), "{local}");
        let said = servers.warning("outer.conf", "inner").expect(local);
        let shown = local.trim_start_matches("::ffff:");
        assert!(
            said.starts_with("outer.conf has no DNS, and no name server")
                && said.contains(&format!("({shown} of this system is not used there"))
                && said.contains("only /etc/hosts")
                && said.ends_with("into outer.conf"),
            "{said}"
        );
    }
    let reach = Reach {
        addresses: vec!["fd00::2/128".parse().expect("a network")],
        routes: vec!["::/0".parse().expect("a network")],
    };
    for local in ["fd00::1", "fc00::1", "fe80::1"] {
        let servers = Servers::choose(&[], &reach, || addresses(&[local]));
        assert_eq!(servers.reachable, addresses(&[]), "{local}");
    }
}

#[test]
fn others_of_the_system_are_asked() {
    let system = ["192.168.1.1", "9.9.9.9", "100.128.0.1", "2620:fe::fe"];
    let servers = chosen(&[], &ALL, &system);
    assert_eq!(servers.reachable, addresses(&["9.9.9.9", "100.128.0.1"]));
    let said = servers.warning("outer.conf", "inner").expect("a sentence");
    assert!(
        said.contains("at 9.9.9.9, 100.128.0.1 (192.168.1.1 of this system is not used"),
        "{said}"
    );
    let servers = chosen(&[], &ALL, &system[1..]);
    assert_eq!(servers.warning("outer.conf", "inner"), None);
    let servers = chosen(&[], &["10.0.0.0/8"], &system[1..]);
    assert_eq!(servers.reachable, addresses(&[]));
    let said = servers.warning("outer.conf", "inner").expect("a sentence");
    assert!(!said.contains("local"), "{said}");
}

#[test]
fn servers_of_the_file_are_asked_where_the_tunnel_leads_to_them() {
    let servers = chosen(&["10.0.0.1", "9.9.9.9"], &["10.0.0.0/8"], &["1.1.1.1"]);
    assert_eq!(servers.reachable, addresses(&["10.0.0.1"]));
    assert_eq!(servers.warning("outer.conf", "inner"), None);
    let servers = chosen(&["9.9.9.9"], &["10.0.0.0/8"], &["10.0.0.1"]);
    assert_eq!(servers.reachable, addresses(&[]));
    let said = servers.warning("outer.conf", "inner").expect("a sentence");
    assert!(said.contains("contain no server of its DNS"), "{said}");
}

#[test]
fn hosts_has_addresses_of_names() {
    let text = b"127.0.0.1 localhost\n\
        # 192.0.2.9 vpn.example.org\n\
        192.0.2.1\tother VPN.example.org. # vpn.example.com\n\
        \xff bytes\n\
        192.0.2.2 vpn.example.organic\n\
        fe80::1%eth0 vpn.example.org\n\
        2001:db8::1   vpn.example.org";
    let found = |name| in_hosts(text, &EndpointName::new(name, 51820).expect("a name"));
    let expected = ["192.0.2.1:51820", "[2001:db8::1]:51820"];
    let expected = expected.map(|text| text.parse().expect("an address"));
    assert_eq!(found("vpn.example.org"), expected);
    assert_eq!(found("vpn.example.org."), expected);
    assert_eq!(found("vpn.example.com"), []);
    assert_eq!(found("vpn.example"), []);
}
