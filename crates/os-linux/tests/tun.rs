//! Tests of TUN devices with the kernel. They need root.

#![cfg(target_os = "linux")]

mod common;

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Namespace, SOON, eventually, forbid, noise, readable};
use taupe_os_linux::{
    tun::{Offloads, OpenError, READ_BUFFER_LEN, Read, Tun, WriteError},
    udp::{Options, RECEIVE_BUFFER_LEN, Receive, Socket},
};
use taupe_packet::ip::Family;
use taupe_packet::{
    merge::{Merger, TunWrite},
    split::Split,
};

const MTU: u32 = 1420;

/// A TUN in its own namespace, with the addresses 10.7.0.N and fd07::N.
struct End {
    namespace: Namespace,
    tun: Tun,
}

fn end(number: u8, offloads: Offloads) -> End {
    let namespace = Namespace::new();
    let tun = namespace.run(|| {
        let tun = Tun::create("tun7", offloads).unwrap();
        tun.set_mtu(MTU).unwrap();
        tun.set_up(true).unwrap();
        tun
    });
    namespace.ip(&format!("addr add 10.7.0.{number}/24 dev tun7"));
    namespace.ip(&format!("addr add fd07::{number}/64 dev tun7 nodad"));
    namespace.settle();
    End { namespace, tun }
}

/// Counters of a pump.
#[derive(Debug, Default)]
struct Counts {
    reads: AtomicUsize,
    segments: AtomicUsize,
    writes: AtomicUsize,
}

