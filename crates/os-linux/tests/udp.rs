//! Tests of UDP sockets with the kernel. They need root.

#![cfg(target_os = "linux")]

mod common;

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    thread,
    time::Duration,
};

use common::{Namespace, SOON, forbid, noise, readable};
use taupe_os_linux::udp::{
    BindError, Local, MAX_RECEIVES, Options, RECEIVE_BUFFER_LEN, RECEIVE_LEN, Receive, Received,
    Sent, Socket,
};
use taupe_packet::ip::Family;

const BOTH: [(Family, &str); 2] = [(Family::V4, "127.0.0.1"), (Family::V6, "::1")];

fn bind(family: Family, options: Options) -> Socket {
    Socket::bind(family, 0, options).unwrap()
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Receives once. Panics if nothing arrives.
fn receive(socket: &Socket) -> (Vec<u8>, Received) {
    let mut buffer = vec![0; RECEIVE_LEN];
    assert!(readable(socket.as_fd(), SOON), "nothing received");
    match socket.receive(&mut buffer).unwrap() {
        Receive::Datagrams(received) => {
            let [received] = received[..] else {
                panic!("more than the buffer takes: {received:?}");
            };
            buffer.truncate(received.len);
            (buffer, received)
        }
        Receive::Stopped => panic!("stopped"),
    }
}

/// Returns true if a successful send dropped its local address.
fn local_dropped(sent: Sent) -> bool {
    sent.result.unwrap();
    sent.local_dropped
}

/// Receives `length` bytes. Returns the datagrams and the size of the largest batch.
fn receive_all(socket: &Socket, length: usize) -> (Vec<Vec<u8>>, usize) {
    let mut datagrams = Vec::new();
    let mut largest = 0;
    let mut total = 0;
    while total < length {
        let (bytes, received) = receive(socket);
        let batch = bytes.chunks(received.segment.max(1));
        largest = largest.max(batch.len());
        datagrams.extend(batch.map(<[u8]>::to_vec));
        total += received.len;
    }
    (datagrams, largest)
}

fn silent(socket: &Socket) -> bool {
    !readable(socket.as_fd(), Duration::from_millis(50))
}

#[test]
fn batches_cross_loopback_whole() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let from = bind(family, Options::default());
            let to = bind(family, Options::default());
            assert!(from.gso() && to.gro(), "Linux 5.12 has both");
            let bytes = noise(1, 60 * 1000 + 17);
            let destination = at(address, to.local_port());
            from.send(destination, None, 0, &bytes, 1000)
                .result
                .unwrap();
            let (datagrams, largest) = receive_all(&to, bytes.len());
            let expected: Vec<_> = bytes.chunks(1000).map(<[u8]>::to_vec).collect();
            assert!(datagrams == expected);
            assert_eq!(largest, 61, "one receive for one send");
            assert_eq!(from.gso_refusals(), 0);
        }
    });
}

#[test]
fn what_no_single_batch_holds_goes_in_several() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let from = bind(family, Options::default());
            let to = bind(family, Options::default());
            let destination = at(address, to.local_port());
            for segment in [1, 1452, 16_000, 40_000] {
                let bytes = noise(2, 3 * 65_535 * segment.min(1000) / 1000);
                from.send(destination, None, 0, &bytes, segment)
                    .result
                    .unwrap();
                let (datagrams, _) = receive_all(&to, bytes.len());
                let expected: Vec<_> = bytes.chunks(segment).map(<[u8]>::to_vec).collect();
                assert!(datagrams == expected, "{segment}");
            }
            assert_eq!(from.gso_refusals(), 0);
        }
    });
}

#[test]
fn one_receive_takes_all_that_is_there() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let [one, other, to] = [(); 3].map(|()| bind(family, Options::default()));
            let destination = at(address, to.local_port());
            let batch = noise(4, 30 * 1200 + 5);
            one.send(destination, None, 2, &batch, 1200).result.unwrap();
            other
                .send(destination, None, 0, b"alone", 5)
                .result
                .unwrap();
            one.send(destination, None, 1, &batch, 900).result.unwrap();
            let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
            assert!(readable(to.as_fd(), SOON));
            let Receive::Datagrams(received) = to.receive(&mut buffer).unwrap() else {
                panic!("stopped");
            };
            let expected = [
                (&one, &batch[..], 1200, 2),
                (&other, b"alone", 5, 0),
                (&one, &batch[..], 900, 1),
            ];
            assert_eq!(received.len(), expected.len());
            for (received, (from, bytes, segment, ecn)) in received.iter().zip(expected) {
                assert!(&buffer[received.start..][..received.len] == bytes);
                assert_eq!(received.from, at(address, from.local_port()));
                assert_eq!((received.segment, received.ecn), (segment, ecn));
                let local = received.local.map(|local| local.address);
                assert_eq!(local, Some(address.parse().unwrap()));
            }
            assert!(silent(&to));
        }
    });
}

