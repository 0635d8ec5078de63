use super::{ERRORS_BEFORE_PAUSE, Errors, Forwarder, lock};
use crate::{Interface, UdpSockets};
use ipnet::IpNet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use taupe_packet::ip::Family;
use taupe_protocol::DropReason;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_runtime::clock::now;
use taupe_runtime::resolver::SystemResolver;
use taupe_runtime::services::Services;

const PATIENCE: Duration = Duration::from_secs(20);
/// Time within which an unwanted packet would arrive by loopback.
const SILENCE: Duration = Duration::from_millis(300);

/// An interface in memory, with channels for both directions.
struct Memory {
    sent: Mutex<Receiver<io::Result<Vec<u8>>>>,
    send: Sender<io::Result<Vec<u8>>>,
    given: Sender<Vec<u8>>,
}

impl Interface for Memory {
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let packet = self.sent.lock().unwrap().recv().unwrap()?;
        buffer[..packet.len()].copy_from_slice(&packet);
        Ok(Some(packet.len()).filter(|length| *length > 0))
    }

    fn write(&self, packet: &[u8]) -> io::Result<()> {
        // The test may have dropped the receiver.
        let _ = self.given.send(packet.to_vec());
        Ok(())
    }

    fn close(&self) {
        self.send.send(Ok(Vec::new())).unwrap();
    }
}