/// Transfers packets from one TUN to another as the engine does: split, then merge, without
/// encryption.
fn pump(from: &Tun, to: &Tun, counts: &Counts) {
    let mut buffer = vec![0; READ_BUFFER_LEN];
    let mut batch = vec![0; 256 << 10];
    let mut ranges = Vec::<Range<usize>>::new();
    let mut merger = Merger::new();
    loop {
        let (header, range) = match from.read(&mut buffer).unwrap() {
            Read::Packet { header, range } => (header, range),
            Read::Stopped => return,
            Read::Deleted => panic!("deleted"),
        };
        let split = Split::new(header, &buffer[range]).unwrap();
        ranges.clear();
        let mut end = 0;
        for i in 0..split.count() {
            let length = split.write(i, &mut batch[end..]);
            assert!(length <= MTU as usize, "{length} bytes");
            ranges.push(end..end + length);
            end += length;
        }
        counts.reads.fetch_add(1, Ordering::Relaxed);
        counts.segments.fetch_add(split.count(), Ordering::Relaxed);
        for write in merger.merge(&mut batch, &ranges, to.coalesce()) {
            match to.write(&write) {
                // The other end was shut down first.
                Err(WriteError::Down | WriteError::Deleted) => return,
                written => written.unwrap(),
            }
            counts.writes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `body` while two TUNs are connected. Also returns the counters from the first to the
/// second.
fn crossed<T: Send>(a: &End, b: &End, body: impl FnOnce() -> T + Send) -> (T, Counts) {
    let [there, back] = [Counts::default(), Counts::default()];
    let value = thread::scope(|scope| {
        scope.spawn(|| pump(&a.tun, &b.tun, &there));
        scope.spawn(|| pump(&b.tun, &a.tun, &back));
        let value = scope.spawn(body).join();
        a.tun.shutdown().unwrap();
        b.tun.shutdown().unwrap();
        value
    });
    (value.unwrap(), there)
}

fn listen(end: &End, address: &str) -> (TcpListener, SocketAddr) {
    let address: IpAddr = address.parse().unwrap();
    let listener = end
        .namespace
        .run(|| TcpListener::bind((address, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Sends `data` over a TCP connection from `a` to `b` and returns the received data.
fn transfer(a: &End, b: &End, address: &str, data: &[u8]) -> Vec<u8> {
    let (listener, address) = listen(b, address);
    thread::scope(|scope| {
        scope.spawn(|| {
            a.namespace.run(|| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(data).unwrap();
            });
        });
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::with_capacity(data.len());
        stream.read_to_end(&mut received).unwrap();
        received
    })
}

#[test]
fn tcp_is_carried_in_super_packets() {
    let (a, b) = (end(1, Offloads::default()), end(2, Offloads::default()));
    assert_eq!(a.tun.offloads(), Offloads::default(), "Linux 6.2 has all");
    let data = noise(1, 32 << 20);
    let mut total = Counts::default();
    let ((), counts) = crossed(&a, &b, || {
        for address in ["10.7.0.2", "fd07::2"] {
            let start = Instant::now();
            let received = transfer(&a, &b, address, &data);
            let rate = data.len() as f64 * 8e-9 / start.elapsed().as_secs_f64();
            println!("{address}: {rate:.1} Gb/s");
            assert!(received == data, "other bytes arrived");
        }
    });
    total.reads = counts.reads;
    println!(
        "{counts:?}",
        counts = (&total.reads, &counts.segments, &counts.writes)
    );
    // 64 MiB in segments of 1,380 bytes, mostly read 40 at a time.
    let reads = total.reads.into_inner();
    let segments = counts.segments.into_inner();
    let writes = counts.writes.into_inner();
    assert!(segments > 2 * data.len() / 1400, "{segments}");
    assert!(
        reads * 4 < segments,
        "{reads} reads for {segments} segments"
    );
    assert!(
        writes * 4 < segments,
        "{writes} writes for {segments} segments"
    );
    assert!(
        b.tun.coalesce().tcp && b.tun.coalesce().udp,
        "nothing was refused"
    );
}

#[test]
fn tcp_is_carried_with_any_offload_missing() {
    let all = Offloads::default();
    let some = [
        Offloads::NONE,
        Offloads { tso: false, ..all },
        Offloads { uso: false, ..all },
        Offloads {
            gro_tcp: false,
            ..all
        },
        Offloads {
            gro_udp: false,
            ..all
        },
    ];
    let data = noise(2, 2 << 20);
    for offloads in some {
        let (a, b) = (end(1, offloads), end(2, offloads));
        assert_eq!(a.tun.offloads(), offloads);
        let ((), counts) = crossed(&a, &b, || {
            for address in ["10.7.0.2", "fd07::2"] {
                assert!(transfer(&a, &b, address, &data) == data);
            }
        });
        let [reads, segments, writes] =
            [counts.reads, counts.segments, counts.writes].map(AtomicUsize::into_inner);
        assert_eq!(reads == segments, !offloads.tso, "{offloads:?}");
        assert_eq!(
            writes == segments,
            !offloads.tso || !offloads.gro_tcp,
            "{offloads:?}"
        );
    }
}

#[test]
fn udp_is_carried_in_super_packets() {
    let (a, b) = (end(1, Offloads::default()), end(2, Offloads::default()));
    let ((), counts) = crossed(&a, &b, || {
        for (family, address) in [(Family::V4, "10.7.0.2"), (Family::V6, "fd07::2")] {
            let bind = |end: &End| {
                let bind = || Socket::bind(family, 0, Options::default()).unwrap();
                end.namespace.run(bind)
            };
            let (from, to) = (bind(&a), bind(&b));
            let data = noise(3, 30 * 1200 + 7);
            let destination = SocketAddr::new(address.parse().unwrap(), to.local_port());
            from.send(destination, None, 0, &data, 1200).result.unwrap();
            let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
            assert!(readable(to.as_fd(), SOON));
            let Receive::Datagrams(received) = to.receive(&mut buffer).unwrap() else {
                panic!("stopped");
            };
            let received = received[0];
            assert_eq!((received.len, received.segment), (data.len(), 1200));
            assert!(buffer[..received.len] == data);
        }
    });
    let [reads, segments, writes] =
        [counts.reads, counts.segments, counts.writes].map(AtomicUsize::into_inner);
    assert!(segments >= 62 && reads + 60 <= segments && writes + 60 <= segments);
}

#[test]
fn forwarded_packets_are_split_too() {
    // From a veth with its own offloads through a router's TUN: there the header length that the
    // kernel reports differs from the real one.
    let (a, b) = (end(1, Offloads::default()), end(2, Offloads::default()));
    let host = Namespace::new();
    host.ip(&format!(
        "link add name vh type veth peer name vr netns {}",
        a.namespace.name()
    ));
    host.ip("addr add 10.8.0.1/24 dev vh");
    host.ip("link set vh up");
    host.ip("route add default via 10.8.0.2");
    a.namespace.ip("addr add 10.8.0.2/24 dev vr");
    a.namespace.ip("link set vr up");
    a.namespace.sysctl("ipv4/ip_forward", "1");
    b.namespace.ip("route add 10.8.0.0/24 dev tun7");
    let data = noise(4, 8 << 20);
    let ((), counts) = crossed(&a, &b, || {
        let (listener, address) = listen(&b, "10.7.0.2");
        thread::scope(|scope| {
            scope.spawn(|| {
                host.run(|| {
                    TcpStream::connect(address)
                        .unwrap()
                        .write_all(&data)
                        .unwrap()
                });
            });
            let mut received = Vec::new();
            listener
                .accept()
                .unwrap()
                .0
                .read_to_end(&mut received)
                .unwrap();
            assert!(received == data);
        });
    });
    let [reads, segments] = [counts.reads, counts.segments].map(AtomicUsize::into_inner);
    assert!(reads < segments, "super-packets were forwarded");
}

#[test]
fn names_are_checked_and_taken_once() {
    Namespace::new().run(|| {
        for name in ["", "sixteen-letters-", "a/b", "a:b", "a b", "tun%d", "a\0b"] {
            let error = Tun::create(name, Offloads::default()).unwrap_err();
            assert!(matches!(error, OpenError::Name(_)), "{name:?}: {error}");
        }
        let tun = Tun::create("fifteen-letters", Offloads::default()).unwrap();
        assert_eq!(tun.name().unwrap(), "fifteen-letters");
        let error = Tun::create("fifteen-letters", Offloads::default()).unwrap_err();
        assert!(matches!(error, OpenError::Busy(_)), "{error}");
        let error = Tun::create("lo", Offloads::default()).unwrap_err();
        assert!(matches!(error, OpenError::Busy(_)), "{error}");
        drop(tun);
        // A process that another test is just starting may have inherited the descriptor and hold
        // the name a moment longer.
        eventually("release", || {
            Tun::create("fifteen-letters", Offloads::default()).is_ok()
        });
    });
}

#[test]
fn the_interface_is_described_wherever_it_is() {
    let (home, abroad) = (Namespace::new(), Namespace::new());
    home.run(|| {
        let tun = Tun::create("tun7", Offloads::default()).unwrap();
        assert_eq!(tun.mtu().unwrap(), 1500);
        tun.set_mtu(65_535).unwrap();
        assert_eq!(tun.mtu().unwrap(), 65_535);
        assert!(tun.set_mtu(65_536).is_err());
        assert!(tun.set_mtu(u32::MAX).is_err());
        assert!(home.is(&tun.namespace().unwrap()));
        let index = tun.index().unwrap();
        assert!(index > 1);
        // Another interface takes the name in the old namespace and the index in the new one.
        abroad.ip(&format!("link add name other index {index} type bridge"));
        home.ip(&format!("link set tun7 netns {}", abroad.name()));
        home.ip("link add name tun7 mtu 1300 type bridge");
        abroad.ip("link set tun7 name tun8 mtu 1400");
        assert_eq!(tun.name().unwrap(), "tun8");
        assert_eq!(tun.mtu().unwrap(), 1400);
        assert_ne!(tun.index().unwrap(), index);
        assert!(abroad.is(&tun.namespace().unwrap()));
        abroad.ip("link del tun8");
        for error in [
            tun.name().unwrap_err(),
            tun.mtu().unwrap_err(),
            tun.index().unwrap_err(),
            tun.namespace().unwrap_err(),
            tun.set_up(true).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::EBADFD), "{error}");
        }
    });
}

#[test]
fn reading_stops_when_told() {
    let end = end(1, Offloads::default());
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buffer = vec![0; READ_BUFFER_LEN];
            // The kernel sends a few packets of its own when the interface comes up.
            loop {
                match end.tun.read(&mut buffer).unwrap() {
                    Read::Packet { .. } => {}
                    other => return other,
                }
            }
        });
        thread::sleep(Duration::from_millis(50));
        end.tun.shutdown().unwrap();
        assert_eq!(reader.join().unwrap(), Read::Stopped);
    });
    assert_eq!(end.tun.read(&mut [0; 100]).unwrap(), Read::Stopped);
}

