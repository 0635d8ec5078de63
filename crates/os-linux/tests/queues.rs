//! Tests of TUN interfaces with several queues. They need root.

#![cfg(target_os = "linux")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IoSlice, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use common::{Namespace, SOON, forbid, noise};
use rustix::event::{PollFd, PollFlags, poll};
use taupe_os_linux::{
    tun::{Offloads, OpenError, Queues, READ_BUFFER_LEN, Read, Tun},
    udp::{Options, Socket},
};
use taupe_packet::{
    checksum::Sum,
    ip::Family,
    merge::TunWrite,
    virtio::{self, VirtioHeader},
};
use zerocopy::IntoBytes as _;

const COUNT: usize = 8;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
const ICMP: u8 = 1;
const GRE: u8 = 47;

/// One end of a flow: the last 16 bits of an address, and a port.
type FlowEnd = (u16, u16);

/// The header in front of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    V4,
    /// With 12 bytes of options.
    V4WithOptions,
    /// With "more fragments" and an offset in units of 8 bytes.
    V4Fragment(bool, u16),
    V6,
    V6WithDestinationOptions,
    /// With an offset in units of 8 bytes.
    V6Fragment(u16),
}

/// Returns a packet whose last 8 bytes are `tag`.
fn packet(shape: Shape, protocol: u8, from: FlowEnd, to: FlowEnd, tag: u64) -> Vec<u8> {
    let mut body = Vec::new();
    let [extension, next] = match shape {
        Shape::V6WithDestinationOptions => [60, protocol],
        Shape::V6Fragment(_) => [44, protocol],
        _ => [protocol; 2],
    };
    match shape {
        // One option: padding.
        Shape::V6WithDestinationOptions => body.extend([next, 0, 1, 4, 0, 0, 0, 0]),
        Shape::V6Fragment(offset) => {
            body.extend([next, 0]);
            body.extend((offset << 3 | 1).to_be_bytes());
            body.extend([0, 0, 0, 7]);
        }
        _ => {}
    }
    body.extend(from.1.to_be_bytes());
    body.extend(to.1.to_be_bytes());
    body.extend([0; 24]);
    body.extend(tag.to_be_bytes());
    let [from, to] = [from.0, to.0].map(u16::to_be_bytes);
    let mut packet = Vec::new();
    match shape {
        Shape::V4 | Shape::V4WithOptions | Shape::V4Fragment(..) => {
            let options: &[u8] = match shape {
                // No operation.
                Shape::V4WithOptions => &[1; 12],
                _ => &[],
            };
            let fragment = match shape {
                Shape::V4Fragment(more, offset) => u16::from(more) << 13 | offset,
                _ => 0,
            };
            let length = 20 + options.len() + body.len();
            packet.extend([0x45 + options.len() as u8 / 4, 0]);
            packet.extend((length as u16).to_be_bytes());
            packet.extend([0, 7]);
            packet.extend(fragment.to_be_bytes());
            packet.extend([64, protocol, 0, 0, 10, 9, from[0], from[1]]);
            packet.extend([10, 9, to[0], to[1]]);
            packet.extend(options);
            let checksum = Sum::ZERO.bytes(&packet).checksum();
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        _ => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((body.len() as u16).to_be_bytes());
            packet.extend([extension, 64]);
            for end in [from, to] {
                packet.extend([0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end[0], end[1]]);
            }
        }
    }
    packet.extend(body);
    packet
}

/// A router that forwards packets from one TUN to another, which has several queues.
struct Router {
    input: Tun,
    queues: Vec<Tun>,
    next_tag: u64,
}

impl Router {
    fn new(namespace: &Namespace) -> Self {
        let queues = several();
        let input = Tun::create("tun8", Offloads::NONE).unwrap();
        for tun in [&queues[0], &input] {
            tun.set_up(true).unwrap();
        }
        namespace.ip("route add default dev tun7");
        namespace.ip("-6 route add default dev tun7");
        namespace.sysctl("ipv4/ip_forward", "1");
        namespace.sysctl("ipv6/conf/all/forwarding", "1");
        Self {
            input,
            queues,
            // No packet of the kernel ends like this.
            next_tag: 0x5aa5_c33c_0000_0000,
        }
    }

    /// Forwards a packet and returns the number of the queue in which it arrives.
    fn queue_of(&mut self, shape: Shape, protocol: u8, from: FlowEnd, to: FlowEnd) -> usize {
        self.next_tag += 1;
        let packet = packet(shape, protocol, from, to, self.next_tag);
        self.input.write(&TunWrite::single(&packet)).unwrap();
        let tag = self.next_tag.to_be_bytes();
        let (queue, _) = read_from_any(&self.queues, |packet| packet.ends_with(&tag));
        queue
    }
}