struct Side {
    forwarder: Forwarder<Memory, UdpSocket>,
    send: Sender<io::Result<Vec<u8>>>,
    given: Receiver<Vec<u8>>,
    at: SocketAddr,
    public: PublicKey,
    _state: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Side {
    fn new(key: u8, notify: &Sender<()>) -> Self {
        let (send, sent) = channel();
        let (give, given) = channel();
        let interface = Memory {
            sent: Mutex::new(sent),
            send: send.clone(),
            given: give,
        };
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = socket.local_addr().unwrap();
        let sockets = UdpSockets::new(Some(socket), None, at.port());
        let resolver = Arc::new(SystemResolver::default());
        let name = format!("taupe-forwarding-{}-{}", std::process::id(), at.port());
        let state = Folder(std::env::temp_dir().join(name));
        let services = Services::new(Some(&state.0), resolver, Arc::new(|| {}));
        let notify = notify.clone();
        let notify = Arc::new(move || notify.send(()).unwrap_or_default());
        let mut forwarder = Forwarder::new(interface, sockets, 1420, services, notify);
        let key = PrivateKey::new([key; 32]).unwrap();
        let update = DeviceUpdate {
            private_key: Some(PrivateKeyUpdate::new(key)),
            ..DeviceUpdate::default()
        };
        forwarder.driver.device_mut().update(now(), update).unwrap();
        Self {
            public: forwarder.driver.device().public_key().unwrap(),
            forwarder,
            send,
            given,
            at,
            _state: state,
        }
    }

    /// Adds a peer and starts forwarding.
    fn start(&mut self, peer: PublicKey, endpoint: Option<SocketAddr>, allowed: &[[u8; 4]]) {
        let mut update = PeerUpdate::new(peer);
        update.endpoint = endpoint;
        let networks = allowed.iter().map(|one| IpNet::from(IpAddr::from(*one)));
        update.allowed_ips = networks.map(AllowedIpChange::Add).collect();
        let update = DeviceUpdate {
            peers: vec![update],
            ..DeviceUpdate::default()
        };
        self.forwarder
            .driver
            .device_mut()
            .update(now(), update)
            .unwrap();
        self.forwarder.driver.device_mut().set_up(now());
        self.forwarder.start().unwrap();
    }

    fn settle(&mut self) {
        self.forwarder.settle().unwrap();
        while self.forwarder.poll_notice().is_some() {}
    }

    fn end(self) {
        self.forwarder.end();
    }
}

/// Lets all sides do due work until `look` returns a value.
fn until<V>(
    attention: &Receiver<()>,
    sides: &mut [&mut Side],
    mut look: impl FnMut(&mut [&mut Side]) -> Option<V>,
) -> V {
    let give_up = Instant::now() + PATIENCE;
    loop {
        sides.iter_mut().for_each(|side| side.settle());
        if let Some(found) = look(sides) {
            return found;
        }
        assert!(Instant::now() < give_up, "nothing has come");
        match attention.recv_timeout(Duration::from_millis(10)) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns an IPv4 packet with UDP.
fn packet(from: [u8; 4], to: [u8; 4], port: u16, content: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 28];
    packet.extend_from_slice(content);
    let length = u16::try_from(packet.len()).unwrap();
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[9] = 17;
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    packet[22..24].copy_from_slice(&port.to_be_bytes());
    packet
}

const HERE: [u8; 4] = [10, 7, 0, 2];
const THERE: [u8; 4] = [10, 7, 0, 1];

#[test]
fn packets_arrive_unchanged_in_both_directions() {
    let (notify, attention) = channel();
    let (mut here, mut there) = (Side::new(1, &notify), Side::new(2, &notify));
    here.start(there.public, Some(there.at), &[THERE]);
    there.start(here.public, None, &[HERE]);

    // Longer and shorter packets, with and without padding, and one that no peer takes.
    let mut out: Vec<_> = [1392, 0, 5, 4, 1391, 60_000, 1]
        .map(|length| packet(HERE, THERE, 53, &vec![7; length]))
        .into();
    let stranger = packet(HERE, [192, 0, 2, 1], 53, b"stranger");
    for one in [&stranger].into_iter().chain(&out) {
        here.send.send(Ok(one.clone())).unwrap();
    }
    let mut came = Vec::new();
    let sides = &mut [&mut here, &mut there];
    until(&attention, sides, |sides| {
        came.extend(sides[1].given.try_iter());
        (came.len() == out.len()).then_some(())
    });
    // Packets that waited for the handshake may arrive after later ones.
    for all in [&mut came, &mut out] {
        all.sort_unstable();
    }
    assert_eq!(came, out);

    let back = packet(THERE, HERE, 53, b"answer");
    let forged = packet([192, 0, 2, 1], HERE, 53, b"forged");
    for one in [forged, back.clone()] {
        sides[1].send.send(Ok(one)).unwrap();
    }
    let came = until(&attention, sides, |sides| sides[0].given.try_recv().ok());
    assert_eq!(came, back);
    here.end();
    there.end();
}

/// Sends a packet in each direction.
fn exchange(attention: &Receiver<()>, sides: &mut [&mut Side], content: &[u8]) {
    for (from, to, one) in [
        (0, 1, packet(HERE, THERE, 53, content)),
        (1, 0, packet(THERE, HERE, 53, content)),
    ] {
        sides[from].send.send(Ok(one.clone())).unwrap();
        let came = until(attention, sides, |sides| sides[to].given.try_recv().ok());
        assert_eq!(came, one);
    }
}

#[test]
fn the_port_changes_while_packets_flow() {
    let (notify, attention) = channel();
    let (mut here, mut there) = (Side::new(1, &notify), Side::new(2, &notify));
    here.start(there.public, Some(there.at), &[THERE]);
    there.start(here.public, None, &[HERE]);
    let sides = &mut [&mut here, &mut there];
    exchange(&attention, sides, b"before");
    let old = sides[0].at;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let sockets = UdpSockets::new(Some(socket), None, port);
    sides[0].forwarder.replace_sockets(sockets).unwrap();
    UdpSocket::bind(old).expect("the old port is free");
    exchange(&attention, sides, b"after");
    here.end();
    there.end();
}

#[test]
fn a_looped_datagram_is_not_sealed_again() {
    let (notify, attention) = channel();
    let (mut here, mut there) = (Side::new(3, &notify), Side::new(4, &notify));
    // The test relays datagrams, so it sees all of them.
    let between = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = between.local_addr().unwrap();
    let IpAddr::V4(address) = at.ip() else {
        panic!("{at}")
    };
    between.set_nonblocking(true).unwrap();
    here.start(there.public, Some(at), &[THERE, address.octets()]);
    there.start(here.public, None, &[HERE]);

    let (ends, mut seen) = ([here.at, there.at], Vec::new());
    let relay = |seen: &mut Vec<Vec<u8>>| {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = between.recv_from(&mut buffer) {
            let to = if from == ends[0] { ends[1] } else { ends[0] };
            between.send_to(&buffer[..length], to).unwrap();
            seen.push(buffer[..length].to_vec());
        }
    };
    let first = packet(HERE, THERE, 53, b"first");
    here.send.send(Ok(first)).unwrap();
    let sides = &mut [&mut here, &mut there];
    until(&attention, sides, |sides| {
        relay(&mut seen);
        sides[1].given.try_recv().ok()
    });

    let sealed = seen.into_iter().find(|message| message[0] == 4).unwrap();
    let mut back = packet(HERE, address.octets(), at.port(), &sealed);
    // A packet with another source port was not sent by this device.
    let foreign = back.clone();
    back[20..22].copy_from_slice(&ends[0].port().to_be_bytes());
    let other = packet(HERE, address.octets(), at.port(), b"of another program");
    let side = &sides[0];
    for one in [back, foreign, other] {
        side.send.send(Ok(one)).unwrap();
    }
    // The following packets are sent, although the peer accepts no packets from that address.
    let mut seen = Vec::new();
    until(&attention, sides, |_| {
        relay(&mut seen);
        let carried = seen.iter().filter(|message| message[0] == 4);
        (carried.count() == 2).then_some(())
    });
    let path = here.forwarder.driver.data_path();
    assert_eq!(path.counters().count(DropReason::RoutingLoop), 1);
    here.end();
    there.end();
}

#[test]
fn nothing_leaves_by_a_closed_socket() {
    let (notify, _attention) = channel();
    let side = Side::new(5, &notify);
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = other.local_addr().unwrap();
    let sockets = side.forwarder.sockets();
    let v4 = sockets.of(Family::V4).unwrap();
    v4.set_closed(true);
    sockets.send(to.into(), b"shut");
    other.set_read_timeout(Some(SILENCE)).unwrap();
    let mut buffer = [0; 8];
    assert!(other.recv_from(&mut buffer).is_err());
    v4.set_closed(false);
    sockets.send(to.into(), b"open");
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(other.recv_from(&mut buffer).unwrap().0, 4);
    assert_eq!(&buffer[..4], b"open");
}

#[test]
fn a_removed_interface_is_reported() {
    let (notify, attention) = channel();
    let mut side = Side::new(6, &notify);
    side.start(PublicKey([9; 32]), None, &[THERE]);
    side.settle();
    side.send
        .send(Err(ErrorKind::UnexpectedEof.into()))
        .unwrap();
    let error = loop {
        attention.recv_timeout(PATIENCE).unwrap();
        if let Err(error) = side.forwarder.settle() {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    side.end();
}

#[test]
fn a_few_errors_of_a_socket_do_not_stop_it() {
    let mut errors = Errors::default();
    for _ in 0..3 {
        for _ in 1..ERRORS_BEFORE_PAUSE {
            assert!(!errors.are_too_many());
        }
        assert!(errors.are_too_many(), "or it would never rest");
    }
}

#[test]
fn the_newest_of_several_queued_initiations_is_answered() {
    let (notify, _attention) = channel();
    let (mut here, mut there) = (Side::new(1, &notify), Side::new(2, &notify));
    here.start(there.public, Some(there.at), &[THERE]);
    there.start(here.public, None, &[HERE]);
    let mut time = now();
    for _ in 0..3 {
        time.boot += Duration::from_secs(6);
        time.wall += Duration::from_secs(6);
        here.forwarder
            .driver
            .device_mut()
            .initiate(time, &there.public);
        while here.forwarder.poll_notice().is_some() {}
    }
    assert!(here.forwarder.next_deadline().is_some(), "it tries again");
    let wait_for = |side: &Side, count| {
        let give_up = Instant::now() + PATIENCE;
        while lock(&side.forwarder.shared.handshakes).len() < count {
            assert!(Instant::now() < give_up, "no message has come");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(&there, 3);
    there.settle();
    wait_for(&here, 1);
    here.settle();
    let peer = here
        .forwarder
        .driver
        .device_mut()
        .peer(&there.public)
        .unwrap();
    assert!(peer.has_session(now().boot), "it refused the answer");
    here.end();
    there.end();
}
