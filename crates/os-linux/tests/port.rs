//! Tests of two sockets on one port with the kernel. They need root.

#![cfg(target_os = "linux")]

mod common;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use common::{Namespace, SOON, readable};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType},
};
use taupe_os_linux::udp::{BindError, Options, RECEIVE_LEN, Receive, Socket};
use taupe_packet::ip::Family;

const BOTH: [(Family, &str); 2] = [(Family::V4, "127.0.0.1"), (Family::V6, "::1")];

const KEEPS: Options = Options {
    demux_byte: Some(4),
    mark: 0,
    gso: true,
    gro: true,
    buffers: None,
};

fn pair(family: Family) -> (Socket, Socket) {
    let first = Socket::bind(family, 0, KEEPS).unwrap();
    let second = first.bind_second(None).unwrap();
    assert_eq!(first.local_port(), second.local_port());
    (first, second)
}

/// Binds a socket of another program that would share the port.
fn sharing(family: Family, port: u16) -> Result<(), Errno> {
    let (domain, any): (_, IpAddr) = match family {
        Family::V4 => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        Family::V6 => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let socket = rustix::net::socket(domain, SocketType::DGRAM, None)?;
    rustix::net::sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(any, port))
}

/// Receives exactly `count` batches, as merged by the kernel.
fn received(socket: &Socket, count: usize) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; RECEIVE_LEN];
    let mut all = Vec::new();
    let wait = |got: usize| {
        if got < count {
            SOON
        } else {
            Duration::from_millis(20)
        }
    };
    while readable(socket.as_fd(), wait(all.len())) {
        let Receive::Datagrams(batches) = socket.receive(&mut buffer).unwrap() else {
            panic!("stopped");
        };
        all.extend(
            batches
                .iter()
                .map(|one| buffer[one.start..][..one.len].to_vec()),
        );
    }
    all
}

#[test]
fn what_a_datagram_begins_with_says_whose_it_is() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let first = Socket::bind(family, 0, KEEPS).unwrap();
            let to = SocketAddr::new(address.parse().unwrap(), first.local_port());
            let all: [&[u8]; 6] = [b"", &[4], &[1; 148], &[4; 1000], &[0], &[5, 4, 4]];
            let from = UdpSocket::bind((address, 0)).unwrap();
            let send = || {
                for datagram in all {
                    from.send_to(datagram, to).unwrap();
                }
            };
            send();
            assert_eq!(received(&first, all.len()), all, "while it is alone");
            let second = first.bind_second(None).unwrap();
            send();
            assert_eq!(received(&first, 3), [&b""[..], &[4], &[4; 1000]]);
            assert_eq!(received(&second, 3), [&[1; 148][..], &[0], &[5, 4, 4]]);
            drop(second);
            send();
            assert_eq!(received(&first, all.len()), all, "alone again");
        }
    });
}

#[test]
fn each_is_sent_batches_whole() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let (first, second) = pair(family);
            let to = SocketAddr::new(address.parse().unwrap(), first.local_port());
            // The sender's port determines which of the two sockets the kernel consults about
            // merging.
            for _ in 0..20 {
                let from = Socket::bind(family, 0, Options::default()).unwrap();
                for (socket, byte) in [(&first, 4), (&second, 1)] {
                    let bytes = vec![byte; 40 * 148 + 9];
                    from.send(to, None, 0, &bytes, 148).result.unwrap();
                    assert_eq!(received(socket, 1), [bytes]);
                }
            }
        }
    });
}

#[test]
fn the_first_of_a_batch_decides() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let (first, second) = pair(family);
            let to = SocketAddr::new(address.parse().unwrap(), first.local_port());
            let from = Socket::bind(family, 0, Options::default()).unwrap();
            for (socket, bytes) in [(&first, [4, 1]), (&second, [1, 4])] {
                let batch = [[bytes[0]; 148], [bytes[1]; 148]].concat();
                from.send(to, None, 0, &batch, 148).result.unwrap();
                assert_eq!(received(socket, 1), [batch]);
            }
        }
    });
}

#[test]
fn who_does_not_ask_to_share_gets_no_port_of_others() {
    Namespace::new().run(|| {
        for (family, _) in BOTH {
            let (first, _second) = pair(family);
            let port = first.local_port();
            for options in [KEEPS, Options::default()] {
                let error = Socket::bind(family, port, options).unwrap_err();
                assert!(matches!(error, BindError::PortInUse(taken) if taken == port));
            }
            let alone = Socket::bind(family, 0, Options::default()).unwrap();
            assert!(matches!(alone.bind_second(None), Err(BindError::Io { .. })));
            // Before a second socket is bound, no other socket may share the port.
            let first = Socket::bind(family, 0, KEEPS).unwrap();
            let sharing = sharing(family, first.local_port());
            assert_eq!(sharing, Err(Errno::ADDRINUSE));
        }
    });
}
