//! Requests to the kernel, with their bytes written out, and its replies to them. Each test names the
//! source from which the bytes are constructed.

mod common;

use common::{only, v4, v6, zoned};
use taupe_os_bsd::{
    System::{self, FreeBsd, MacOs},
    routing::{
        EncodeError, Listing, Message, NextHop, Route, RouteChange, encode, encode_lookup, listing,
    },
};
use taupe_packet::ip::Family;

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
