//! Entry point for fuzzers: answers of a kernel that sends any bytes.
//!
//! The crate `netlink-bindings` finds the attributes. This module checks the headers of messages, and
//! the conversion of attributes to the types of [`netlink`](super).

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_bindings::{
    rt_addr, rt_route, rt_rule,
    traits::NetlinkRequest as _,
    utils::{push_header, push_header_type},
};
use taupe_packet::ip::Family;

use super::{
    Address, Firewall, Hook, InterfaceMatch, Route, RouteKind, Rule, address, filter, firewall,
    generic, link, neighbour, route, rule, sock_diag, socket, tun_link,
};

/// The table that listed rules and chains must be in.
const TABLE: &CStr = c"wg-quick-tun7";

/// The link that listed filters must be at.
const LINK: u32 = 2;

/// Reads `data` as a datagram of the kernel, and the content of each answer in it as every kind of
/// object.
///
/// An object that can be written into a request is the same after it has been read again.
///
/// # Panics
///
/// If a parser has a defect.
pub fn netlink(data: &[u8]) {
    socket::read_datagram(data, |body| {
        if let Some(link) = link::parse(body) {
            assert!(link.index != 0 && link.controller != Some(0));
        }
        tun_link::parse(body);
        assert!(tun_link::parse_namespace_id(body).is_none_or(|id| id >= 0));
        generic::parse_number(body);
        if let Some(read) = address::parse(body) {
            assert_eq!(address::parse(&write_address(&read)), Some(read));
        }
        let reachability = neighbour::parse_reachability(body);
        if let Some((link, address)) = neighbour::parse_incomplete(body) {
            let state = reachability.map(|it| (it.0, it.1));
            assert_eq!(state, Some((link, address)));
        }
        let routes: Vec<_> = route::parse(body).collect();
        // A next hop takes at least eight bytes. Without a list there is one.
        assert!(routes.len() <= 1 + body.len() / 8);
        for read in routes {
            let again: Vec<_> = route::parse(&write_route(&read)).collect();
            let metric = match read.metric {
                0 => Route::default_metric(read.family()),
                metric => metric,
            };
            assert_eq!(again, [Route { metric, ..read }]);
        }
        route::parse_lookup(body);
        if let Some(read) = rule::parse(body)
            && let Some(written) = write_rule(&read)
        {
            assert_eq!(rule::parse(&written), Some(read));
        }
        firewall::parse(body);
        firewall::has_dormant_flag(body);
        for family in Family::ALL {
            firewall::chain(body, family, TABLE);
            firewall::check_listed_rule(body, family, TABLE);
        }
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            sock_diag::parse(body, protocol as u8);
        }
        for hook in [Hook::Egress, Hook::Ingress] {
            filter::filter(body, LINK, filter::parent(hook));
        }
    });
}

fn write_address(address: &Address) -> Vec<u8> {
    let mut request = rt_addr::Request::new().op_newaddr_do(&address::header(address));
    let ip = address.network.addr();
    request.encode().push_local(ip).push_address(ip);
    request.payload().to_vec()
}

fn write_route(route: &Route) -> Vec<u8> {
    let mut request = rt_route::Request::new().op_newroute_do(&route::header(route));
    route::push(request.encode(), route);
    request.payload().to_vec()
}

/// Returns `None` for a rule that has more than [`Rule`] can contain.
fn write_rule(rule: &Rule) -> Option<Vec<u8>> {
    let mut request = rt_rule::Request::new().op_newrule_do(&rule::header(rule).ok()?);
    rule::push(request.encode(), rule);
    Some(request.payload().to_vec())
}

