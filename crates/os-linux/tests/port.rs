//! Tests of several sockets on one port with the kernel. They need root.

#![cfg(target_os = "linux")]

mod common;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use common::{Namespace, SOON, eventually, forbid_option, noise, readable};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType},
};
use taupe_os_linux::udp::{
    BindError, Options, RECEIVE_LEN, Receive, Socket, SocketGroup, Steering,
};
use taupe_packet::ip::Family;

const BOTH: [(Family, &str); 2] = [(Family::V4, "127.0.0.1"), (Family::V6, "::1")];

/// First byte of a data message.
const DATA: u8 = 4;

const OPTIONS: Options = Options {
    mark: 0,
    gso: true,
    gro: true,
    buffers: None,
};

fn group(family: Family, port: u16, steering: &Steering) -> Result<SocketGroup, BindError> {
    SocketGroup::bind(family, port, OPTIONS, steering, None)
}

/// Binds one data socket and the socket for other datagrams.
fn pair(family: Family) -> (Socket, Socket) {
    let mut group = group(family, 0, &Steering::new(DATA, 1, 1)).unwrap();
    assert_eq!(group.data.len(), 1);
    let (first, second) = (group.data.remove(0), group.others.unwrap());
    assert_eq!(first.local_port(), second.local_port());
    (first, second)
}

/// Binds a socket of another program that would share the port.
fn sharing(family: Family, port: u16) -> Result<OwnedFd, Errno> {
    let (domain, any): (_, IpAddr) = match family {
        Family::V4 => (AddressFamily::INET, Ipv4Addr::UNSPECIFIED.into()),
        Family::V6 => (AddressFamily::INET6, Ipv6Addr::UNSPECIFIED.into()),
    };
    let socket = rustix::net::socket(domain, SocketType::DGRAM, None)?;
    rustix::net::sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(any, port))?;
    Ok(socket)
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

/// Waits until a dropped socket for other datagrams is closed. A process that another test starts
/// at this moment may have inherited the descriptor, and closes it a little later.
fn eventually_gone(first: &Socket, from: &UdpSocket, to: SocketAddr) {
    eventually("the end of the socket", || {
        from.send_to(&[0], to).unwrap();
        readable(first.as_fd(), Duration::ZERO)
    });
    while readable(first.as_fd(), Duration::ZERO) {
        first.receive(&mut [0; 100]).unwrap();
    }
}

#[test]
fn what_a_datagram_begins_with_says_whose_it_is() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let (first, second) = pair(family);
            let to = SocketAddr::new(address.parse().unwrap(), first.local_port());
            let all: [&[u8]; 6] = [b"", &[4], &[1; 148], &[4; 1000], &[0], &[5, 4, 4]];
            let from = UdpSocket::bind((address, 0)).unwrap();
            let send = || {
                for datagram in all {
                    from.send_to(datagram, to).unwrap();
                }
            };
            send();
            assert_eq!(received(&first, 3), [&b""[..], &[4], &[4; 1000]]);
            assert_eq!(received(&second, 3), [&[1; 148][..], &[0], &[5, 4, 4]]);
            drop(second);
            eventually_gone(&first, &from, to);
            send();
            assert_eq!(received(&first, all.len()), all, "the only socket");
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
            let (first, second) = pair(family);
            let port = first.local_port();
            let steering = Steering::new(DATA, 4, 1);
            let in_use = |error| matches!(error, BindError::PortInUse(taken) if taken == port);
            assert!(in_use(Socket::bind(family, port, OPTIONS).unwrap_err()));
            assert!(in_use(group(family, port, &steering).unwrap_err()));
            // A port of another program is refused even if that program shares it.
            drop((first, second));
            let _other = sharing(family, port).unwrap();
            assert!(in_use(group(family, port, &steering).unwrap_err()));
            let one = Socket::bind(family, 0, OPTIONS).unwrap();
            let sharing = sharing(family, one.local_port());
            assert_eq!(sharing.unwrap_err(), Errno::ADDRINUSE);
        }
    });
}

