//! Notifications of routing sockets and replies to lookups, from messages made by hand.

use taupe_os_bsd::{
    System::{self, FreeBsd, MacOs},
    routing::{
        Change, LookupReply, Message, NextHop, Notification, Route, RouteChange, encode,
        encode_lookup, lookup_reply, may_have_overflowed, messages, recheck_interval,
    },
    socket_address::ZonedAddress,
};

const OWN: u32 = 4242;
const SEQUENCE: i32 = 7;

fn address(ip: &str) -> ZonedAddress {
    let ip: std::net::IpAddr = ip.parse().unwrap();
    ip.into()
}

fn decoded(system: System, bytes: &[u8]) -> Vec<Message> {
    messages(system, bytes).map(Result::unwrap).collect()
}

/// The kernel's reply to a lookup: the request with `rtm_pid`, `rtm_errno` and what it found.
fn reply(system: System, process: u32, sequence: i32, error: u8) -> Message {
    let destination = address("198.51.100.7");
    let mut bytes = encode_lookup(system, destination, None, sequence).unwrap();
    bytes[16..20].copy_from_slice(&process.to_le_bytes());
    bytes[24] = error;
    decoded(system, &bytes).remove(0)
}

#[test]
fn a_reply_is_that_of_this_process_and_this_request() {
    for system in System::ALL {
        let found = lookup_reply(&reply(system, OWN, SEQUENCE, 0), OWN, SEQUENCE);
        let Some(LookupReply::Route(entry)) = found else {
            panic!("{found:?}")
        };
        assert_eq!(entry.route.destination.to_string(), "198.51.100.7/32");
        for message in [
            reply(system, OWN + 1, SEQUENCE, 0),
            reply(system, OWN, SEQUENCE + 1, 0),
            reply(system, 0, SEQUENCE, 0),
        ] {
            assert_eq!(lookup_reply(&message, OWN, SEQUENCE), None);
        }
    }
}

#[test]
fn a_reply_may_say_that_there_is_no_route() {
    for system in System::ALL {
        let reply = |error| lookup_reply(&reply(system, OWN, SEQUENCE, error), OWN, SEQUENCE);
        assert_eq!(reply(3), Some(LookupReply::NoRoute));
        assert_eq!(reply(22), Some(LookupReply::Refused(22)));
    }
}

#[test]
fn a_reply_about_an_unknown_family_is_not_waited_for_any_longer() {
    for system in System::ALL {
        let mut bytes = encode_lookup(system, address("198.51.100.7"), None, SEQUENCE).unwrap();
        bytes[16..20].copy_from_slice(&OWN.to_le_bytes());
        // `sa_family` of the destination, behind the header.
        let header = match system {
            FreeBsd => 152,
            MacOs => 92,
        };
        bytes[header + 1] = 99;
        let message = decoded(system, &bytes).remove(0);
        let found = lookup_reply(&message, OWN, SEQUENCE);
        assert_eq!(found, Some(LookupReply::Unsupported));
    }
}

/// `struct if_msghdr` and `struct if_announcemsghdr` with their indices.
#[test]
fn messages_are_changes_of_links_or_of_the_network() {
    let mut interface = vec![0_u8; 168];
    interface[..4].copy_from_slice(&[168, 0, 5, 0xe]);
    interface[12] = 9;
    let mut arrival = vec![24, 0, 5, 0x11, 9, 0];
    arrival.extend(b"wg0");
    arrival.resize(24, 0);
    let mut removal = vec![0_u8; 20];
    removal[..4].copy_from_slice(&[36, 0, 5, 0xd]);
    // `RTA_IFA`
    removal[4] = 0x20;
    removal.extend([16, 2, 0, 0, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    let route = Route {
        destination: "198.51.100.0/24".parse().unwrap(),
        zone: 0,
        next_hop: NextHop::Interface(9),
        scope: None,
    };
    let route = encode(FreeBsd, RouteChange::Add, &route, 1).unwrap();
    let mut refused = route.clone();
    refused[24] = 17;
    let changes = |bytes: &[u8]| Notification::Messages(decoded(FreeBsd, bytes)).changes();
    assert_eq!(changes(&interface), [Change::Link(9)]);
    assert_eq!(changes(&arrival), [Change::Link(9)]);
    assert_eq!(changes(&removal), [Change::Network]);
    assert_eq!(changes(&route), [Change::Network]);
    assert_eq!(changes(&refused), []);
    let all = [&interface[..], &arrival, &removal, &route, &refused].concat();
    assert_eq!(changes(&all), [Change::Link(9), Change::Network]);
    let lookup = encode_lookup(FreeBsd, address("192.0.2.1"), None, 1).unwrap();
    assert_eq!(changes(&lookup), []);
    assert_eq!(Notification::Overflow.changes(), [Change::Unknown]);
}

#[test]
fn only_macos_loses_messages_silently() {
    assert_eq!(recheck_interval(FreeBsd), None);
    assert!(recheck_interval(MacOs).is_some());
    assert!(!may_have_overflowed(0, 8192));
    assert!(!may_have_overflowed(4096, 8192));
    assert!(may_have_overflowed(4097, 8192));
    assert!(may_have_overflowed(1, 0));
}
