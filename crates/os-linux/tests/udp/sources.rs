//! Tests of the local address of datagrams, and of their ECN field.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use taupe_os_linux::udp::{Options, PacketInfo};
use taupe_packet::ip::Family;

use crate::{
    BOTH, at, bind,
    common::{Namespace, noise},
    joined, local_address_dropped, receive, receive_all,
};

#[test]
fn ecn_and_local_address_arrive() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let from = bind(family, Options::default());
            let to = bind(family, Options::default());
            for ecn in 0..4 {
                let tclass = 0x88 | ecn;
                from.send(at(address, to.local_port()), None, tclass, b"x", 1)
                    .result
                    .unwrap();
                let (_, received) = receive(&to);
                assert_eq!(received.ecn, ecn);
                assert_eq!(received.from, at(address, from.local_port()));
                assert_eq!((received.len, received.segment), (1, 1));
                let local = received.local.unwrap();
                assert_eq!(local.address, address.parse::<IpAddr>().unwrap());
                assert_eq!(local.interface, 1);
            }
        }
    });
}

#[test]
fn the_source_is_the_one_asked_for() {
    Namespace::new().run(|| {
        let from = bind(Family::V4, Options::default());
        let to = bind(Family::V4, Options::default());
        let local = PacketInfo {
            address: "127.9.8.7".parse().unwrap(),
            interface: 0,
        };
        let bytes = noise(6, 3000);
        for segment in [3000, 1000] {
            let destination = at("127.0.0.1", to.local_port());
            let sent = from.send(destination, Some(&local), 0, &bytes, segment);
            assert!(!local_address_dropped(sent));
            assert_eq!(receive(&to).1.from.ip(), local.address);
        }
    });
}

#[test]
fn a_source_that_went_away_is_dropped() {
    let (a, b) = joined();
    for (family, address, second, prefix) in [
        (Family::V4, "10.0.0.2", "10.0.0.3", 24),
        (Family::V6, "fd00::2", "fd00::3", 64),
    ] {
        a.ip(&format!("addr add {second}/{prefix} dev va"));
        a.settle();
        let from = a.run(|| bind(family, Options::default()));
        let to = b.run(|| bind(family, Options::default()));
        let destination = at(address, to.local_port());
        for interface in [0, 2] {
            let local = PacketInfo {
                address: second.parse().unwrap(),
                interface,
            };
            for segment in [3000, 1000] {
                let bytes = noise(7, 3000);
                let sent = from.send(destination, Some(&local), 0, &bytes, segment);
                assert!(!local_address_dropped(sent));
                let mut length = 0;
                while length < bytes.len() {
                    let (_, received) = receive(&to);
                    assert_eq!(received.from.ip(), local.address);
                    length += received.len;
                }
            }
        }
        a.ip(&format!("addr del {second}/{prefix} dev va"));
        for segment in [3000, 1000] {
            let local = PacketInfo {
                address: second.parse().unwrap(),
                interface: 2,
            };
            let bytes = noise(8, 3000);
            let sent = from.send(destination, Some(&local), 0, &bytes, segment);
            assert!(local_address_dropped(sent));
            let (datagrams, _) = receive_all(&to, bytes.len());
            assert_eq!(datagrams.concat(), bytes);
        }
        let gone = PacketInfo {
            address: second.parse().unwrap(),
            interface: 77,
        };
        assert!(local_address_dropped(from.send(
            destination,
            Some(&gone),
            0,
            b"x",
            1
        )));
        assert_eq!(receive(&to).0, b"x");
        assert!(from.gso(), "a stale source says nothing about batches");
    }
}

#[test]
fn a_source_of_the_other_family_is_ignored() {
    Namespace::new().run(|| {
        let from = bind(Family::V4, Options::default());
        let to = bind(Family::V4, Options::default());
        let local = PacketInfo {
            address: Ipv6Addr::LOCALHOST.into(),
            interface: 1,
        };
        let destination = at("127.0.0.1", to.local_port());
        let sent = from.send(destination, Some(&local), 0, b"x", 1);
        assert!(!local_address_dropped(sent));
        assert_eq!(receive(&to).0, b"x");
    });
}

#[test]
fn link_local_addresses_carry_their_scope() {
    let (a, b) = joined();
    b.ip("addr add fe80::2/64 dev vb");
    a.ip("addr add fe80::1/64 dev va");
    a.settle();
    b.settle();
    let from = a.run(|| bind(Family::V6, Options::default()));
    let to = b.run(|| bind(Family::V6, Options::default()));
    let destination: SocketAddr = format!("[fe80::2%2]:{}", to.local_port()).parse().unwrap();
    from.send(destination, None, 0, b"there", 5).result.unwrap();
    let (_, received) = receive(&to);
    assert!(matches!(received.from, SocketAddr::V6(from) if from.scope_id() == 2));
    to.send(received.from, received.local.as_ref(), 0, b"back", 4)
        .result
        .unwrap();
    assert_eq!(receive(&from).0, b"back");
}