#[test]
fn only_what_is_queued_is_read_without_waiting() {
    read_without_waiting(Tun::read_queued);
}

#[test]
fn what_is_announced_is_read_without_waiting() {
    read_without_waiting(|tun, buffer| tun.read_ready(buffer).unwrap());
}

fn read_without_waiting(read: impl Fn(&Tun, &mut [u8]) -> Option<Read>) {
    let end = end(1, Offloads::default());
    let mut buffer = vec![0; READ_BUFFER_LEN];
    // The kernel sends a few packets of its own when the interface comes up.
    let mut drain = || while read(&end.tun, &mut buffer).is_some() {};
    thread::sleep(Duration::from_millis(50));
    drain();
    let (socket, port) = end.namespace.run(|| {
        let socket = std::net::UdpSocket::bind("10.7.0.1:0").unwrap();
        socket.send_to(b"first", "10.7.0.2:9").unwrap();
        socket.send_to(b"second", "10.7.0.2:9").unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    });
    let mut buffer = vec![0; READ_BUFFER_LEN];
    let mut contents = Vec::new();
    while let Some(read) = read(&end.tun, &mut buffer) {
        let Read::Packet { range, .. } = read else {
            panic!("{read:?}");
        };
        let packet = &buffer[range];
        if packet.get(20..22) == Some(&port.to_be_bytes()[..]) {
            contents.push(packet[28..].to_vec());
        }
    }
    assert!(end.tun.can_read_queued());
    assert_eq!(contents, [b"first".to_vec(), b"second".to_vec()]);
    drop(socket);
    end.namespace.ip("link del tun7");
    let deleted = read(&end.tun, &mut buffer);
    assert_eq!(deleted, Some(Read::Deleted));
}