#[test]
fn more_than_one_receive_takes_waits_for_the_next() {
    Namespace::new().run(|| {
        let to = bind(Family::V4, Options::default());
        let from = bind(Family::V4, Options::default());
        let destination = at("127.0.0.1", to.local_port());
        let count = MAX_RECEIVES + 3;
        for i in 0..count {
            from.send(destination, None, 0, &vec![i as u8; i], i)
                .result
                .unwrap();
        }
        let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
        let mut lengths = Vec::new();
        for expected in [MAX_RECEIVES, 3] {
            let Receive::Datagrams(received) = to.receive(&mut buffer).unwrap() else {
                panic!("stopped");
            };
            assert_eq!(received.len(), expected);
            for one in received {
                let bytes = &buffer[one.start..][..one.len];
                assert!(bytes.iter().all(|byte| usize::from(*byte) == one.len));
                lengths.push(one.len);
            }
        }
        assert!(lengths.into_iter().eq(0..count));
    });
}

#[test]
fn without_offloads_the_same_arrives() {
    Namespace::new().run(|| {
        let options = Options {
            gso: false,
            gro: false,
            ..Options::default()
        };
        for (family, address) in BOTH {
            let from = bind(family, options);
            let to = bind(family, options);
            assert!(!from.gso() && !to.gro());
            let bytes = noise(3, 150 * 1000 + 1);
            from.send(at(address, to.local_port()), None, 0, &bytes, 1000)
                .result
                .unwrap();
            let (datagrams, largest) = receive_all(&to, bytes.len());
            let expected: Vec<_> = bytes.chunks(1000).map(<[u8]>::to_vec).collect();
            assert!(datagrams == expected);
            assert_eq!(largest, 1);
        }
    });
}

/// Two namespaces joined by a veth pair with 10.0.0.1 and fd00::1 at one end
/// and 10.0.0.2 and fd00::2 at the other.
fn joined() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&format!(
        "link add name va type veth peer name vb netns {}",
        b.name()
    ));
    for (namespace, name, number) in [(&a, "va", 1), (&b, "vb", 2)] {
        namespace.sysctl(&format!("ipv6/conf/{name}/accept_dad"), "0");
        namespace.ip(&format!("addr add 10.0.0.{number}/24 dev {name}"));
        namespace.ip(&format!("addr add fd00::{number}/64 dev {name} nodad"));
        namespace.ip(&format!("link set {name} up"));
    }
    a.settle();
    b.settle();
    (a, b)
}

const FAR: [(Family, &str); 2] = [(Family::V4, "10.0.0.2"), (Family::V6, "fd00::2")];

#[test]
fn batches_cross_a_link_whole() {
    let (a, b) = joined();
    for (family, address) in FAR {
        let from = a.run(|| bind(family, Options::default()));
        let to = b.run(|| bind(family, Options::default()));
        let bytes = noise(4, 44 * 1400 + 3);
        from.send(at(address, to.local_port()), None, 0, &bytes, 1400)
            .result
            .unwrap();
        let (datagrams, largest) = receive_all(&to, bytes.len());
        let expected: Vec<_> = bytes.chunks(1400).map(<[u8]>::to_vec).collect();
        assert!(datagrams == expected);
        assert_eq!(largest, 45);
    }
}