#[test]
fn a_port_is_free_when_its_group_is_dropped() {
    Namespace::new().run(|| {
        for (family, _) in BOTH {
            let steering = Steering::new(DATA, 16, 1);
            let port = group(family, 0, &steering).unwrap().data[0].local_port();
            for _ in 0..3 {
                // A process that another test starts at this moment may have inherited the
                // descriptors, and closes them a little later.
                let mut again = Err(BindError::PortInUse(port));
                eventually("a free port", || {
                    again = group(family, port, &steering);
                    again.is_ok()
                });
                let again = again.unwrap();
                assert_eq!(again.data.len(), 16);
                assert!(again.others.is_ok());
            }
        }
    });
}

#[test]
fn numbers_of_data_sockets_are_powers_of_two() {
    Namespace::new().run(|| {
        for (requested, bound) in [(0, 1), (1, 1), (3, 2), (8, 8), (usize::MAX, 16)] {
            let steering = Steering::new(DATA, requested, 1);
            let group = group(Family::V4, 0, &steering).unwrap();
            assert_eq!(group.data.len(), bound);
            let sockets = group.data.iter().chain(&group.others);
            assert!(sockets.clone().count() == bound + 1);
            let port = group.data[0].local_port();
            assert!(sockets.clone().all(|socket| socket.local_port() == port));
        }
    });
}

#[test]
fn one_data_socket_remains_if_the_program_is_refused() {
    Namespace::new().run(|| {
        forbid_option(libc::SO_ATTACH_REUSEPORT_CBPF, libc::ENOPROTOOPT);
        for (family, address) in BOTH {
            let group = group(family, 0, &Steering::new(DATA, 8, 1)).unwrap();
            assert_eq!(group.data.len(), 1);
            assert!(matches!(group.others, Err(BindError::Io { .. })));
            let port = group.data[0].local_port();
            assert_eq!(sharing(family, port).unwrap_err(), Errno::ADDRINUSE);
            let from = UdpSocket::bind((address, 0)).unwrap();
            for datagram in [&[DATA; 40], &[1; 40]] {
                from.send_to(datagram, (address, port)).unwrap();
            }
            assert_eq!(received(&group.data[0], 2), [[DATA; 40], [1; 40]]);
        }
    });
}

#[test]
fn other_datagrams_without_their_socket_arrive_with_data() {
    Namespace::new().run(|| {
        for (family, address) in BOTH {
            let group = group(family, 0, &Steering::new(DATA, 4, 1)).unwrap();
            drop(group.others.unwrap());
            let port = group.data[0].local_port();
            let from = UdpSocket::bind((address, 0)).unwrap();
            // The dropped socket may be closed a little later, as above.
            eventually("a datagram", || {
                from.send_to(&[1; 148], (address, port)).unwrap();
                let mut data = group.data.iter();
                data.any(|socket| readable(socket.as_fd(), Duration::ZERO))
            });
        }
    });
}

/// The secret of a device, and a source of session indices.
struct Sessions {
    lanes: usize,
    secret: u16,
    random: std::vec::IntoIter<u8>,
}

impl Sessions {
    fn new(lanes: usize) -> Self {
        let mut random = noise(lanes as u64, 1 << 16).into_iter();
        let secret = u16::from_be_bytes([random.next().unwrap(), random.next().unwrap() | 1]);
        Self {
            lanes,
            secret,
            random,
        }
    }

    fn steering(&self) -> Steering {
        let inverse = (1..=u16::MAX).find(|number| number.wrapping_mul(self.secret) == 1);
        Steering::new(DATA, self.lanes, inverse.unwrap())
    }

    fn random(&mut self) -> usize {
        let bytes: Vec<_> = self.random.by_ref().take(8).collect();
        usize::from_be_bytes(bytes.try_into().unwrap())
    }