#[test]
fn a_sandbox_that_forbids_to_read_at_once_is_no_error() {
    for error in [libc::EPERM, libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP] {
        let end = end(1, Offloads::default());
        let mut buffer = vec![0; READ_BUFFER_LEN];
        thread::scope(|scope| {
            scope.spawn(|| {
                forbid(libc::SYS_preadv2, error);
                assert_eq!(end.tun.read_queued(&mut buffer), None, "{error}");
                let socket = end.namespace.run(|| {
                    let socket = std::net::UdpSocket::bind("10.7.0.1:0").unwrap();
                    socket.send_to(b"announced", "10.7.0.2:9").unwrap();
                    socket
                });
                let read = end.tun.read_ready(&mut buffer).unwrap();
                let is_packet = matches!(read, Some(Read::Packet { .. }));
                assert!(is_packet, "{error}: {read:?}");
                drop(socket);
                // A blocking read still reports the deletion.
                end.namespace.ip("link del tun7");
                assert_eq!(end.tun.read(&mut buffer).unwrap(), Read::Deleted);
            });
        });
    }
}

#[test]
fn who_cannot_read_at_once_is_asked_only_once() {
    // The errors of Linux before 5.11 and of sandboxes.
    for error in [libc::EOPNOTSUPP, libc::EPERM, libc::ENOSYS] {
        let end = end(1, Offloads::default());
        let mut buffer = vec![0; READ_BUFFER_LEN];
        thread::scope(|scope| {
            scope.spawn(|| {
                forbid(libc::SYS_preadv2, error);
                assert!(end.tun.can_read_queued());
                assert_eq!(end.tun.read_queued(&mut buffer), None, "{error}");
            });
        });
        assert!(!end.tun.can_read_queued());
        end.namespace.ip("link del tun7");
        // In this thread the call is permitted and would report the deletion, but it is not tried
        // again.
        assert_eq!(end.tun.read_queued(&mut buffer), None, "{error}");
    }
}

#[test]
fn deletion_ends_reading_and_writing() {
    let end = end(1, Offloads::default());
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buffer = vec![0; READ_BUFFER_LEN];
            loop {
                match end.tun.read(&mut buffer).unwrap() {
                    Read::Packet { .. } => {}
                    other => return other,
                }
            }
        });
        thread::sleep(Duration::from_millis(50));
        end.namespace.ip("link del tun7");
        assert_eq!(reader.join().unwrap(), Read::Deleted);
    });
    let error = end.tun.write(&TunWrite::single(&ping())).unwrap_err();
    assert!(matches!(error, WriteError::Deleted), "{error}");
}

#[test]
fn writing_while_down_is_not_the_end() {
    let end = end(1, Offloads::default());
    end.namespace.run(|| end.tun.set_up(false).unwrap());
    let error = end.tun.write(&TunWrite::single(&ping())).unwrap_err();
    assert!(matches!(error, WriteError::Down), "{error}");
    end.namespace.run(|| end.tun.set_up(true).unwrap());
    end.tun.write(&TunWrite::single(&ping())).unwrap();
}

/// An echo request from 10.7.0.2 to 10.7.0.1.
fn ping() -> Vec<u8> {
    let mut packet = Vec::new();
    etherparse::PacketBuilder::ipv4([10, 7, 0, 2], [10, 7, 0, 1], 64)
        .icmpv4_echo_request(1, 2)
        .write(&mut packet, b"ping")
        .unwrap();
    packet
}