#[test]
fn segments_above_the_mtu_are_fragmented_instead_of_batched() {
    let (a, b) = joined();
    for (family, address) in FAR {
        let from = a.run(|| bind(family, Options::default()));
        let to = b.run(|| bind(family, Options::default()));
        let destination = at(address, to.local_port());
        let local = Local {
            address: if address.contains(':') {
                "fd00::1"
            } else {
                "10.0.0.1"
            }
            .parse()
            .unwrap(),
            interface: 0,
        };
        let large = noise(5, 3 * 2000);
        for round in 1..=10 {
            let sent = from.send(destination, Some(&local), 0, &large, 2000);
            assert!(!local_dropped(sent));
            let (datagrams, _) = receive_all(&to, large.len());
            let expected: Vec<_> = large.chunks(2000).map(<[u8]>::to_vec).collect();
            assert!(datagrams == expected);
            // A batch with a smaller segment is sent, so batching itself works.
            from.send(destination, None, 0, &large, 1000)
                .result
                .unwrap();
            assert_eq!(receive_all(&to, large.len()).0.len(), 6);
            assert_eq!(from.gso_refusals(), round);
            assert!(from.gso());
        }
        for round in 11..=18 {
            assert!(from.gso());
            from.send(destination, None, 0, &large, 2000)
                .result
                .unwrap();
            assert_eq!(receive_all(&to, large.len()).0.len(), 3);
            assert_eq!(from.gso_refusals(), round);
        }
        assert!(!from.gso(), "eight refusals in a row");
        for _ in 0..1000 {
            assert!(!from.gso());
            from.send(destination, None, 0, &large, 1000)
                .result
                .unwrap();
            assert_eq!(receive_all(&to, large.len()).0.len(), 6);
        }
        assert_eq!(from.gso_refusals(), 18);
        assert!(from.gso(), "one path does not end it for all, for good");
        from.send(destination, None, 0, &large, 2000)
            .result
            .unwrap();
        assert_eq!(receive_all(&to, large.len()).0.len(), 3);
        assert_eq!(from.gso_refusals(), 19);
        assert!(!from.gso(), "still refused");
    }
}

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
        let local = Local {
            address: "127.9.8.7".parse().unwrap(),
            interface: 0,
        };
        let bytes = noise(6, 3000);
        for segment in [3000, 1000] {
            let destination = at("127.0.0.1", to.local_port());
            let sent = from.send(destination, Some(&local), 0, &bytes, segment);
            assert!(!local_dropped(sent));
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
            let local = Local {
                address: second.parse().unwrap(),
                interface,
            };
            for segment in [3000, 1000] {
                let bytes = noise(7, 3000);
                let sent = from.send(destination, Some(&local), 0, &bytes, segment);
                assert!(!local_dropped(sent));
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
            let local = Local {
                address: second.parse().unwrap(),
                interface: 2,
            };
            let bytes = noise(8, 3000);
            let sent = from.send(destination, Some(&local), 0, &bytes, segment);
            assert!(local_dropped(sent));
            let (datagrams, _) = receive_all(&to, bytes.len());
            assert_eq!(datagrams.concat(), bytes);
        }
        let gone = Local {
            address: second.parse().unwrap(),
            interface: 77,
        };
        assert!(local_dropped(from.send(
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
        let local = Local {
            address: Ipv6Addr::LOCALHOST.into(),
            interface: 1,
        };
        let destination = at("127.0.0.1", to.local_port());
        let sent = from.send(destination, Some(&local), 0, b"x", 1);
        assert!(!local_dropped(sent));
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

#[test]
fn shutdown_wakes_every_reader() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let socket = bind(family, Options::default());
            thread::scope(|scope| {
                let readers: Vec<_> = (0..3)
                    .map(|_| scope.spawn(|| socket.receive(&mut [0; 100]).unwrap()))
                    .collect();
                thread::sleep(Duration::from_millis(50));
                socket.shutdown();
                for reader in readers {
                    assert_eq!(reader.join().unwrap(), Receive::Stopped);
                }
            });
            // The shutdown is permanent, even if more datagrams arrive.
            let other = UdpSocket::bind((address, 0)).unwrap();
            other
                .send_to(b"late", at(address, socket.local_port()))
                .unwrap();
            assert_eq!(socket.receive(&mut [0; 100]).unwrap(), Receive::Stopped);
        }
    });
}

#[test]
fn empty_and_oversized_datagrams_do_not_disturb_others() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let from = bind(family, Options::default());
            let to = bind(family, Options::default());
            let destination = at(address, to.local_port());
            from.send(destination, None, 0, b"", 0).result.unwrap();
            from.send(destination, None, 0, &[1; 2000], 2000)
                .result
                .unwrap();
            from.send(destination, None, 0, b"fine", 4).result.unwrap();
            let mut buffer = [0; 1000];
            let expect = [(0, false), (1000, true), (4, false)];
            for (length, truncated) in expect {
                let Receive::Datagrams(received) = to.receive(&mut buffer).unwrap() else {
                    panic!("stopped");
                };
                let received = received[0];
                assert_eq!((received.len, received.truncated), (length, truncated));
                assert_eq!(received.segment, length);
            }
            assert_eq!(&buffer[..4], b"fine");
        }
    });
}

