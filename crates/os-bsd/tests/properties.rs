//! Properties of decoding: no bytes make it panic, and it inverts encoding.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::{collection::vec, option, prelude::*, sample::select};
use taupe_os_bsd::{
    System,
    control_message::{self, LocalEnd},
    endpoint,
    routing::{Message, NextHop, Route, RouteChange, Table, encode, encode_lookup, messages},
    socket_address::ZonedAddress,
    tun,
};

fn system() -> impl Strategy<Value = System> {
    select(&System::ALL[..])
}

/// Returns addresses that kernels send, with the errors that a kernel would not make.
fn address() -> impl Strategy<Value = Vec<u8>> {
    let families = select(vec![2_u8, 18, 28, 30, 0, 255]);
    (0..=56_u8, families, vec(any::<u8>(), 54), 0..=60_usize).prop_map(
        |(length, family, rest, present)| {
            let mut bytes = [vec![length, family], rest].concat();
            bytes.truncate(present);
            bytes
        },
    )
}

/// Returns a buffer that begins like a message of a type that is decoded.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kinds = select(vec![1_u8, 2, 3, 4, 0xc, 0xd, 0xe, 0x11]);
    let header = vec(any::<u8>(), 168);
    let sizes = select(vec![152_usize, 92, 168, 112, 20, 24, 4]);
    let addresses = vec(address(), 0..8);
    (kinds, header, sizes, addresses, any::<u16>(), 0..4_u8).prop_map(
        |(kind, mut bytes, size, addresses, length, honest)| {
            bytes.truncate(size);
            bytes.extend(addresses.concat());
            let length = match honest {
                0 => length,
                _ => bytes.len() as u16,
            };
            bytes[..2].copy_from_slice(&length.to_le_bytes());
            bytes[2..4].copy_from_slice(&[5, kind]);
            bytes
        },
    )
}

fn global() -> impl Strategy<Value = ZonedAddress> {
    let not_local = |ip: &Ipv6Addr| !ip.is_unicast_link_local() && !ip.is_multicast();
    prop_oneof![
        any::<Ipv4Addr>().prop_map(|ip| std::net::IpAddr::V4(ip).into()),
        any::<Ipv6Addr>()
            .prop_filter("has a zone", not_local)
            .prop_map(|ip| std::net::IpAddr::V6(ip).into()),
    ]
}

fn link_local() -> impl Strategy<Value = ZonedAddress> {
    let prefix = u128::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));
    (any::<u64>(), any::<u16>()).prop_map(move |(low, zone)| ZonedAddress {
        ip: Ipv6Addr::from(prefix | u128::from(low)).into(),
        zone,
    })
}

/// Returns destinations with their zones.
fn destination() -> impl Strategy<Value = (IpNet, u16)> {
    let v4 = (any::<Ipv4Addr>(), 0..=32_u8)
        .prop_map(|(ip, length)| (Ipv4Net::new_assert(ip, length).into(), 0));
    let v6 = (any::<Ipv6Addr>(), 0..=128_u8)
        .prop_map(|(ip, length)| Ipv6Net::new_assert(ip, length).trunc())
        .prop_filter("has a zone", |network| {
            !network.addr().is_unicast_link_local() && !network.addr().is_multicast()
        })
        .prop_map(|network| (network.into(), 0));
    let local = (link_local(), select(vec![64_u8, 128]))
        .prop_map(|(address, length)| (IpNet::new_assert(address.ip, length), address.zone));
    prop_oneof![v4, v6, local]
}

fn route() -> impl Strategy<Value = Route> {
    let next_hop = prop_oneof![
        global().prop_map(NextHop::Gateway),
        link_local().prop_map(NextHop::Gateway),
        (1..=u16::MAX).prop_map(NextHop::Interface),
        Just(NextHop::Blackhole),
        Just(NextHop::Reject),
        Just(NextHop::Unspecified),
    ];
    (destination(), next_hop, option::of(any::<u16>())).prop_map(
        |((destination, zone), next_hop, scope)| Route {
            destination,
            zone,
            next_hop,
            scope,
        },
    )
}

