//! Files and machines for tests.
//!
//! The machines are in the folder `fixtures`: the output of `ifconfig`, followed by that of
//! `netstat -rn`. Each file says from which sources it was constructed.

use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::file::{Dialect, File, parse};
use taupe_os_bsd::System;
use taupe_os_bsd::layout::{RTF_STATIC, RTF_UP};
use taupe_os_bsd::routing::{Interface, InterfaceAddress, NextHop, Route, RouteEntry};
use taupe_os_bsd::socket_address::ZonedAddress;
use taupe_uapi::network_set::host;

use crate::snapshot::Snapshot;

const FREEBSD_14: &str = include_str!("fixtures/freebsd-14-home.txt");
const FREEBSD_15: &str = include_str!("fixtures/freebsd-15-server.txt");
const MACOS_13: &str = include_str!("fixtures/macos-13-home.txt");

/// The address of the peer in all files.
pub(crate) const ENDPOINT: &str = "198.51.100.9";

/// Returns a file with these lines in `[Interface]` and `[Peer]`.
pub(crate) fn file(interface: &str, peer: &str) -> File {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{interface}\n\
         [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
         Endpoint = {ENDPOINT}:51820\n{peer}\n"
    );
    let parsed = parse(text.as_bytes(), Dialect::Taupe);
    for diagnostic in &parsed.diagnostics {
        println!("{}: {}", diagnostic.line, diagnostic.kind);
    }
    parsed.file.expect("a file in order")
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().expect(text)
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().expect(text)
}

/// The machine with FreeBSD 14 in a home network.
pub(crate) fn freebsd_home() -> Snapshot {
    machine(System::FreeBsd, FREEBSD_14)
}

/// The machine with FreeBSD 15 at a provider.
pub(crate) fn freebsd_server() -> Snapshot {
    machine(System::FreeBsd, FREEBSD_15)
}

/// The Mac in a home network.
pub(crate) fn mac_home() -> Snapshot {
    machine(System::MacOs, MACOS_13)
}

/// All machines.
pub(crate) fn machines() -> [Snapshot; 3] {
    [freebsd_home(), freebsd_server(), mac_home()]
}

fn machine(system: System, text: &str) -> Snapshot {
    let mut snapshot = Snapshot {
        endpoints: vec![address(ENDPOINT)],
        resolvconf: true,
        ..Snapshot::empty(system)
    };
    let (interfaces, routes) = text.split_once("Routing tables").expect("routes");
    for line in interfaces.lines().filter(|line| !line.starts_with('#')) {
        add_interface_line(&mut snapshot, line);
    }
    for line in routes.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [destination, gateway, flags, interface, ..] = words.as_slice()
            && *destination != "Destination"
        {
            let is_v6 = gateway.contains(':') && !flags.contains('L') || destination.contains(':');
            let is_v6 = is_v6 || routes_of_v6(routes, line);
            let route = route_line(&snapshot, (destination, gateway, flags, interface), is_v6);
            snapshot.routes.extend(route);
        }
    }
    snapshot
}

/// Returns true if a line is in the second of the tables.
fn routes_of_v6(routes: &str, line: &str) -> bool {
    let (_, second) = routes.split_once("Internet6").expect("two tables");
    second.contains(line)
}

/// Adds a line of ifconfig(8).
fn add_interface_line(snapshot: &mut Snapshot, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number_after = |word: &str| {
        let place = words.iter().position(|it| *it == word)?;
        words.get(place + 1).copied()
    };
    match words.as_slice() {
        [name, flags, ..] if flags.starts_with("flags=") => {
            let flags = flags
                .strip_prefix("flags=")
                .and_then(|it| it.split('<').next());
            snapshot.interfaces.push(Interface {
                index: u16::try_from(snapshot.interfaces.len() + 1).unwrap(),
                name: Some(name.trim_end_matches(':').to_owned()),
                mtu: number_after("mtu").unwrap().parse().unwrap(),
                medium: 6,
                ethernet: None,
                flags: u32::from_str_radix(flags.unwrap(), 16).unwrap(),
            });
        }
        [family @ ("inet" | "inet6"), own, ..] => {
            let own: IpAddr = own.split('%').next().unwrap().parse().unwrap();
            let length = match *family {
                "inet" => {
                    let mask = number_after("netmask").unwrap().trim_start_matches("0x");
                    u32::from_str_radix(mask, 16).unwrap().count_ones() as u8
                }
                _ => number_after("prefixlen").unwrap().parse().unwrap(),
            };
            snapshot.addresses.push(InterfaceAddress {
                interface: snapshot.interfaces.last().unwrap().index,
                network: IpNet::new(own, length).unwrap(),
                peer: None,
            });
        }
        _ => {}
    }
}