#[test]
fn a_sandbox_that_forbids_recvmmsg_gets_batches_one_by_one() {
    for error in [libc::EPERM, libc::ENOSYS] {
        Namespace::new().run(|| {
            for (family, address) in BOTH {
                let from = bind(family, Options::default());
                let to = bind(family, Options::default());
                let destination = at(address, to.local_port());
                let sent = noise(1, 30 * 1000);
                from.send(destination, None, 0, &sent, 1000).result.unwrap();
                from.send(destination, None, 0, b"last", 4).result.unwrap();
                thread::scope(|scope| {
                    scope.spawn(|| {
                        forbid(libc::SYS_recvmmsg, error);
                        let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
                        for (length, segment) in [(sent.len(), 1000), (4, 4)] {
                            let Receive::Datagrams(received) = to.receive(&mut buffer).unwrap()
                            else {
                                panic!("stopped");
                            };
                            let [received] = received[..] else {
                                panic!("{received:?}");
                            };
                            assert_eq!((received.len, received.segment), (length, segment));
                            assert_eq!(received.from.ip(), destination.ip());
                            assert!(received.local.is_some());
                        }
                        assert_eq!(buffer[..4], *b"last");
                        to.shutdown();
                        assert_eq!(to.receive(&mut buffer).unwrap(), Receive::Stopped);
                    });
                });
            }
        });
    }
}

#[test]
fn a_sandbox_that_forbids_sendmmsg_sends_one_by_one() {
    for error in [libc::EPERM, libc::ENOSYS] {
        Namespace::new().run(|| {
            for (family, address) in BOTH {
                let to = bind(family, Options::default());
                let destination = at(address, to.local_port());
                let bytes = noise(1, 100 * 1000 + 7);
                let expected: Vec<_> = bytes.chunks(1000).map(<[u8]>::to_vec).collect();
                for gso in [true, false] {
                    let options = Options {
                        gso,
                        ..Options::default()
                    };
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            forbid(libc::SYS_sendmmsg, error);
                            let from = bind(family, options);
                            let sent = from.send(destination, None, 0, &bytes, 1000);
                            assert!(!local_dropped(sent));
                            assert_eq!((from.gso(), from.gso_refusals()), (gso, 0));
                        });
                    });
                    let (datagrams, _) = receive_all(&to, bytes.len());
                    assert!(datagrams == expected, "{error} {gso}");
                }
            }
        });
    }
}

#[test]
fn a_closed_port_at_the_other_end_is_no_error() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let socket = bind(family, Options::default());
            let closed = UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap();
            for _ in 0..3 {
                socket.send(closed, None, 0, b"anyone?", 7).result.unwrap();
            }
            assert!(silent(&socket));
            let other = UdpSocket::bind((address, 0)).unwrap();
            other
                .send_to(b"me", at(address, socket.local_port()))
                .unwrap();
            assert_eq!(receive(&socket).0, b"me");
        }
    });
}

#[test]
fn no_route_is_an_error() {
    Namespace::new().run(|| {
        for (family, address) in [(Family::V4, "10.1.2.3"), (Family::V6, "fd01::1")] {
            let socket = bind(family, Options::default());
            let bytes = [0; 3000];
            let error = socket
                .send(at(address, 9), None, 0, &bytes, 1000)
                .result
                .unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH), "{error}");
            assert!(socket.gso());
        }
    });
}

#[test]
fn what_is_announced_is_received_without_waiting() {
    let namespace = Namespace::new();
    namespace.run(|| {
        for (family, address) in BOTH {
            let from = bind(family, Options::default());
            let to = bind(family, Options::default());
            let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
            let mut receive = || to.receive_announced(&mut buffer).unwrap();
            assert_eq!(receive(), None);
            let destination = at(address, to.local_port());
            from.send(destination, None, 0, b"there", 5).result.unwrap();
            assert!(readable(to.as_fd(), SOON));
            let received = receive();
            let Some(Receive::Datagrams(received)) = received else {
                panic!("{received:?}");
            };
            assert_eq!(received.iter().map(|one| one.len).collect::<Vec<_>>(), [5]);
            assert_eq!(receive(), None);
            thread::scope(|scope| {
                let waiting = scope.spawn(|| readable(to.as_fd(), SOON));
                thread::sleep(Duration::from_millis(50));
                to.shutdown();
                assert!(waiting.join().unwrap(), "the end is announced");
            });
            assert_eq!(receive(), Some(Receive::Stopped));
        }
    });
}