/// Returns datagrams as the kernel sends them.
#[must_use]
pub fn netlink_seeds() -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    for (family, net, gateway) in [
        (Family::V4, "10.9.0.2/24", Ipv4Addr::new(10, 9, 0, 1).into()),
        (Family::V6, "fd09::2/64", IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ] {
        let network: IpNet = net.parse().unwrap_or_else(|_| gateway.into());
        let rules = [
            Rule::not_marked(family, 32765, 51820, 51820),
            Rule::suppressing(family, 32764, 0, 254),
            Rule::marked(family, 100, 0x10, 0xf0, 51820),
            Rule::from(network, 101, 51820),
        ];
        bodies.extend(rules.iter().filter_map(write_rule));
        bodies.push(write_address(&Address {
            interface: LINK,
            network,
        }));
        let unicast = Route {
            table: 254,
            destination: network.trunc(),
            kind: RouteKind::Unicast,
            interface: Some(LINK),
            gateway: Some(gateway),
            metric: 100,
            mtu: Some(1420),
            protocol: 4,
            scope: 0,
        };
        let unreachable = Route {
            kind: RouteKind::Unreachable,
            interface: None,
            gateway: None,
            ..unicast.clone()
        };
        let via = Route {
            gateway: Some(Ipv6Addr::LOCALHOST.into()),
            metric: 0,
            ..unicast.clone()
        };
        bodies.extend([unicast, unreachable, via].iter().map(write_route));
        bodies.push(next_hops(family, gateway));
        bodies.push(neighbour(family, gateway, 1));
        bodies.push(neighbour(family, gateway, 2));
        bodies.push(connection(family));
    }
    bodies.extend([link(), classifier(), vec![1, 2, 0, 0, 6, 0, 1, 0, 0x1d, 0]]);
    let mut seeds: Vec<_> = bodies.iter().map(|body| message(24, 2, body)).collect();
    seeds.push(seeds.concat());
    for interface in [
        InterfaceMatch::Index(7),
        InterfaceMatch::Name("tun7".to_owned()),
    ] {
        seeds.push(firewall::messages(&Firewall {
            family: Family::V4,
            name: TABLE.to_string_lossy().into_owned(),
            interface,
            addresses: vec![Ipv4Addr::new(10, 9, 0, 2).into()],
            mark: 51820,
        }));
    }
    // Acknowledgements: without a text, with one, and with the request before it; the end of a list.
    let text = b"\x0b\0\x01\0not so\0\0";
    let refused = [&(-17_i32).to_ne_bytes()[..], &[0; 16], text].concat();
    let echo = [&(-17_i32).to_ne_bytes()[..], &message(24, 0, &[0; 8]), text].concat();
    seeds.extend([
        message(2, 0, &[0; 20]),
        message(2, 0x0300, &refused),
        message(2, 0x0200, &echo),
        message(3, 2, &[0; 4]),
        [message(24, 0x12, &link()), message(3, 0x12, &[0; 4])].concat(),
    ]);
    seeds
}

fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend(body);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn push(bytes: &mut Vec<u8>, kind: u16, data: &[u8]) {
    push_header(bytes, kind, data.len() as u16);
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// `struct rtmsg` with `RTA_MULTIPATH`.
fn next_hops(family: Family, gateway: IpAddr) -> Vec<u8> {
    let mut hop = vec![0, 0, 0, 0];
    hop.extend(LINK.to_ne_bytes());
    push(&mut hop, 5, &octets(gateway));
    hop[0] = hop.len() as u8;
    let mut body = vec![
        super::client::address_family(family),
        0,
        0,
        0,
        254,
        3,
        0,
        1,
        0,
        0,
        0,
        0,
    ];
    push(&mut body, 9, &hop.repeat(2));
    body
}

/// `struct ndmsg` with `NDA_DST`.
fn neighbour(family: Family, address: IpAddr, state: u8) -> Vec<u8> {
    let mut body = vec![super::client::address_family(family), 0, 0, 0];
    body.extend(LINK.to_ne_bytes());
    body.extend([state, 0, 0, 1]);
    push(&mut body, 1, &octets(address));
    body
}

/// `struct inet_diag_msg` with the information of TCP and a mark.
fn connection(family: Family) -> Vec<u8> {
    let mut body = vec![0x11; 72];
    body[..2].copy_from_slice(&[super::client::address_family(family), 1]);
    push(&mut body, 2, &[1; 224]);
    push(&mut body, 15, &51820_u32.to_ne_bytes());
    body
}

/// `struct ifinfomsg` with name, MTU, address, controller and the information of a TUN.
fn link() -> Vec<u8> {
    let mut info = Vec::new();
    push(&mut info, 1, b"tun\0");
    let mut tun = Vec::new();
    // `IFLA_TUN_PI`.
    push(&mut tun, 4, &[1]);
    push_header_type(&mut info, 2, tun.len() as u16, true);
    info.extend(tun);
    let mut body = vec![0, 0, 1, 0];
    body.extend(LINK.to_ne_bytes());
    body.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    push(&mut body, 3, b"tun7\0");
    push(&mut body, 4, &1420_u32.to_ne_bytes());
    push(&mut body, 1, &[2, 0, 0, 0, 0, 1]);
    push(&mut body, 10, &3_u32.to_ne_bytes());
    push_header_type(&mut body, 18, info.len() as u16, true);
    body.extend(info);
    body
}

/// `struct tcmsg` with the name of a BPF program.
fn classifier() -> Vec<u8> {
    let words = [0, LINK, 7, filter::parent(Hook::Egress), 1 << 16 | 0x0300];
    let mut body = words.map(u32::to_ne_bytes).concat();
    let mut options = Vec::new();
    push(&mut options, 7, b"taupe_out\0");
    push(&mut body, 2, &options);
    push(&mut body, 11, &[0; 4]);
    body
}

#[cfg(test)]
mod tests {
    use super::{netlink, netlink_seeds};
    use crate::netlink::{firewall, link, rule, socket};

    #[test]
    fn seeds_are_read_without_a_defect() {
        let mut counts = [0; 3];
        for seed in netlink_seeds() {
            netlink(&seed);
            socket::read_datagram(&seed, |body| {
                counts[0] += usize::from(link::parse(body).is_some_and(|it| it.name == "tun7"));
                counts[1] += usize::from(rule::parse(body).is_some_and(|it| !it.is_incomplete));
                counts[2] += usize::from(firewall::parse(body).is_some());
            });
        }
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }
}