/// Creates an interface, and returns its queues, and the reason why there is only one.
fn create(offloads: Offloads, count: usize) -> (Vec<Tun>, Option<OpenError>) {
    let created = Tun::create_queues("tun7", offloads, count);
    let Queues {
        first,
        others,
        refused,
    } = created.unwrap();
    let queues = std::iter::once(first).chain(others).collect();
    (queues, refused)
}

/// Creates an interface with several queues.
fn several() -> Vec<Tun> {
    let (queues, refused) = create(Offloads::default(), COUNT);
    assert!(refused.is_none(), "{refused:?}");
    assert_eq!(queues.len(), COUNT);
    queues
}

/// Reads packets until `is` accepts one, and returns its queue and the type of its offload. The
/// other packets are the kernel's own, such as router solicitations.
fn read_from_any(queues: &[Tun], is: impl Fn(&[u8]) -> bool) -> (usize, u8) {
    let start = Instant::now();
    let mut buffer = vec![0; READ_BUFFER_LEN];
    loop {
        let left = SOON.checked_sub(start.elapsed()).expect("a packet");
        let mut fds: Vec<_> = queues
            .iter()
            .map(|tun| PollFd::new(tun, PollFlags::IN))
            .collect();
        poll(&mut fds, Some(&left.try_into().unwrap())).unwrap();
        for (i, tun) in queues.iter().enumerate() {
            while let Some(read) = tun.read_queued(&mut buffer) {
                let Read::Packet { header, range } = read else {
                    panic!("{read:?}");
                };
                if is(&buffer[range]) {
                    return (i, header.gso_type);
                }
            }
        }
    }
}

#[test]
fn both_directions_of_a_flow_have_one_queue() {
    let namespace = Namespace::new();
    namespace.run(|| {
        let mut router = Router::new(&namespace);
        let shapes = [
            Shape::V4,
            Shape::V4WithOptions,
            Shape::V4Fragment(true, 0),
            Shape::V6,
            Shape::V6WithDestinationOptions,
            Shape::V6Fragment(0),
        ];
        for shape in shapes {
            for protocol in [TCP, UDP, SCTP, UDP_LITE, ICMP, GRE] {
                for i in 0..16 {
                    let [from, to] = [(300 * i, 1000 + i), (7, 7777)];
                    let queue = router.queue_of(shape, protocol, from, to);
                    for _ in 0..2 {
                        let there = router.queue_of(shape, protocol, from, to);
                        let back = router.queue_of(shape, protocol, to, from);
                        assert_eq!([there, back], [queue; 2], "{shape:?} {protocol}");
                    }
                }
            }
        }
    });
}

#[test]
fn flows_are_spread_over_the_queues() {
    /// The number of flows in a series, and the least number of queues that they use. By chance
    /// they use fewer once in 10^9 times.
    const FLOWS: u16 = 64;
    const QUEUES: usize = 6;
    let namespace = Namespace::new();
    namespace.run(|| {
        let mut router = Router::new(&namespace);
        for shape in [Shape::V4, Shape::V4WithOptions, Shape::V6] {
            // Flows that differ in one port.
            for protocol in [TCP, UDP, SCTP, UDP_LITE] {
                let queues: BTreeSet<_> = (0..FLOWS)
                    .map(|i| router.queue_of(shape, protocol, (1, 40_000 + i), (2, 443)))
                    .collect();
                assert!(queues.len() >= QUEUES, "{shape:?} {protocol}: {queues:?}");
            }
            // Flows that differ in one address.
            let queues: BTreeSet<_> = (0..FLOWS)
                .map(|i| router.queue_of(shape, ICMP, (i, 0), (1000, 0)))
                .collect();
            assert!(queues.len() >= QUEUES, "{shape:?}: {queues:?}");
            // Flows that differ in ports and addresses, but whose sums or exclusive ors are all the
            // same.
            let queues: BTreeSet<_> = (0..FLOWS)
                .map(|i| router.queue_of(shape, UDP, (i, 5000 + i), (200 - i, 9000 - i)))
                .collect();
            assert!(queues.len() >= QUEUES, "{shape:?}: {queues:?}");
            let queues: BTreeSet<_> = (0..FLOWS)
                .map(|i| router.queue_of(shape, UDP, (i, i), (i ^ 0x1234, i ^ 0x4321)))
                .collect();
            assert!(queues.len() >= QUEUES, "{shape:?}: {queues:?}");
        }
    });
}