#[test]
fn what_the_firewall_refuses_does_not_hold_up_the_rest() {
    let namespace = Namespace::new();
    namespace.command("nft", "add table inet t");
    namespace.command(
        "nft",
        "add chain inet t out { type filter hook output priority 0 ; }",
    );
    namespace.command("nft", "add rule inet t out udp dport 7777 @th,64,8 0 drop");
    namespace.run(|| {
        // In a batch, the kernel refuses all datagrams with the first.
        for gso in [false, true] {
            let options = Options {
                gso,
                ..Options::default()
            };
            let from = bind(Family::V4, options);
            let to = Socket::bind(Family::V4, 7777, Options::default()).unwrap();
            // The firewall drops datagrams whose first byte is 0.
            let mut bytes = noise(9, 60 * 100);
            for (i, datagram) in bytes.chunks_mut(100).enumerate() {
                datagram[0] = (i % 3 == 1) as u8;
            }
            let destination = at("127.0.0.1", 7777);
            let gone = Local {
                address: "192.0.2.1".parse().unwrap(),
                interface: 0,
            };
            for local in [None, Some(&gone)] {
                let sent = from.send(destination, local, 0, &bytes, 100);
                let error = sent.result.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                assert_eq!(
                    sent.local_dropped,
                    local.is_some(),
                    "the others went without"
                );
                let passed = || bytes.chunks(100).filter(|datagram| datagram[0] == 1);
                let (datagrams, _) = receive_all(&to, passed().count() * 100);
                assert!(passed().eq(&datagrams));
                assert!(silent(&to));
            }
            assert_eq!(from.gso(), gso, "a firewall says nothing about batches");
        }
    });
}

#[test]
fn batches_that_are_refused_keep_their_source() {
    Namespace::new().run(|| {
        let from = bind(Family::V4, Options::default());
        let to = bind(Family::V4, Options::default());
        // Without checksums there is no segmentation offload: `EINVAL`, as for a source address
        // that does not exist.
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads one int, and `on` is one.
        let result = unsafe {
            libc::setsockopt(
                from.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NO_CHECK,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        let local = Local {
            address: "127.3.2.1".parse().unwrap(),
            interface: 0,
        };
        let bytes = noise(10, 100 * 1000);
        let destination = at("127.0.0.1", to.local_port());
        for _ in 0..5 {
            let sent = from.send(destination, Some(&local), 0, &bytes, 1000);
            assert!(!local_dropped(sent));
            let mut received_bytes = Vec::new();
            while received_bytes.len() < bytes.len() {
                let (datagram, received) = receive(&to);
                assert_eq!(received.from.ip(), local.address);
                received_bytes.extend(datagram);
            }
            assert!(received_bytes == bytes);
        }
        // Each send has two batches, until the eighth refusal.
        assert_eq!(from.gso_refusals(), 8);
        assert!(!from.gso());
    });
}

#[test]
fn marks_are_set() {
    Namespace::new().run(|| {
        let mark = |socket: &Socket| {
            let mut value = 0u32;
            let mut size = size_of::<u32>() as libc::socklen_t;
            // SAFETY: `value` has room for `size` bytes.
            let result = unsafe {
                libc::getsockopt(
                    socket.as_fd().as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_MARK,
                    (&raw mut value).cast(),
                    &raw mut size,
                )
            };
            assert_eq!(result, 0);
            value
        };
        for (family, _) in BOTH {
            let options = Options {
                mark: 0xca6c,
                ..Options::default()
            };
            let socket = bind(family, options);
            assert_eq!(mark(&socket), 0xca6c);
            socket.set_mark(u32::MAX).unwrap();
            assert_eq!(mark(&socket), u32::MAX);
            socket.set_mark(0).unwrap();
            assert_eq!(mark(&socket), 0);
            assert_eq!(mark(&bind(family, Options::default())), 0);
        }
    });
}

#[test]
fn both_families_share_a_port_and_nobody_else_gets_it() {
    Namespace::new().run(|| {
        let v4 = bind(Family::V4, Options::default());
        let port = v4.local_port();
        assert_ne!(port, 0);
        let v6 = Socket::bind(Family::V6, port, Options::default()).unwrap();
        assert_eq!(v6.local_port(), port);
        for (family, _) in BOTH {
            let error = Socket::bind(family, port, Options::default()).unwrap_err();
            assert!(matches!(error, BindError::PortInUse(taken) if taken == port));
        }
    });
}

#[test]
fn buffers_are_as_large_as_asked_for() {
    Namespace::new().run(|| {
        let socket = bind(Family::V4, Options::default());
        // The kernel doubles the requested size to account for its overhead.
        let size = rustix::net::sockopt::socket_recv_buffer_size(&socket).unwrap();
        assert_eq!(size, 2 * (7 << 20));
        let size = rustix::net::sockopt::socket_send_buffer_size(&socket).unwrap();
        assert_eq!(size, 2 * (7 << 20));
    });
}