/// Returns a line of netstat(1) as the kernel has it.
fn route_line(
    snapshot: &Snapshot,
    (destination, gateway, flags, interface): (&str, &str, &str, &str),
    is_v6: bool,
) -> Option<RouteEntry> {
    let index_of = |name: &str| {
        let mut interfaces = snapshot.interfaces.iter();
        let found = interfaces.find(|it| it.name.as_deref() == Some(name));
        found.map_or(0, |it| it.index)
    };
    let interface = index_of(interface);
    let (destination, zone) = destination_word(destination, is_v6);
    let zone = zone.map_or(0, |name| index_of(&name));
    let next_hop = if flags.contains('R') {
        NextHop::Reject
    } else if flags.contains('B') {
        NextHop::Blackhole
    } else if flags.contains('G') {
        let (ip, zone) = gateway.split_once('%').unwrap_or((gateway, ""));
        NextHop::Gateway(ZonedAddress {
            ip: ip.parse().unwrap(),
            zone: index_of(zone),
        })
    } else {
        NextHop::Interface(interface)
    };
    let bits = flags.chars().map(|flag| match flag {
        'U' => 0x1,
        'G' => 0x2,
        'H' => 0x4,
        'L' => 0x400,
        'S' => 0x800,
        'W' => 0x2_0000,
        'I' => 0x0100_0000,
        _ => 0,
    });
    Some(RouteEntry {
        route: Route {
            destination,
            zone,
            next_hop,
            scope: flags.contains('I').then_some(interface),
        },
        interface,
        source: None,
        mtu: None,
        flags: bits.sum(),
    })
}

/// Returns a destination as netstat(1) abbreviates it, and the name of its zone.
fn destination_word(word: &str, is_v6: bool) -> (IpNet, Option<String>) {
    if word == "default" {
        return (net(if is_v6 { "::/0" } else { "0.0.0.0/0" }), None);
    }
    let (address, length) = word
        .split_once('/')
        .map_or((word, None), |(a, b)| (a, Some(b)));
    let (address, zone) = address
        .split_once('%')
        .map_or((address, None), |(a, b)| (a, Some(b)));
    let zone = zone.map(str::to_owned);
    let length: Option<u8> = length.map(|it| it.parse().unwrap());
    if is_v6 {
        let address: IpAddr = address.parse().unwrap();
        let length = length.unwrap_or(128);
        return (IpNet::new(address, length).unwrap().trunc(), zone);
    }
    // Without a length, macOS leaves zeros at the end of a classful network out.
    let octets = address.split('.').count();
    let full = format!("{address}{}", ".0".repeat(4 - octets));
    let implied = u8::try_from(octets * 8).unwrap();
    let network = IpNet::new(full.parse().unwrap(), length.unwrap_or(implied));
    (network.unwrap().trunc(), zone)
}

/// Returns a route that another program has added.
pub(crate) fn foreign(destination: &str, next_hop: NextHop, interface: u16) -> RouteEntry {
    added(net(destination), next_hop, interface)
}

/// Returns the entry of a route that a program has added.
pub(crate) fn added(destination: IpNet, next_hop: NextHop, interface: u16) -> RouteEntry {
    RouteEntry {
        route: Route {
            destination,
            zone: 0,
            next_hop,
            scope: None,
        },
        interface,
        source: None,
        mtu: None,
        flags: RTF_UP | RTF_STATIC,
    }
}

/// Returns a router as next hop.
pub(crate) fn by(router: &str) -> NextHop {
    NextHop::Gateway(address(router).into())
}

#[test]
fn the_fixtures_are_parsed() {
    let home = freebsd_home();
    assert_eq!((home.interfaces.len(), home.addresses.len()), (2, 6));
    assert_eq!(home.routes.len(), 14);
    let default = home.routes.first().unwrap();
    assert_eq!(default.route.next_hop, by("192.168.1.1"));
    let server = freebsd_server();
    assert!(
        server
            .addresses
            .iter()
            .any(|it| it.network == host(address("203.0.113.77")))
    );
    let mac = mac_home();
    let scoped = mac.routes.iter().filter(|it| it.route.scope.is_some());
    assert_eq!(scoped.count(), 6);
    assert!(
        mac.routes
            .iter()
            .any(|it| it.route.destination == net("172.20.10.0/28"))
    );
}