#[test]
fn packets_whose_ports_may_be_missing_are_distributed_by_addresses() {
    let namespace = Namespace::new();
    namespace.run(|| {
        let mut router = Router::new(&namespace);
        let series: [&[Shape]; 3] = [
            // First fragment, in the middle, last.
            &[
                Shape::V4Fragment(true, 0),
                Shape::V4Fragment(true, 100),
                Shape::V4Fragment(false, 200),
            ],
            &[Shape::V6Fragment(0), Shape::V6Fragment(100)],
            &[Shape::V6WithDestinationOptions],
        ];
        for shapes in series {
            let mut all = BTreeSet::new();
            for address in 0..64 {
                let queues: BTreeSet<_> = (0..8)
                    .flat_map(|port| shapes.iter().map(move |shape| (port, *shape)))
                    .map(|(port, shape)| router.queue_of(shape, UDP, (address, port), (999, 53)))
                    .collect();
                assert_eq!(queues.len(), 1, "{shapes:?}");
                all.extend(queues);
            }
            assert!(all.len() > 5, "{shapes:?}: {all:?}");
        }
        // The header's length decides where the ports are, so options make no difference.
        for port in 0..16 {
            let queues = [Shape::V4, Shape::V4WithOptions]
                .map(|shape| router.queue_of(shape, TCP, (3, port), (4, 80)));
            assert_eq!(queues[0], queues[1]);
        }
    });
}

#[test]
fn writes_do_not_move_a_flow() {
    let namespace = Namespace::new();
    namespace.run(|| {
        let mut router = Router::new(&namespace);
        for shape in [Shape::V4, Shape::V6] {
            for protocol in [TCP, UDP] {
                let [near, far] = [(5, 50_000), (6, 443)];
                let queue = router.queue_of(shape, protocol, near, far);
                for other in 0..COUNT {
                    let answer = packet(shape, protocol, far, near, 0);
                    let write = TunWrite::single(&answer);
                    router.queues[other].write(&write).unwrap();
                    assert_eq!(router.queue_of(shape, protocol, near, far), queue);
                }
            }
        }
    });
}

#[test]
fn super_packets_have_the_queue_of_their_flow() {
    let namespace = Namespace::new();
    namespace.run(|| {
        let queues = several();
        queues[0].set_up(true).unwrap();
        namespace.ip("addr add 10.7.0.1/24 dev tun7");
        namespace.ip("addr add fd07::1/64 dev tun7 nodad");
        namespace.settle();
        let mut used = BTreeSet::new();
        for (family, to) in [(Family::V4, "10.7.0.2:9"), (Family::V6, "[fd07::2]:9")] {
            for i in 0..16 {
                let socket = Socket::bind(family, 0, Options::default()).unwrap();
                let to: SocketAddr = to.parse().unwrap();
                let tag = [i, 0xa5, 0x5a, i];
                let mut seen = BTreeSet::new();
                for (count, gso) in [(1, false), (20, true), (2, true), (1, false)] {
                    let bytes = tag.repeat(100 * count);
                    socket.send(to, None, 0, &bytes, 400).result.unwrap();
                    let (queue, kind) = read_from_any(&queues, |packet| packet.ends_with(&tag));
                    assert_eq!(kind == virtio::GSO_UDP_L4, gso);
                    seen.insert(queue);
                }
                assert_eq!(seen.len(), 1);
                used.extend(seen);
            }
        }
        assert!(used.len() > 3, "{used:?}");
    });
}

/// Copies packets from one TUN to several others in turn. The other end completes the offloads.
fn pump(from: &Tun, to: &[Tun], mut see: impl FnMut(&VirtioHeader, &[u8])) {
    let mut buffer = vec![0; READ_BUFFER_LEN];
    for next in to.iter().cycle() {
        match from.read(&mut buffer).unwrap() {
            Read::Packet { header, range } => {
                let packet = &buffer[range];
                see(&header, packet);
                let slices = [header.as_bytes(), packet].map(IoSlice::new);
                // Fails if the other end was shut down first.
                let _ = rustix::io::writev(next, &slices);
            }
            Read::Stopped => return,
            Read::Deleted => panic!("deleted"),
        }
    }
}

