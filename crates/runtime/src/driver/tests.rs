use std::net::SocketAddr;
use std::path::PathBuf;

use super::*;
use crate::resolver::SystemResolver;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::update::{PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{HandshakeQueue, Lanes};

/// Folder that is removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("taupe-driver-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn public(private: u8) -> PublicKey {
    PublicKey(default_provider().dh.public(&[private; 32]))
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

/// A driver that is up, with one peer.
fn driver(folder: &Folder, own: u8, peer: u8, endpoint: Option<SocketAddr>) -> Driver {
    let resolver = Arc::new(SystemResolver::default());
    let services = Services::new(Some(&folder.0), resolver, Arc::new(|| {}));
    let mut driver = Driver::new(default_provider(), services, Arc::new(|| {}), Lanes::One);
    let private = PrivateKey::new([own; 32]).expect("a key");
    let update = driver.prepare(DeviceUpdate {
        private_key: Some(PrivateKeyUpdate::new(private)),
        peers: vec![PeerUpdate {
            endpoint,
            ..PeerUpdate::new(public(peer))
        }],
        ..DeviceUpdate::default()
    });
    driver.apply(update.expect("prepared")).expect("applied");
    driver.device_mut().set_up(now());
    driver
}

fn datagrams(driver: &mut Driver) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(event) = driver.poll_event() {
        if let Event::Transmit { datagram, .. } = event {
            all.push(datagram);
        }
    }
    all
}

fn receive(driver: &mut Driver, from: SocketAddr, messages: &[Vec<u8>]) -> Handled {
    let mut queue = HandshakeQueue::default();
    for message in messages {
        queue.push(from.into(), message);
    }
    driver.handle_handshakes(|count, taken| queue.take(count, taken))
}

#[test]
fn two_drivers_shake_hands_and_the_newest_of_many_is_answered() {
    let folders = [Folder::new("near"), Folder::new("far")];
    let mut near = driver(&folders[0], 3, 4, Some(at(4)));
    let mut far = driver(&folders[1], 4, 3, None);
    near.device_mut().initiate(now(), &public(4));
    near.run_due();
    let initiation = datagrams(&mut near);
    assert_eq!(initiation.len(), 1);
    // The genuine initiation arrives after many bogus messages, and is handled first.
    let mut messages = vec![vec![1; 148]; 3 * HANDSHAKES_AT_ONCE];
    messages.extend(initiation);
    let handled = receive(&mut far, at(3), &messages);
    assert!(handled.handled > 0);
    let response = datagrams(&mut far);
    assert_eq!(response.len(), 1);
    receive(&mut near, at(4), &response);
    near.run_due();
    assert!(
        near.device_mut()
            .peer(&public(4))
            .expect("a peer")
            .has_session(now().boot)
    );
}

#[test]
fn a_handshake_flood_is_handled_in_portions() {
    let folder = Folder::new("flood");
    let mut driver = driver(&folder, 3, 4, None);
    let mut asked = Vec::new();
    let mut left = 10_000_000_usize;
    let handled = driver.handle_handshakes(|count, taken| {
        asked.push(count);
        let mut queue = HandshakeQueue::default();
        for _ in 0..count {
            queue.push(at(3).into(), &[1; 148]);
        }
        queue.take(count, taken);
        left -= count;
        left
    });
    assert!(asked.iter().all(|count| *count == HANDSHAKES_AT_ONCE));
    assert_eq!(handled.handled, asked.len() * HANDSHAKES_AT_ONCE);
    assert_eq!(handled.left, left, "the rest waits");
    assert!(left > 0);
}

#[test]
fn a_queue_that_returns_no_messages_is_not_polled_again() {
    let folder = Folder::new("held");
    let mut driver = driver(&folder, 3, 4, None);
    let handled = driver.handle_handshakes(|_, _| 7);
    assert_eq!((handled.handled, handled.left), (0, 7));
}

#[test]
fn timestamps_are_saved_before_the_message_that_has_one_is_sent() {
    let folder = Folder::new("saved");
    let mut driver = driver(&folder, 3, 4, Some(at(4)));
    driver.device_mut().initiate(now(), &public(4));
    let mut timestamps = crate::timestamps::Timestamps::new(Some(&folder.0));
    assert_eq!(
        timestamps.load(&public(3)),
        taupe_protocol::time::Tai64N::ZERO
    );
    let event = driver.poll_event();
    assert!(matches!(event, Some(Event::Transmit { .. })));
    let saved = timestamps.load(&public(3));
    assert!(saved > taupe_protocol::time::Tai64N::ZERO);
    // A clean end returns the reserved timestamps that have not been used.
    driver.close();
    assert!(driver.poll_event().is_none());
    assert!(timestamps.load(&public(3)) < saved);
}

#[test]
fn a_deadline_that_is_due_is_handled() {
    let folder = Folder::new("deadline");
    let mut driver = driver(&folder, 3, 4, Some(at(4)));
    driver.device_mut().initiate(now(), &public(4));
    assert_eq!(datagrams(&mut driver).len(), 1);
    let due = driver.next_deadline().expect("it is sent again");
    let later = Now { boot: due, ..now() };
    run_due(driver.device_mut(), later);
    assert_eq!(datagrams(&mut driver).len(), 1);
    assert!(driver.next_deadline().is_some_and(|next| next > due));
}
