//! Tests with a peer in this process, over the loopback interface.

use super::*;
use mio::{Events, Poll};
use std::path::PathBuf;
use std::time::Duration;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::message::{Kind, classify, sent_index};
use taupe_protocol::update::{PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{Device, Output, Random};
use taupe_runtime::random::SystemRandom;
use taupe_runtime::resolver::SystemResolver;

/// Folder that is removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("taupe-stack-{:08x}", SystemRandom.number());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn private_key() -> PrivateKey {
    PrivateKey::new(*SystemRandom.secret().expose()).unwrap()
}

fn public_key(key: &PrivateKey) -> PublicKey {
    PublicKey(default_provider().dh.public(key.expose()))
}

/// Returns an update with a private key and one peer.
fn update(own: PrivateKey, peer: PublicKey, endpoint: Option<SocketAddr>) -> DeviceUpdate {
    let mut peer = PeerUpdate::new(peer);
    peer.endpoint = endpoint;
    DeviceUpdate {
        private_key: Some(PrivateKeyUpdate::new(own)),
        peers: vec![peer],
        ..DeviceUpdate::default()
    }
}

#[test]
fn only_the_newest_of_queued_initiations_is_answered() {
    let folder = Folder::new();
    let (near, far) = (private_key(), private_key());
    let (near_key, far_key) = (public_key(&near), public_key(&far));
    let mut poll = Poll::new().unwrap();
    let resolver = Arc::new(SystemResolver::default());
    let services = Services::new(Some(&folder.0), resolver, Arc::new(|| {}));
    let mut tunnel = Tunnel::new(
        update(near, far_key, None),
        0,
        services,
        None,
        poll.registry(),
        [Token(0), Token(1)],
    )
    .unwrap();
    let socket = tunnel.sockets.iter().position(|bound| bound.is_ipv4);
    let socket = socket.unwrap();
    let port = tunnel.sockets[socket].socket.local_addr().unwrap().port();
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));

    // The peer retransmits its initiation while the tunnel does not read.
    let random = Box::new(SystemRandom);
    let mut peer = Device::new(default_provider(), random, Arc::new(|| {}));
    let mut time = now();
    peer.update(time, update(far, near_key, Some(at))).unwrap();
    peer.set_up(time);
    let sender = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut last = None;
    for _ in 0..3 {
        time.boot += Duration::from_secs(6);
        time.wall += Duration::from_secs(6);
        peer.initiate(time, &near_key);
        while let Some(output) = peer.poll_output() {
            if let Output::Transmit { datagram, .. } = output {
                last = sent_index(&datagram);
                sender.send_to(&datagram, at).unwrap();
            }
        }
    }

    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut events = Events::with_capacity(4);
    while !tunnel.is_readable() {
        poll.poll(&mut events, Some(Duration::from_secs(10)))
            .unwrap();
        assert!(!events.is_empty(), "no datagram arrives");
        for event in &events {
            tunnel.note(event);
        }
    }
    let mut datagrams = 0;
    while !matches!(tunnel.receive(socket, &mut buffer), Received::Nothing) {
        datagrams += 1;
        if tunnel.is_readable() {
            tunnel.handle_handshakes();
        }
    }
    assert_eq!(datagrams, 3);
    assert!(tunnel.has_handshakes());
    tunnel.handle_handshakes();
    assert!(!tunnel.has_handshakes());

    sender
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let (length, _) = sender.recv_from(&mut buffer).unwrap();
    let response = &buffer[..length];
    assert_eq!(classify(response), Ok(Kind::Response));
    let receiver = response[8..12].try_into().map(u32::from_le_bytes);
    assert_eq!(receiver.ok(), last);
    assert_eq!(peer.handle_message(time, at.into(), response, 0), None);
}
