//! Messages of the kernel made by hand. Their headers are constructed from `net/route.h` and
//! `net/if.h` of each system with offsets written out, and their addresses have the form that the
//! kernel's source gives them. Each test names that source. Where a test does not say that a message
//! was recorded, nobody has seen it on a running system.

mod common;

use common::{only, v4, v6, zoned};
use taupe_os_bsd::{
    System::{self, FreeBsd, MacOs},
    routing::{DecodeError, Interface, Message, NextHop, Route, RouteChange, Table, messages},
};

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

/// Addresses as macOS sent them, in the form recorded in golang.org/x/net
/// (`route/address_darwin_test.go`); the headers are constructed. The destination of `::/0` has
/// length 0 and a family. A netmask has 7 bytes and no padding behind it.
#[test]
fn addresses_that_macos_sent_are_decoded() {
    let decoded = |addresses: &[&[u8]]| {
        let bytes = route(MacOs, RTM_GET, 33, RTF_UP_GATEWAY_STATIC, 0x7, addresses);
        let Message::Route(entry, _) = only(MacOs, &bytes) else {
            panic!()
        };
        let Route {
            destination,
            next_hop,
            ..
        } = entry.route;
        (destination.to_string(), next_hop)
    };
    let router = "fe80:21::f22f:4bff:fe09:3bff";
    let router = v6(MacOs, router, 0);
    let next_hop = NextHop::Gateway(zoned("fe80::f22f:4bff:fe09:3bff", 33));
    let mask = [&[14, 30, 0, 0, 0, 0, 0, 0][..], &[0xff; 6], &[0; 2]].concat();
    let to = v6(MacOs, "fd84:1b4e:6281::", 0);
    assert_eq!(
        decoded(&[&to, &router, &mask]),
        ("fd84:1b4e:6281::/48".into(), next_hop)
    );
    for mask in [[0, 30, 0, 0], [2, 30, 0, 0], [0; 4]] {
        assert_eq!(
            decoded(&[&[0, 30, 0, 0], &router, &mask]),
            ("::/0".into(), next_hop)
        );
    }
    let mask = [7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(
        decoded(&[&v4(192, 168, 86, 0), &link(MacOs, 4, "", &[]), &mask]),
        ("192.168.86.0/24".into(), NextHop::Interface(4))
    );
    let utun = link(MacOs, 33, "utun4319", &[]);
    assert_eq!(
        decoded(&[&v4(100, 113, 0, 0), &utun, &[6, 2, 0, 0, 0xff, 0xff, 0, 0]]),
        ("100.113.0.0/16".into(), NextHop::Interface(33))
    );
}

/// A reply of macOS recorded in golang.org/x/net (`route/address_darwin_test.go`): the scoped lookup
/// of the default route failed with `ESRCH`. The netmask has length 0, and there is no gateway.
#[test]
fn a_reply_that_macos_sent_is_decoded() {
    let header: [(usize, &[u8]); 6] = [
        (4, &[1]),
        (8, &[3, 8, 0, 1]),
        (12, &[0x15]),
        (16, &[0x1b, 1]),
        (20, &[0xf5, 0x5a]),
        (24, &[3]),
    ];
    let no_interface = [&[20, 18][..], &[0; 18]].concat();
    let addresses: [&[u8]; 3] = [&v4(0, 0, 0, 0), &[0, 2, 0, 0], &no_interface];
    let bytes = message(RTM_GET, 92, &header, &addresses);
    assert_eq!(bytes.len(), 132);
    let Message::Route(entry, request) = only(MacOs, &bytes) else {
        panic!()
    };
    assert_eq!(entry.route.destination.to_string(), "0.0.0.0/0");
    assert_eq!(entry.route.next_hop, NextHop::Unspecified);
    assert_eq!(entry.route.scope, Some(1));
    assert_eq!(
        (request.process, request.sequence, request.error),
        (0x11b, 0x5af5, 3)
    );
}

/// Addresses of `RTM_NEWADDR` as an older FreeBSD sent them, in the form recorded in
/// golang.org/x/net (`route/address_test.go`): the netmask has the length and family of an
/// interface's address.
#[test]
fn a_netmask_may_be_longer_than_its_address() {
    let mut mask = [0; 56];
    mask[..8].copy_from_slice(&[56, 18, 0, 0, 255, 255, 255, 0]);
    let name = link(FreeBsd, 2, "em1", &[0, 12, 41, 102, 44, 220]);
    let (own, broadcast) = (v4(172, 16, 220, 180), v4(172, 16, 220, 255));
    let fields: [(usize, &[u8]); 2] = [(4, &[0xb4]), (12, &[2])];
    let bytes = message(0xc, 20, &fields, &[&mask, &name, &own, &broadcast]);
    let Message::AddressAdded(address) = only(FreeBsd, &bytes) else {
        panic!()
    };
    assert_eq!(address.network.to_string(), "172.16.220.180/24");
    assert_eq!(address.peer, "172.16.220.255".parse().ok());
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

/// The netmask of a host route has no meaning (`rtsock_routemsg_info` in FreeBSD's `rtsock.c` leaves
/// it out). An interface without an index is that of the header. Only macOS has scopes: on FreeBSD,
/// `net/route.h` does not assign this flag.
#[test]
fn flags_decide_about_netmask_and_scope() {
    const UP_HOST_SCOPED: u32 = 0x0100_0005;
    for (system, scope) in [(FreeBsd, None), (MacOs, Some(4))] {
        let (to, mask) = (v4(192, 0, 2, 9), v4(255, 255, 255, 0));
        let addresses: [&[u8]; 3] = [&to, &link(system, 0, "en0", &[]), &mask];
        let bytes = route(system, RTM_GET, 4, UP_HOST_SCOPED, 0x7, &addresses);
        let Message::Route(entry, _) = only(system, &bytes) else {
            panic!()
        };
        assert_eq!(entry.route.destination.to_string(), "192.0.2.9/32");
        assert_eq!(entry.route.next_hop, NextHop::Interface(4));
        assert_eq!(entry.route.scope, scope);
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