proptest! {
    #[test]
    fn no_bytes_panic(system in system(), bytes in vec(any::<u8>(), 0..600)) {
        prop_assert!(messages(system, &bytes).count() <= bytes.len());
        drop(Table::decode(system, &bytes));
        let _ = tun::split(system, &bytes);
        let _ = control_message::decode(system, &bytes);
        let _ = endpoint::decode(system, &bytes);
    }

    #[test]
    fn control_messages_with_any_lengths_do_not_panic(
        system in system(),
        all in vec((0..48_u32, select(vec![0_u8, 41]), any::<u8>(), vec(any::<u8>(), 32)), 0..4),
    ) {
        let message = |(length, level, kind, data): (u32, u8, u8, Vec<u8>)| {
            let header = [length.to_le_bytes(), [level, 0, 0, 0], [kind, 0, 0, 0]].concat();
            [header, data].concat()
        };
        let bytes: Vec<u8> = all.into_iter().flat_map(message).collect();
        let _ = control_message::decode(system, &bytes);
    }

    #[test]
    fn sent_local_ends_are_those_of_received_messages(
        system in system(),
        address in prop_oneof![global(), link_local()],
        interface: u32,
    ) {
        let local = LocalEnd { address: address.ip, interface };
        let sent = control_message::encode(system, local);
        let received = control_message::decode(system, sent.as_bytes());
        match (address.ip, system) {
            (IpAddr::V6(ip), _) if ip.is_unicast_link_local() => {
                prop_assert_eq!(received, Some(local));
            }
            (IpAddr::V6(_), _) | (IpAddr::V4(_), System::FreeBsd) => {
                prop_assert_eq!(received, Some(LocalEnd { interface: 0, ..local }));
            }
            // macOS has the address of a received datagram elsewhere.
            (IpAddr::V4(_), System::MacOs) => {
                let unspecified = Ipv4Addr::UNSPECIFIED.into();
                prop_assert_eq!(received, Some(LocalEnd { address: unspecified, interface: 0 }));
            }
        }
    }

    #[test]
    fn decoding_inverts_the_encoding_of_socket_addresses(
        system in system(),
        address in prop_oneof![global(), link_local()],
        port: u16,
    ) {
        let mut address_and_port = std::net::SocketAddr::new(address.ip, port);
        if let std::net::SocketAddr::V6(v6) = &mut address_and_port {
            v6.set_scope_id(address.zone.into());
        }
        let bytes = endpoint::encode(system, address_and_port);
        prop_assert_eq!(endpoint::decode(system, bytes.as_bytes()), Some(address_and_port));
    }

    #[test]
    fn no_messages_panic(system in system(), all in vec(message(), 0..4)) {
        let bytes = all.concat();
        // A message has at least 4 bytes, and an error ends the decoding.
        prop_assert!(messages(system, &bytes).count() <= bytes.len() / 4 + 1);
    }

    #[test]
    fn a_cut_message_is_an_error(system in system(), route in route(), cut in 1..300_usize) {
        if let Ok(bytes) = encode(system, RouteChange::Delete, &route, 1) {
            let cut = &bytes[..bytes.len().saturating_sub(cut)];
            prop_assert_eq!(Table::decode(system, cut).is_err(), !cut.is_empty());
        }
    }

    #[test]
    fn decoding_inverts_encoding(
        system in system(),
        change in select(vec![RouteChange::Add, RouteChange::Delete, RouteChange::Change]),
        route in route(),
        sequence: i32,
    ) {
        let Ok(bytes) = encode(system, change, &route, sequence) else {
            return Err(TestCaseError::reject("the system has no such route"));
        };
        let all: Vec<_> = messages(system, &bytes).collect();
        let [Ok(Message::RouteChanged(found, entry, request))] = &all[..] else {
            return Err(TestCaseError::fail(format!("{all:?}")));
        };
        prop_assert_eq!(*found, change);
        prop_assert_eq!((request.process, request.sequence, request.error), (0, sequence, 0));
        let destination = route.destination.trunc();
        prop_assert_eq!(&entry.route, &Route { destination, ..route });
        prop_assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_lookup_is_about_one_address(
        system in system(),
        destination in prop_oneof![global(), link_local()],
        sequence: i32,
    ) {
        let bytes = encode_lookup(system, destination, None, sequence).unwrap();
        let all: Vec<_> = messages(system, &bytes).collect();
        let [Ok(Message::Route(entry, request))] = &all[..] else {
            return Err(TestCaseError::fail(format!("{all:?}")));
        };
        prop_assert_eq!(request.sequence, sequence);
        prop_assert_eq!(entry.route.destination, IpNet::from(destination.ip));
        prop_assert_eq!(entry.route.zone, destination.zone);
    }
}