#[test]
fn connections_stay_on_their_queues() {
    const CONNECTIONS: usize = 16;
    let [near, far] = [(); 2].map(|()| Namespace::new());
    let queues = near.run(several);
    let end = [far.run(|| Tun::create("tun7", Offloads::default()).unwrap())];
    for (namespace, number, tun) in [(&near, 1, &queues[0]), (&far, 2, &end[0])] {
        namespace.run(|| tun.set_up(true).unwrap());
        namespace.ip(&format!("addr add 10.7.0.{number}/24 dev tun7"));
    }
    let listener = far.run(|| TcpListener::bind("10.7.0.2:0").unwrap());
    let address = listener.local_addr().unwrap();
    let data = noise(1, 1 << 20);
    // The queues in which the packets of each source port arrived.
    let seen = Mutex::new(BTreeMap::<u16, BTreeSet<usize>>::new());
    let super_packets = AtomicUsize::new(0);
    let (end, seen, data, queues, super_packets) = (&end, &seen, &data, &queues, &super_packets);
    thread::scope(|scope| {
        for (i, queue) in queues.iter().enumerate() {
            scope.spawn(move || {
                pump(queue, end, |header, packet| {
                    if packet[0] >> 4 == 4 && packet[9] == TCP {
                        let port = u16::from_be_bytes([packet[20], packet[21]]);
                        seen.lock().unwrap().entry(port).or_default().insert(i);
                        let is_super_packet = header.gso_type != virtio::GSO_NONE;
                        super_packets.fetch_add(is_super_packet.into(), Ordering::Relaxed);
                    }
                });
            });
        }
        // The acknowledgements arrive through all queues.
        scope.spawn(|| pump(&end[0], queues, |_, _| {}));
        let transfers = scope.spawn(|| {
            thread::scope(|scope| {
                for _ in 0..CONNECTIONS {
                    scope.spawn(|| {
                        let mut stream = near.run(|| TcpStream::connect(address).unwrap());
                        stream.write_all(data).unwrap();
                    });
                }
                for _ in 0..CONNECTIONS {
                    let mut received = Vec::new();
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.read_to_end(&mut received).unwrap();
                    assert!(received == *data, "other bytes arrived");
                }
            });
        });
        let transferred = transfers.join();
        // This ends the threads of all queues.
        queues[3].shutdown().unwrap();
        end[0].shutdown().unwrap();
        transferred.unwrap();
    });
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), CONNECTIONS);
    assert!(seen.values().all(|queues| queues.len() == 1), "{seen:?}");
    let used: BTreeSet<_> = seen.values().flatten().collect();
    assert!(used.len() > 2, "{used:?}");
    assert!(super_packets.load(Ordering::Relaxed) > CONNECTIONS);
}

#[test]
fn the_end_of_the_interface_ends_all_reads() {
    let namespace = Namespace::new();
    for shut_down in [true, false] {
        let queues = namespace.run(several);
        let ends: Vec<_> = thread::scope(|scope| {
            let reads: Vec<_> = queues
                .iter()
                .map(|tun| scope.spawn(|| tun.read(&mut [0; 2000]).unwrap()))
                .collect();
            if shut_down {
                queues[5].shutdown().unwrap();
            } else {
                namespace.ip("link del tun7");
            }
            reads.into_iter().map(|read| read.join().unwrap()).collect()
        });
        let expected = if shut_down {
            Read::Stopped
        } else {
            Read::Deleted
        };
        assert_eq!(ends, vec![expected.clone(); COUNT]);
        for tun in &queues {
            assert_eq!(tun.read(&mut [0; 2000]).unwrap(), expected);
            tun.name().expect_err("the interface was deleted");
        }
        for tun in &queues {
            tun.shutdown().unwrap();
            assert_eq!(tun.read(&mut [0; 2000]).unwrap(), Read::Stopped);
        }
    }
}

#[test]
fn all_queues_are_of_one_interface() {
    Namespace::new().run(|| {
        for (requested, granted) in [(0, 1), (1, 1), (2, 2), (16, 16)] {
            let offloads = Offloads {
                uso: false,
                ..Offloads::default()
            };
            let (queues, refused) = create(offloads, requested);
            assert!(refused.is_none(), "{refused:?}");
            assert_eq!(queues.len(), granted);
            queues[0].set_mtu(1420).unwrap();
            let index = queues[0].index().unwrap();
            for tun in &queues {
                assert_eq!(tun.name().unwrap(), "tun7");
                assert_eq!(tun.index().unwrap(), index);
                assert_eq!(tun.mtu().unwrap(), 1420);
                assert_eq!(tun.offloads(), offloads);
            }
            // No other program gets one.
            for count in [1, 2] {
                let error = Tun::create_queues("tun7", offloads, count).unwrap_err();
                assert!(matches!(error, OpenError::Busy(_)), "{error}");
            }
            queues[0].shutdown().unwrap();
        }
    });
}

#[test]
fn one_queue_remains_if_several_are_refused() {
    let namespace = Namespace::new();
    namespace.run(|| {
        let expect_one = |reason: &str| {
            let (queues, refused) = create(Offloads::default(), COUNT);
            assert_eq!(queues.len(), 1);
            let error = refused.expect("a reason").to_string();
            assert!(error.contains(reason), "{error}");
            queues[0].set_up(true).unwrap();
            read_from_any(&queues, |_| true);
        };
        namespace.ip("tuntap add dev tun7 mode tun");
        expect_one("already exists");
        namespace.ip("link del tun7");
        forbid(libc::SYS_bpf, libc::EPERM);
        expect_one("steering program");
    });
}
