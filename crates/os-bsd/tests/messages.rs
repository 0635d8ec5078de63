//! Routing messages made by hand. Nobody recorded them on a running system: their headers are
//! constructed from `net/route.h` and `net/if.h` of each system with offsets written out, and their
//! addresses in the form that the kernel's source gives them. Each test names that source.

use taupe_os_bsd::{
    System::{self, FreeBsd, MacOs},
    routing::{
        DecodeError, EncodeError, Interface, Listing, Message, NextHop, Route, RouteChange, Table,
        encode, encode_lookup, listing, messages,
    },
    socket_address::ZonedAddress,
};
use taupe_packet::ip::Family;

const RTM_GET: u8 = 4;
const RTF_UP_GATEWAY_STATIC: u32 = 0x803;

/// Returns a message: a header of `size` bytes with the numbers at their offsets, and addresses.
fn message(kind: u8, size: usize, fields: &[(usize, &[u8])], addresses: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[2..4].copy_from_slice(&[5, kind]);
    for (offset, value) in fields {
        bytes[*offset..*offset + value.len()].copy_from_slice(value);
    }
    bytes.extend(addresses.concat());
    let length = bytes.len() as u16;
    bytes[..2].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Returns a `struct rt_msghdr` and its addresses. `rtm_index`, `rtm_flags` and `rtm_addrs` have the
/// same offsets on both systems.
fn route(
    system: System,
    kind: u8,
    index: u8,
    flags: u32,
    mask: u8,
    addresses: &[&[u8]],
) -> Vec<u8> {
    let size = match system {
        FreeBsd => 152,
        MacOs => 92,
    };
    let fields: [(usize, &[u8]); 3] = [(4, &[index]), (8, &flags.to_le_bytes()), (12, &[mask])];
    message(kind, size, &fields, addresses)
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
    [16, 2, 0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Returns a `struct sockaddr_in6`, with 4 bytes of padding for FreeBSD.
fn v6(system: System, ip: &str, scope: u8) -> Vec<u8> {
    let (family, padding) = match system {
        FreeBsd => (28, 4),
        MacOs => (30, 0),
    };
    let ip: std::net::Ipv6Addr = ip.parse().unwrap();
    let mut bytes = vec![28, family, 0, 0, 0, 0, 0, 0];
    bytes.extend(ip.octets());
    bytes.extend([scope, 0, 0, 0]);
    bytes.resize(28 + padding, 0);
    bytes
}

/// Returns a `struct sockaddr_dl` with its padding.
fn link(system: System, index: u8, name: &str, address: &[u8]) -> Vec<u8> {
    let (length, rounded) = match system {
        FreeBsd => (54, 56),
        MacOs => (20, 20),
    };
    let mut bytes = vec![
        length,
        18,
        index,
        0,
        6,
        name.len() as u8,
        address.len() as u8,
        0,
    ];
    bytes.extend(name.as_bytes());
    bytes.extend(address);
    bytes.resize(rounded, 0);
    bytes
}

fn only(system: System, bytes: &[u8]) -> Message {
    let all: Vec<_> = messages(system, bytes).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone().unwrap()
}

fn zoned(ip: &str, zone: u16) -> ZonedAddress {
    ZonedAddress {
        ip: ip.parse().unwrap(),
        zone,
    }
}

/// `sysctl_dumpnhop` in FreeBSD's `sys/net/rtsock.c`: destination, gateway and full netmask, then
/// the interface and its address. `ALIGN` rounds the message up to 8 bytes.
#[test]
fn freebsd_lists_its_default_routes() {
    let name = link(FreeBsd, 1, "vtnet0", &[2, 0, 0, 0, 0, 1]);
    let source = v4(192, 0, 2, 7);
    let mut listing = route(
        FreeBsd,
        RTM_GET,
        1,
        RTF_UP_GATEWAY_STATIC,
        0x37,
        &[
            &v4(0, 0, 0, 0),
            &v4(192, 0, 2, 1),
            &v4(0, 0, 0, 0),
            &name,
            &source,
        ],
    );
    // `rtm_rmx.rmx_mtu`
    listing[48..50].copy_from_slice(&1500_u16.to_le_bytes());
    listing.extend(route(
        FreeBsd,
        RTM_GET,
        1,
        RTF_UP_GATEWAY_STATIC,
        0x17,
        &[
            &v6(FreeBsd, "::", 0),
            &v6(FreeBsd, "fe80::1", 1),
            &v6(FreeBsd, "::", 0),
            &name,
        ],
    ));
    let table = Table::decode(FreeBsd, &listing).unwrap();
    let [first, second] = &table.routes[..] else {
        panic!("{table:?}")
    };
    assert_eq!(first.route.destination.to_string(), "0.0.0.0/0");
    assert_eq!(
        first.route.next_hop,
        NextHop::Gateway(zoned("192.0.2.1", 0))
    );
    assert_eq!(first.route.scope, None);
    assert_eq!((first.interface, first.mtu), (1, Some(1500)));
    assert_eq!(first.source, Some(zoned("192.0.2.7", 0)));
    assert!(first.is_up() && first.is_static() && !first.is_neighbour());
    assert_eq!(second.route.destination.to_string(), "::/0");
    assert_eq!(second.route.next_hop, NextHop::Gateway(zoned("fe80::1", 1)));
    assert_eq!(second.mtu, None);
    assert_eq!(table.skipped, 0);
}

/// `rtm_scrub` and `sysctl_dumpentry` in xnu's `bsd/net/rtsock.c`: the netmask of the default route
/// is empty, and that of 169.254.0.0/16 has 6 bytes and no family. `sa_copy` in `bsd/net/route.c`:
/// link-local addresses contain their zone.
#[test]
fn macos_cuts_netmasks_and_embeds_zones() {
    let listing = [
        route(
            MacOs,
            RTM_GET,
            4,
            RTF_UP_GATEWAY_STATIC,
            0x7,
            &[&v4(0, 0, 0, 0), &v4(192, 0, 2, 1), &[0; 4]],
        ),
        route(
            MacOs,
            RTM_GET,
            4,
            0x0100_0001,
            0x7,
            &[
                &v4(169, 254, 0, 0),
                &link(MacOs, 4, "", &[]),
                &[6, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
            ],
        ),
        route(
            MacOs,
            RTM_GET,
            4,
            0x1,
            0x7,
            &[
                &v6(MacOs, "fe80:4::", 0),
                &link(MacOs, 4, "", &[]),
                &[&[16, 30, 0, 0, 0, 0, 0, 0][..], &[0xff; 8]].concat(),
            ],
        ),
        // An entry of the ARP cache: UP, HOST, LLINFO, WASCLONED.
        route(
            MacOs,
            RTM_GET,
            4,
            0x0002_0405,
            0x3,
            &[&v4(192, 0, 2, 1), &link(MacOs, 4, "", &[2, 0, 0, 0, 0, 9])],
        ),
        route(
            MacOs,
            RTM_GET,
            4,
            RTF_UP_GATEWAY_STATIC,
            0x7,
            &[&v6(MacOs, "::", 0), &v6(MacOs, "fe80:4::1", 0), &[0; 4]],
        ),
    ]
    .concat();
    let table = Table::decode(MacOs, &listing).unwrap();
    let found: Vec<_> = table
        .routes
        .iter()
        .map(|entry| {
            let route = &entry.route;
            (
                route.destination.to_string(),
                route.zone,
                route.next_hop,
                route.scope,
                entry.is_neighbour(),
            )
        })
        .collect();
    let direct = NextHop::Interface(4);
    let gateway = |ip, zone| NextHop::Gateway(zoned(ip, zone));
    assert_eq!(
        found,
        [
            ("0.0.0.0/0".into(), 0, gateway("192.0.2.1", 0), None, false),
            ("169.254.0.0/16".into(), 0, direct, Some(4), false),
            ("fe80::/64".into(), 4, direct, None, false),
            ("192.0.2.1/32".into(), 0, direct, None, true),
            ("::/0".into(), 0, gateway("fe80::1", 4), None, false),
        ]
    );
}

/// `sysctl_iflist` in both kernels' `rtsock.c`: a message for each interface with its name, then one
/// for each address. The netmask of an IPv4 address is cut on macOS; `rtsock_fix_netmask` fills it
/// on FreeBSD.
#[test]
fn interfaces_and_addresses_are_listed() {
    for (system, size, mask) in [
        (FreeBsd, 168, &v4(255, 255, 255, 0)[..]),
        (MacOs, 112, &[7, 0xff, 0xff, 0xff, 255, 255, 255, 0][..]),
    ] {
        let name = link(system, 4, "en0", &[2, 0, 0, 0, 0, 1]);
        let interface = message(
            0xe,
            size,
            &[
                (4, &[0x10]),
                (8, &0x8843_u32.to_le_bytes()),
                (12, &[4]),
                (16, &[6]),
                (24, &1500_u32.to_le_bytes()),
            ],
            &[&name],
        );
        let fields: [(usize, &[u8]); 2] = [(4, &[0xa4]), (12, &[4])];
        let (own, broadcast) = (v4(192, 0, 2, 7), v4(192, 0, 2, 255));
        let address = message(0xc, 20, &fields, &[mask, &own, &broadcast]);
        // `struct ifa_msghdr` has 20 bytes, which are not a multiple of 8, and FreeBSD rounds the
        // message.
        let mut listing = [interface, address].concat();
        let start = if system == FreeBsd {
            168 + 56
        } else {
            112 + 20
        };
        let length =
            (listing.len() - start).next_multiple_of(if system == FreeBsd { 8 } else { 4 });
        listing.resize(start + length, 0);
        listing[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes());

        let table = Table::decode(system, &listing).unwrap();
        assert_eq!(
            table.interfaces,
            [Interface {
                index: 4,
                name: Some("en0".into()),
                mtu: 1500,
                medium: 6,
                ethernet: Some([2, 0, 0, 0, 0, 1]),
                flags: 0x8843,
            }]
        );
        let interface = &table.interfaces[0];
        assert!(interface.is_up() && interface.is_running());
        assert!(!interface.is_loopback() && !interface.is_point_to_point());
        let [address] = &table.addresses[..] else {
            panic!("{table:?}")
        };
        assert_eq!(address.interface, 4);
        assert_eq!(address.network.to_string(), "192.0.2.7/24");
        assert_eq!(address.peer, "192.0.2.255".parse().ok());
    }
}

/// `rtsock_ifmsg` and `rt_ifmsg`: a notification has no address, and so no name.
#[test]
fn a_notification_of_an_interface_has_no_name() {
    for (system, size) in [(FreeBsd, 168), (MacOs, 112)] {
        let bytes = message(0xe, size, &[(8, &[0x50, 0x80]), (12, &[9])], &[]);
        let Message::Interface(interface) = only(system, &bytes) else {
            panic!()
        };
        assert_eq!((interface.index, interface.name.as_deref()), (9, None));
        assert!(!interface.is_up() && interface.is_point_to_point());
    }
}

/// `rt_makeifannouncemsg` in FreeBSD's `sys/net/rtsock.c`. macOS has no such message.
#[test]
fn freebsd_announces_interfaces() {
    let announcement = |event| message(0x11, 24, &[(4, &[9]), (6, b"tun0"), (22, &[event])], &[]);
    let arrived = Message::InterfaceArrived(9, "tun0".into());
    assert_eq!(only(FreeBsd, &announcement(0)), arrived);
    let departed = Message::InterfaceDeparted(9, "tun0".into());
    assert_eq!(only(FreeBsd, &announcement(1)), departed);
    assert_eq!(only(FreeBsd, &announcement(2)), Message::Other(0x11));
    assert_eq!(only(MacOs, &announcement(0)), Message::Other(0x11));
}

/// A multicast membership (`RTM_NEWMADDR`), a statistic of macOS (`RTM_IFINFO2`) and a number that
/// no system has.
#[test]
fn unknown_messages_are_skipped_by_their_length() {
    for system in System::ALL {
        let known = route(
            system,
            1,
            4,
            0x805,
            0x3,
            &[&v4(192, 0, 2, 9), &v4(192, 0, 2, 1)],
        );
        let bytes = [
            message(0xf, 16, &[], &[]),
            message(0x12, 160, &[], &[]),
            message(200, 4, &[], &[]),
            known,
        ]
        .concat();
        let all: Vec<_> = messages(system, &bytes).map(Result::unwrap).collect();
        assert_eq!(all[..3], [0xf, 0x12, 200].map(Message::Other));
        assert!(matches!(
            all[3],
            Message::RouteChanged(RouteChange::Add, ..)
        ));
    }
}

#[test]
fn a_contradiction_ends_the_decoding_with_an_error() {
    for system in System::ALL {
        let good = message(0xf, 16, &[], &[]);
        let error = |bad: &[u8]| {
            let bytes = [&good, bad].concat();
            let mut all = messages(system, &bytes);
            assert_eq!(all.next(), Some(Ok(Message::Other(0xf))));
            let error = all.next().unwrap().unwrap_err();
            assert_eq!(all.next(), None);
            assert_eq!(Table::decode(system, &bytes), Err(error));
            error
        };
        let length = |length, available| DecodeError::Length {
            offset: 16,
            length,
            available,
        };
        assert_eq!(error(&[0, 0, 5, 0xf]), length(0, 4));
        assert_eq!(error(&[3, 0, 5, 0xf]), length(3, 4));
        assert_eq!(error(&[5, 0, 5, 0xf]), length(5, 4));
        assert_eq!(error(&[9]), length(0, 1));
        assert_eq!(error(&[8, 0, 5, RTM_GET, 0, 0, 0, 0]), length(8, 8));
        let version = DecodeError::Version {
            offset: 16,
            version: 4,
        };
        assert_eq!(error(&[4, 0, 4, 0xf]), version);
        let address = DecodeError::Address { offset: 16 };
        // A destination of 17 bytes in 16, and none at all.
        let mut to = v4(192, 0, 2, 9);
        to[0] = 17;
        assert_eq!(error(&route(system, 1, 4, 0x805, 0x1, &[&to])), address);
        assert_eq!(error(&route(system, 1, 4, 0x805, 0x1, &[])), address);
    }
}

/// A route that the crate cannot represent does not hide the others.
#[test]
fn routes_of_other_families_are_counted() {
    for system in System::ALL {
        let other = [16, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let gateway = v4(192, 0, 2, 1);
        let listing = [
            route(system, RTM_GET, 4, 0x805, 0x3, &[&other, &gateway]),
            // 255.0.255.0
            route(
                system,
                RTM_GET,
                4,
                0x803,
                0x7,
                &[&v4(10, 0, 0, 0), &gateway, &v4(255, 0, 255, 0)],
            ),
            route(
                system,
                RTM_GET,
                4,
                0x805,
                0x3,
                &[&v4(10, 0, 0, 9), &gateway],
            ),
        ]
        .concat();
        let table = Table::decode(system, &listing).unwrap();
        assert_eq!((table.routes.len(), table.skipped), (1, 2));
    }
}

/// A reply to a request that failed: the request, with `rtm_pid` and `rtm_errno` (`send_rtm_reply`
/// in FreeBSD's, `route_output` in xnu's `rtsock.c`).
#[test]
fn replies_say_which_request_failed() {
    for system in System::ALL {
        let route = Route {
            destination: "198.51.100.0/24".parse().unwrap(),
            zone: 0,
            next_hop: NextHop::Interface(9),
            scope: None,
        };
        let mut bytes = encode(system, RouteChange::Add, &route, 77).unwrap();
        bytes[16..20].copy_from_slice(&4242_i32.to_le_bytes());
        bytes[24] = 17;
        let Message::RouteChanged(RouteChange::Add, entry, request) = only(system, &bytes) else {
            panic!()
        };
        assert_eq!(entry.route, route);
        assert_eq!(
            (request.process, request.sequence, request.error),
            (4242, 77, 17)
        );
    }
}

/// The bytes of `route add -net 198.51.100.0/24 192.0.2.1`, constructed from `rtmsg` in
/// `sbin/route/route.c` of FreeBSD and `net/route.h` of both systems.
#[test]
fn a_request_has_the_bytes_that_the_command_route_would_send() {
    let mut route = Route {
        destination: "198.51.100.7/24".parse().unwrap(),
        zone: 0,
        next_hop: NextHop::Gateway(zoned("192.0.2.1", 0)),
        scope: None,
    };
    for (system, size, length) in [(FreeBsd, 152, 200_u8), (MacOs, 92, 140)] {
        let mut expected = vec![0; size];
        expected[..4].copy_from_slice(&[length, 0, 5, 1]);
        // UP, GATEWAY and STATIC; DST, GATEWAY and NETMASK; the sequence number.
        expected[8..16].copy_from_slice(&[3, 8, 0, 0, 7, 0, 0, 0]);
        expected[20] = 3;
        expected.extend(v4(198, 51, 100, 0));
        expected.extend(v4(192, 0, 2, 1));
        expected.extend(v4(255, 255, 255, 0));
        let bytes = encode(system, RouteChange::Add, &route, 3).unwrap();
        assert_eq!(bytes, expected);
    }
    // A scoped host route by an interface on macOS: UP, HOST, STATIC and IFSCOPE; DST and GATEWAY.
    route.destination = "198.51.100.7/32".parse().unwrap();
    route.next_hop = NextHop::Interface(9);
    route.scope = Some(9);
    let bytes = encode(MacOs, RouteChange::Delete, &route, 0).unwrap();
    assert_eq!(bytes[..6], [128, 0, 5, 2, 9, 0]);
    assert_eq!(bytes[8..16], [5, 8, 0, 1, 3, 0, 0, 0]);
    assert_eq!(bytes[92..108], v4(198, 51, 100, 7));
    assert_eq!(bytes[108..112], [20, 18, 9, 0]);
    assert_eq!(bytes[112..], [0; 16]);
}

/// `route get 2001:db8::1`: UP and HOST; DST and an empty IFP (`rtmsg` in `sbin/route/route.c`).
#[test]
fn a_lookup_asks_for_the_interface() {
    let bytes = encode_lookup(FreeBsd, zoned("2001:db8::1", 0), None, 5).unwrap();
    assert_eq!(bytes[..4], [240, 0, 5, 4]);
    assert_eq!(bytes[8..16], [5, 0, 0, 0, 0x11, 0, 0, 0]);
    assert_eq!(bytes[152..184], v6(FreeBsd, "2001:db8::1", 0));
    assert_eq!(bytes[184..186], [54, 18]);
    let bytes = encode_lookup(MacOs, zoned("2001:db8::1", 0), Some(4), 5).unwrap();
    assert_eq!(bytes[..6], [140, 0, 5, 4, 4, 0]);
    assert_eq!(bytes[8..12], [5, 0, 0, 1]);
}

/// Flags of `route add -blackhole` and `-reject`, whose gateway is a loopback address as in
/// wireguard-tools (`src/wg-quick/darwin.bash`).
#[test]
fn routes_that_drop_packets_have_a_loopback_gateway() {
    for system in System::ALL {
        for (next_hop, flag) in [(NextHop::Blackhole, 0x1000), (NextHop::Reject, 0x8)] {
            let route = Route {
                destination: "::/1".parse().unwrap(),
                zone: 0,
                next_hop,
                scope: None,
            };
            let bytes = encode(system, RouteChange::Add, &route, 1).unwrap();
            assert_eq!(bytes[8..12], (0x803_u32 | flag).to_le_bytes());
            let loopback = v6(system, "::1", 0);
            assert!(bytes.windows(loopback.len()).any(|part| part == loopback));
            let Message::RouteChanged(_, entry, _) = only(system, &bytes) else {
                panic!()
            };
            assert_eq!(entry.route, route);
        }
    }
}

#[test]
fn impossible_requests_are_refused() {
    let route = |destination: &str, next_hop, scope| Route {
        destination: destination.parse().unwrap(),
        zone: 0,
        next_hop,
        scope,
    };
    let error = |system, route: &Route| {
        let error = encode(system, RouteChange::Add, route, 0).unwrap_err();
        error.to_string()
    };
    let v6_gateway = NextHop::Gateway(zoned("fe80::1", 4));
    let v4_by_v6 = route("192.0.2.0/24", v6_gateway, None);
    assert!(encode(FreeBsd, RouteChange::Add, &v4_by_v6, 0).is_ok());
    assert_eq!(
        error(MacOs, &v4_by_v6),
        "macOS does not support fe80::1 as gateway of the route to 192.0.2.0/24"
    );
    let v6_by_v4 = route("::/0", NextHop::Gateway(zoned("192.0.2.1", 0)), None);
    assert_eq!(
        error(FreeBsd, &v6_by_v4),
        "FreeBSD does not support 192.0.2.1 as gateway of the route to ::/0"
    );
    let no_hop = route("::/0", NextHop::Unspecified, None);
    assert_eq!(error(MacOs, &no_hop), "the route to ::/0 has no next hop");
    assert!(encode(MacOs, RouteChange::Delete, &no_hop, 0).is_ok());
    let scoped = route("::/0", NextHop::Interface(4), Some(4));
    assert_eq!(
        error(FreeBsd, &scoped),
        "FreeBSD has no scoped routes; use a FIB instead"
    );
}

/// `sysctl_rtsock` in both kernels' `rtsock.c`; FreeBSD takes the FIB as a seventh number.
#[test]
fn the_name_of_a_listing_contains_the_fib() {
    let name = |system, what, family| listing(system, what, family).unwrap();
    let all = Listing::Routes(None);
    assert_eq!(name(MacOs, all, None), [4, 17, 0, 0, 1, 0]);
    assert_eq!(name(MacOs, all, Some(Family::V6)), [4, 17, 0, 30, 1, 0]);
    assert_eq!(name(FreeBsd, all, Some(Family::V6)), [4, 17, 0, 28, 1, 0]);
    let other = Listing::Routes(Some(2));
    assert_eq!(
        name(FreeBsd, other, Some(Family::V4)),
        [4, 17, 0, 2, 1, 0, 2]
    );
    assert_eq!(listing(MacOs, other, None), Err(EncodeError::Fib(2)));
    assert_eq!(name(MacOs, Listing::Interfaces, None), [4, 17, 0, 0, 3, 0]);
}
