//! Tests of batches: segmentation offload, merged datagrams, and what happens when the kernel refuses
//! them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    thread,
};

use taupe_os_linux::udp::{MAX_RECEIVES, Options, PacketInfo, RECEIVE_BUFFER_LEN, Receive, Socket};
use taupe_packet::ip::Family;

use crate::{
    BOTH, at, bind,
    common::{Namespace, SOON, forbid, noise, readable},
    joined, local_address_dropped, receive, receive_all, silent,
};

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
fn merged_datagrams_beyond_the_buffer_do_not_disturb_others() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let from = bind(family, Options::default());
            let to = bind(family, Options::default());
            let destination = at(address, to.local_port());
            let bytes = noise(11, 5 * 1000);
            from.send(destination, None, 0, &bytes, 1000)
                .result
                .unwrap();
            from.send(destination, None, 0, b"fine", 4).result.unwrap();
            let mut buffer = [0; 2500];
            for (expected, segment) in [(&bytes[..2500], 1000), (b"fine", 4)] {
                let Receive::Datagrams(received) = to.receive(&mut buffer).unwrap() else {
                    panic!("stopped");
                };
                let [received] = received[..] else {
                    panic!("{received:?}");
                };
                assert!(&buffer[received.start..][..received.len] == expected);
                assert_eq!(received.segment, segment);
                assert_eq!(received.truncated, expected.len() == buffer.len());
            }
        }
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
        let local = PacketInfo {
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
            assert!(!local_address_dropped(sent));
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
                            assert!(!local_address_dropped(sent));
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
            let gone = PacketInfo {
                address: "192.0.2.1".parse().unwrap(),
                interface: 0,
            };
            for local in [None, Some(&gone)] {
                let sent = from.send(destination, local, 0, &bytes, 100);
                let error = sent.result.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                assert_eq!(
                    sent.local_address_dropped,
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
        let local = PacketInfo {
            address: "127.3.2.1".parse().unwrap(),
            interface: 0,
        };
        let bytes = noise(10, 100 * 1000);
        let destination = at("127.0.0.1", to.local_port());
        for _ in 0..5 {
            let sent = from.send(destination, Some(&local), 0, &bytes, 1000);
            assert!(!local_address_dropped(sent));
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