#[test]
fn what_is_no_packet_is_refused_alone() {
    let end = end(1, Offloads::default());
    let error = end.tun.write(&TunWrite::single(&[0; 40])).unwrap_err();
    assert!(matches!(error, WriteError::Io(_)), "{error}");
    end.tun.write(&TunWrite::single(&ping())).unwrap();
}

#[test]
fn errors_we_send_reach_the_sender() {
    for address in ["10.7.0.9", "fd07::9"] {
        let end = end(1, Offloads::default());
        let address: IpAddr = address.parse().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0; READ_BUFFER_LEN];
                while let Read::Packet { header, range } = end.tun.read(&mut buffer).unwrap() {
                    let split = Split::new(header, &buffer[range]).unwrap();
                    let mut packet = vec![0; split.segment_len()];
                    split.write(0, &mut packet);
                    if taupe_packet::ip::Packet::parse(&packet)
                        .unwrap()
                        .destination()
                        == address
                    {
                        let answer = taupe_packet::icmp::error(
                            taupe_packet::icmp::Error::HostUnreachable,
                            &packet,
                            1420,
                            None,
                        )
                        .unwrap();
                        end.tun.write(&TunWrite::single(&answer)).unwrap();
                    }
                }
            });
            // The TCP handshake fails on an ICMP error, at the latest on the second.
            end.namespace.sysctl("ipv4/tcp_syn_retries", "2");
            let connect = || TcpStream::connect((address, 9)).unwrap_err();
            let error = end.namespace.run(connect);
            end.tun.shutdown().unwrap();
            assert_eq!(error.raw_os_error(), Some(libc::EHOSTUNREACH), "{error}");
        });
    }
}

/// Opens a TUN as another program might, in any mode.
fn foreign_tun(flags: libc::c_int) -> OwnedFd {
    let flags_to_open = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags_to_open, rustix::fs::Mode::empty()).unwrap();
    let mut request = [0u8; 40];
    request[..4].copy_from_slice(b"tun7");
    request[16..18].copy_from_slice(&(flags as i16).to_ne_bytes());
    // A process that another test is just starting may have inherited the previous descriptor and
    // hold the name a moment longer.
    eventually("release", || {
        // SAFETY: the request reads and writes a `struct ifreq` of 40 bytes.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        result == 0
    });
    fd
}

#[test]
fn a_descriptor_passed_in_keeps_its_mode() {
    let namespace = Namespace::new();
    namespace.run(|| {
        let plain = libc::IFF_TUN | libc::IFF_NO_PI;
        let tun = Tun::from_fd(foreign_tun(plain), Offloads::default()).unwrap();
        assert_eq!(tun.offloads(), Offloads::NONE);
        assert!(!tun.coalesce().tcp && !tun.coalesce().udp);
        tun.set_up(true).unwrap();
        namespace.ip("addr add 10.7.0.1/24 dev tun7");
        tun.write(&TunWrite::single(&ping())).unwrap();
        let mut buffer = vec![0; READ_BUFFER_LEN];
        eventually("an answer", || match tun.read(&mut buffer).unwrap() {
            Read::Packet { header, range } => {
                assert_eq!(header, Default::default());
                // An echo reply.
                buffer[range.start + 9] == 1 && buffer[range.start + 20] == 0
            }
            other => panic!("{other:?}"),
        });
        drop(tun);

        let full = plain | libc::IFF_VNET_HDR;
        let tun = Tun::from_fd(foreign_tun(full), Offloads::default()).unwrap();
        assert_eq!(tun.offloads(), Offloads::default());
        assert_eq!(tun.name().unwrap(), "tun7");
        drop(tun);

        for mode in [libc::IFF_TUN, libc::IFF_TAP | libc::IFF_NO_PI] {
            let error = Tun::from_fd(foreign_tun(mode), Offloads::default()).unwrap_err();
            assert!(matches!(error, OpenError::Mode), "{error}");
        }
        let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let error = Tun::from_fd(null, Offloads::default()).unwrap_err();
        assert!(matches!(error, OpenError::NotTun(_)), "{error}");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let detached = rustix::fs::open("/dev/net/tun", flags, rustix::fs::Mode::empty());
        let error = Tun::from_fd(detached.unwrap(), Offloads::default()).unwrap_err();
        assert!(matches!(error, OpenError::NotTun(_)), "{error}");
    });
}
