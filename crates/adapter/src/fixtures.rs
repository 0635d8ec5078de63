//! A file and a host for tests.

use ipnet::IpNet;
use taupe_config::file::{Dialect, File, parse};
use taupe_os_linux::netlink::{Address, Link, Medium, Route, Rule};
use taupe_packet::ip::Family;

use crate::Snapshot;

/// Returns a file with these lines in `[Interface]` and `[Peer]`.
pub(crate) fn file(interface: &str, peer: &str) -> File {
    parsed(interface, peer, Dialect::WgQuick)
}

/// Like [`file`], with Taupe's own keys.
pub(crate) fn taupe_file(interface: &str, peer: &str) -> File {
    parsed(interface, peer, Dialect::Taupe)
}

fn parsed(interface: &str, peer: &str, dialect: Dialect) -> File {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{interface}\n\
         [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n{peer}\n"
    );
    let parsed = parse(text.as_bytes(), dialect);
    for diagnostic in &parsed.diagnostics {
        println!("{}: {}", diagnostic.line, diagnostic.kind);
    }
    parsed.file.expect("a file in order")
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().expect(text)
}

fn rule(family: Family, priority: u32, table: u32) -> Rule {
    Rule {
        family,
        priority,
        table,
        source: None,
        mark: None,
        invert: false,
        suppress_prefix_length: None,
        protocol: 2,
        is_incomplete: false,
    }
}

pub(crate) fn route(destination: &str, interface: u32) -> Route {
    Route::by_interface(net(destination), interface, Route::MAIN_TABLE)
}

/// A host with `eth0`, the addresses 192.168.1.7/24 and 2001:db8:9::7/64, and a default route of
/// each family.
pub(crate) fn host() -> Snapshot {
    let address = |network| Address {
        interface: 2,
        network: net(network),
    };
    let link = |index, name: &str, mtu| Link {
        index,
        name: name.to_owned(),
        up: true,
        mtu,
        kind: None,
        medium: Medium::Other(0),
        controller: None,
    };
    let gateway = |destination, gateway: &str| Route {
        gateway: Some(gateway.parse().expect(gateway)),
        ..route(destination, 2)
    };
    Snapshot {
        links: vec![link(1, "lo", 65536), link(2, "eth0", 1500)],
        addresses: vec![
            Address {
                interface: 1,
                network: net("127.0.0.1/8"),
            },
            address("192.168.1.7/24"),
            address("2001:db8:9::7/64"),
            address("fe80::7/64"),
        ],
        routes: vec![
            gateway("0.0.0.0/0", "192.168.1.1"),
            route("192.168.1.0/24", 2),
            gateway("::/0", "2001:db8:9::1"),
            route("2001:db8:9::/64", 2),
            route("fe80::/64", 2),
        ],
        rules: vec![
            rule(Family::V4, 0, 255),
            rule(Family::V4, 32766, 254),
            rule(Family::V4, 32767, 253),
            rule(Family::V6, 0, 255),
            rule(Family::V6, 32766, 254),
        ],
        endpoints: vec!["203.0.113.9:51820".parse().expect("endpoint")],
        path_mtus: vec![1500],
        ipv6: true,
        ipv6_on_interfaces: true,
        valid_mark: Some(0),
        ..Snapshot::default()
    }
}
