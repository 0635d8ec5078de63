//! Tests of UDP sockets with the kernel. They need root.

#![cfg(target_os = "linux")]

mod batches;
#[path = "../common/mod.rs"]
mod common;
mod sources;

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    thread,
    time::Duration,
};

use common::{Namespace, SOON, readable};
use taupe_os_linux::udp::{
    BindError, Options, RECEIVE_BUFFER_LEN, RECEIVE_LEN, Receive, Received, Sent, Socket,
    receive_prefixes, set_mark,
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
fn local_address_dropped(sent: Sent) -> bool {
    sent.result.unwrap();
    sent.local_address_dropped
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
            let mut receive = || to.receive_ready(&mut buffer).unwrap();
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
fn beginnings_of_datagrams_come_with_their_whole_lengths() {
    Namespace::new().run(|| {
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut prefixes = [[0; 4]; 5];
        let empty = receive_prefixes(to.as_fd(), &mut prefixes).unwrap_err();
        assert_eq!(empty.kind(), ErrorKind::WouldBlock);
        for datagram in [&b"first datagram"[..], b"", b"next"] {
            from.send_to(datagram, to.local_addr().unwrap()).unwrap();
        }
        let lengths = receive_prefixes(to.as_fd(), &mut prefixes).unwrap();
        assert_eq!(lengths.as_slice(), [14, 0, 4]);
        assert_eq!((&prefixes[0], &prefixes[2]), (b"firs", b"next"));
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
            set_mark(socket.as_fd(), u32::MAX).unwrap();
            assert_eq!(mark(&socket), u32::MAX);
            set_mark(socket.as_fd(), 0).unwrap();
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