    /// Returns a receiver index with a class, as the design of lanes describes it.
    fn index(&self, class: usize) -> [u8; 4] {
        let [high, low] = (class as u16).wrapping_mul(self.secret).to_be_bytes();
        [0xa5, 0x5a, high, low]
    }

    /// Returns a class with any number of lanes, also more than the device has, and any base lane.
    fn class(&mut self) -> usize {
        self.random() % (1 << 16)
    }

    /// Returns the lane of a message.
    fn lane(&self, class: usize, counter: u64) -> usize {
        let session_lanes = 1 << (class >> 13);
        let base = class >> 9 & 15;
        let block = (counter / 64) as usize;
        (base + block % session_lanes) % self.lanes
    }
}

fn data(index: [u8; 4], counter: u64, length: usize) -> Vec<u8> {
    let mut message = vec![DATA, 0, 0, 0];
    message.extend(index);
    message.extend(counter.to_le_bytes());
    message.resize(length, 7);
    message
}

#[test]
fn the_session_and_the_counter_decide() {
    Namespace::new().run(|| {
        for ((family, address), lanes) in BOTH
            .into_iter()
            .flat_map(|family| [1, 2, 4, 8, 16].map(|lanes| (family, lanes)))
        {
            let mut sessions = Sessions::new(lanes);
            let group = group(family, 0, &sessions.steering()).unwrap();
            let to = SocketAddr::new(address.parse().unwrap(), group.data[0].local_port());
            let from = UdpSocket::bind((address, 0)).unwrap();
            let mut expected = vec![Vec::new(); lanes];
            let mut send = |lane: usize, message: Vec<u8>| {
                from.send_to(&message, to).unwrap();
                expected[lane].push(message);
            };
            // No more than the smallest receive buffer holds.
            for _ in 0..200 {
                let class = sessions.class();
                // Counters of all sizes.
                let shift = sessions.random() % 64;
                let counter = sessions.random() as u64 >> shift;
                let length = 10 + sessions.random() % 100;
                let lane = sessions.lane(class, counter);
                let mut message = data(sessions.index(class), counter, 120);
                message.truncate(length);
                send(lane, message);
            }
            // Too short for the counter.
            for length in [1, 5, 8, 9] {
                send(0, [DATA, 0, 0, 0, 1, 2, 3, 4, 255][..length].to_vec());
            }
            send(0, Vec::new());
            let others = [&[1; 148][..], &[0], &[5, 4, 4], &[255; 1000]];
            for datagram in others {
                from.send_to(datagram, to).unwrap();
            }
            assert_eq!(received(&group.others.unwrap(), others.len()), others);
            for (socket, expected) in group.data.iter().zip(expected) {
                assert!(expected.len() > 2, "the test covers all lanes");
                let received = received(socket, expected.len());
                assert!(received == expected, "{family:?}, {lanes} lanes");
            }
        }
    });
}

#[test]
fn batches_arrive_on_the_lane_of_their_block() {
    Namespace::new().run(|| {
        for ((family, address), lanes) in BOTH
            .into_iter()
            .flat_map(|family| [2, 8].map(|lanes| (family, lanes)))
        {
            let mut sessions = Sessions::new(lanes);
            let group = group(family, 0, &sessions.steering()).unwrap();
            let to = SocketAddr::new(address.parse().unwrap(), group.data[0].local_port());
            for _ in 0..20 {
                let from = Socket::bind(family, 0, Options::default()).unwrap();
                let (class, block) = (sessions.class(), sessions.random() as u64 >> 8);
                let counters = block * 64..block * 64 + 40;
                let batch = counters.map(|counter| data(sessions.index(class), counter, 148));
                let batch = batch.collect::<Vec<_>>().concat();
                from.send(to, None, 0, &batch, 148).result.unwrap();
                let socket = &group.data[sessions.lane(class, block * 64)];
                assert_eq!(received(socket, 1), [batch]);
            }
        }
    });
}
