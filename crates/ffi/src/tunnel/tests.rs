//! Timers that take minutes, with a clock that the tests advance.

use super::*;
use crate::clock::skip;
use crate::{PrivateKey, PublicKey};

fn pair(keepalive: u16) -> [Tunnel; 2] {
    let crypto = default_provider();
    let private = [(); 2].map(|()| PrivateKey::new(*crate::random_secret().expose()).unwrap());
    let public = private
        .each_ref()
        .map(|key| PublicKey(crypto.dh.public(key.expose())));
    let [a, b] = private;
    [(a, public[1], keepalive), (b, public[0], 0)].map(|(private_key, public_key, keepalive)| {
        Tunnel::new(Config {
            private_key,
            public_key,
            preshared_key: PresharedKey::NONE,
            keepalive,
            index: 0,
            sink: None,
        })
        .unwrap()
    })
}

fn packet(length: usize) -> Vec<u8> {
    let mut packet = vec![0x45; length];
    packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    packet
}

/// Ticks every 100 ms. Returns the number of datagrams to send, and the last result.
fn tick(tunnel: &Tunnel, seconds: u64) -> (usize, Result) {
    let mut dst = [0; 2048];
    let (mut sent, mut last) = (0, Ok(Outcome::Done));
    for _ in 0..seconds * 10 {
        skip(Duration::from_millis(100));
        last = tunnel.tick(&mut dst);
        sent += usize::from(matches!(last, Ok(Outcome::Network(_))));
    }
    (sent, last)
}

fn shake_hands([a, b]: &[Tunnel; 2]) {
    let (mut to_b, mut to_a) = ([0; 148], [0; 148]);
    assert_eq!(a.force_handshake(&mut to_b), Ok(Outcome::Network(148)));
    assert_eq!(b.read(None, &to_b, &mut to_a), Ok(Outcome::Network(92)));
    assert_eq!(
        a.read(None, &to_a[..92], &mut to_b),
        Ok(Outcome::Network(32))
    );
    assert_eq!(b.read(None, &to_b[..32], &mut to_a), Ok(Outcome::Done));
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_until_something_is_written() {
    let [a, _] = pair(0);
    let mut dst = [0; 2048];
    assert_eq!(a.write(&packet(100), &mut dst), Ok(Outcome::Network(148)));
    // Writing packets meanwhile does not change that.
    let mut sent = 0;
    let mut seconds = 0;
    let last = loop {
        assert!(a.write(&packet(100), &mut dst).is_ok());
        let (more, last) = tick(&a, 1);
        sent += more;
        seconds += 1;
        if last == Err(Error::ConnectionExpired) || seconds == 200 {
            break last;
        }
    };
    assert_eq!(last, Err(Error::ConnectionExpired));
    assert!((99..=108).contains(&seconds), "{seconds}");
    assert_eq!(sent, 19);
    assert!(a.statistics().expired);
    assert_eq!(a.statistics().waiting, 0);
    // Every later tick returns the error too.
    assert_eq!(tick(&a, 30), (0, Err(Error::ConnectionExpired)));
    assert_eq!(a.next_deadline(), None);
    assert_eq!(a.write(&packet(100), &mut dst), Ok(Outcome::Network(148)));
    assert_eq!(tick(&a, 1), (0, Ok(Outcome::Done)));
    assert!(!a.statistics().expired);
    // A forced handshake also ends the error.
    let _ = tick(&a, 120);
    assert_eq!(a.tick(&mut dst), Err(Error::ConnectionExpired));
    assert_eq!(a.force_handshake(&mut dst), Ok(Outcome::Network(148)));
    assert_eq!(tick(&a, 1), (0, Ok(Outcome::Done)));
}

#[test]
fn the_last_session_expires_after_nine_minutes() {
    let tunnels = pair(0);
    shake_hands(&tunnels);
    let [a, _] = &tunnels;
    assert_eq!(tick(a, 530), (0, Ok(Outcome::Done)));
    assert!(a.statistics().handshake_age >= Some(Duration::from_secs(530)));
    assert_eq!(tick(a, 15), (0, Err(Error::ConnectionExpired)));
    assert_eq!(a.statistics().handshake_age, None);
    shake_hands(&tunnels);
    assert_eq!(tick(a, 1), (0, Ok(Outcome::Done)));
    assert_eq!(a.statistics().sessions, 2);
}

#[test]
fn a_tunnel_that_was_never_used_stays_quiet() {
    let [a, _] = pair(0);
    assert_eq!(a.next_deadline(), None);
    assert_eq!(tick(&a, 1000), (0, Ok(Outcome::Done)));
}

#[test]
fn the_first_keepalive_is_due_after_its_time() {
    let [a, _] = pair(25);
    assert!(a.next_deadline() > Some(Duration::from_secs(24)));
    assert_eq!(tick(&a, 24), (0, Ok(Outcome::Done)));
    let (sent, _) = tick(&a, 2);
    assert_eq!(sent, 1);
}

#[test]
fn the_initiator_renews_a_session() {
    let tunnels = pair(0);
    shake_hands(&tunnels);
    let [a, b] = &tunnels;
    let mut dst = [0; 2048];
    skip(Duration::from_secs(121));
    // The old session carries the packet, and the tick after it starts a handshake.
    assert_eq!(a.write(&packet(64), &mut dst), Ok(Outcome::Network(96)));
    assert_eq!(a.next_deadline(), Some(Duration::ZERO));
    assert_eq!(a.tick(&mut dst), Ok(Outcome::Network(148)));
    assert_eq!(b.write(&packet(64), &mut dst), Ok(Outcome::Network(96)));
    assert_ne!(b.tick(&mut dst), Ok(Outcome::Network(148)));
    // After 180 s the session neither sends nor receives.
    skip(Duration::from_secs(61));
    assert_eq!(b.write(&packet(64), &mut dst), Ok(Outcome::Network(148)));
}

#[test]
fn a_tick_needs_room_for_a_handshake_only() {
    let [a, b] = pair(0);
    let mut dst = [0; 2048];
    assert_eq!(b.write(&packet(1400), &mut dst), Ok(Outcome::Network(148)));
    let pair = [a, b];
    shake_hands(&pair);
    let [_, b] = pair;
    assert_eq!(b.tick(&mut [0; 148]), Ok(Outcome::Done));
    assert_eq!(b.statistics().waiting, 1);
    assert!(matches!(b.read(None, &[], &mut dst), Ok(Outcome::Network(length)) if length > 1400));
    assert_eq!(b.tick(&mut [0; 148]), Ok(Outcome::Done));
}

#[test]
fn queued_packets_are_bounded_and_the_newest_dropped() {
    let [a, b] = pair(0);
    let (mut initiation, mut dst) = ([0; 148], [0; 2048]);
    for i in 0..MAX_WAITING + 44 {
        let outcome = a.write(&packet(100 + i), &mut dst).unwrap();
        if i == 0 {
            initiation.copy_from_slice(&dst[..148]);
        } else {
            assert_eq!(outcome, Outcome::Done);
        }
    }
    assert_eq!(a.statistics().waiting, MAX_WAITING);
    assert_eq!(a.dropped(DropReason::StagedOverflow), 44);
    let mut response = [0; 148];
    b.read(None, &initiation, &mut response).unwrap();
    assert_eq!(
        a.read(None, &response[..92], &mut dst),
        Ok(Outcome::Network(32))
    );
    for i in 0..MAX_WAITING {
        let Ok(Outcome::Network(length)) = a.read(None, &[], &mut dst) else {
            panic!("{i}");
        };
        let mut packet = [0; 2048];
        let read = b.read(None, &dst[..length], &mut packet);
        assert_eq!(read, Ok(Outcome::Ipv4(100 + i)));
    }
    assert_eq!(a.read(None, &[], &mut dst), Ok(Outcome::Done));
}

#[test]
fn padding_does_not_exceed_the_longest_packet() {
    let tunnels = pair(0);
    shake_hands(&tunnels);
    let [a, _] = &tunnels;
    let mut dst = [0; 2048];
    let mut length = |packet_length| match a.write(&packet(packet_length), &mut dst) {
        Ok(Outcome::Network(length)) => length - OVERHEAD,
        other => panic!("{other:?}"),
    };
    assert_eq!(length(20), 32);
    assert_eq!(length(1270), 1280);
    assert_eq!(length(1290), 1290);
    assert_eq!(length(1420), 1420);
    assert_eq!(length(1290), 1296);
    assert_eq!(length(1415), 1420);
}

#[test]
fn a_refused_packet_does_not_raise_the_padding_limit() {
    let tunnels = pair(0);
    shake_hands(&tunnels);
    let [a, _] = &tunnels;
    let mut dst = [0; 8 * 2048];
    let refused = Err(Error::DestinationBufferTooSmall);
    assert_eq!(a.write(&packet(4000), &mut dst[..4031]), refused);
    let in_place = a.write_in_place(&mut dst[..4031], 4000);
    assert_eq!(in_place, refused);
    let (all, mut sizes) = ([0x45; 4000], [0]);
    let packets = Strided {
        stride: 4000,
        sizes: &[4000],
    };
    let batch = a.write_batch(&all, packets, &mut dst, 4031, &mut sizes);
    assert_eq!(batch, Err(Error::DestinationBufferTooSmall));
    // The packet of 4,000 bytes was refused. If it counted, this packet would be padded to 1,328.
    let length = 1315 + OVERHEAD;
    assert_eq!(
        a.write(&packet(1315), &mut dst),
        Ok(Outcome::Network(length))
    );
}

#[test]
fn a_keepalive_that_does_not_fit_is_not_queued() {
    let tunnels = pair(0);
    let [a, _] = &tunnels;
    let refused = Err(Error::DestinationBufferTooSmall);
    assert_eq!(a.write(&[], &mut [0; 147]), refused);
    assert_eq!(a.next_deadline(), None);
    shake_hands(&tunnels);
    assert_eq!(a.write(&[], &mut [0; 31]), refused);
    assert_eq!(a.read(None, &[], &mut [0; 148]), Ok(Outcome::Done));
    assert_eq!(a.write(&[], &mut [0; 32]), Ok(Outcome::Network(32)));
}

#[test]
fn a_read_without_a_source_keeps_the_peer_address() {
    let tunnels = pair(0);
    let [a, b] = &tunnels;
    let place = |port| Some(SocketAddr::from(([192, 0, 2, 1], port)));
    let (mut to_b, mut to_a) = ([0; 2048], [0; 2048]);
    // A forged message does not change the address.
    let written = a.force_handshake(&mut to_b);
    assert_eq!(written, Ok(Outcome::Network(148)));
    let mut forged = to_b;
    forged[50] ^= 1;
    assert!(b.read(place(1), &forged[..148], &mut to_a).is_err());
    assert_eq!(b.peer_address(), None);
    assert!(b.read(place(2), &to_b[..148], &mut to_a).is_ok());
    assert_eq!(b.peer_address(), place(2));
    assert!(a.read(None, &to_a[..92], &mut to_b).is_ok());
    assert_eq!(a.peer_address(), None);
    assert_eq!(b.read(None, &to_b[..32], &mut to_a), Ok(Outcome::Done));
    assert_eq!(b.peer_address(), place(2));
    // A packet without a source does not change it either, alone or in a batch.
    let mut carry = |from, batch: bool| {
        let Ok(Outcome::Network(length)) = a.write(&packet(100), &mut to_b) else {
            panic!("no session");
        };
        let message = &mut to_b[..length];
        if batch {
            let datagrams = Strided {
                stride: length,
                sizes: &[length],
            };
            let mut results = [Ok(Outcome::Done)];
            let read = b.read_batch(from, message, datagrams, &mut results);
            assert_eq!(read, Ok(1));
        } else {
            assert_eq!(b.read(from, message, &mut to_a), Ok(Outcome::Ipv4(100)));
        }
    };
    carry(None, false);
    carry(None, true);
    assert_eq!(b.peer_address(), place(2));
    carry(place(3), false);
    assert_eq!(b.peer_address(), place(3));
    carry(place(4), true);
    assert_eq!(b.peer_address(), place(4));
    // A handshake without a source does not change it either.
    skip(Duration::from_secs(1));
    shake_hands(&tunnels);
    assert_eq!(b.peer_address(), place(4));
}

#[test]
fn of_the_initiations_in_a_batch_the_newest_is_answered() {
    const LENGTH: usize = 148;
    let [a, b] = pair(0);
    let mut buffer = [0; 3 * LENGTH];
    for initiation in buffer.chunks_mut(LENGTH) {
        skip(Duration::from_secs(6));
        assert_eq!(a.force_handshake(initiation), Ok(Outcome::Network(LENGTH)));
    }
    let datagrams = Strided {
        stride: LENGTH,
        sizes: &[LENGTH; 3],
    };
    let mut results = [Ok(Outcome::Done); 3];
    let packets = b.read_batch(None, &mut buffer, datagrams, &mut results);
    assert_eq!(packets, Ok(0));
    assert_eq!(results.map(|result| result.is_ok()), [false, false, true]);
    let mut response = [0; 92];
    let read = b.read(None, &[], &mut response);
    assert_eq!(read, Ok(Outcome::Network(92)));
    assert_eq!(b.read(None, &[], &mut [0; 92]), Ok(Outcome::Done));
    let taken = a.read(None, &response, &mut [0; 32]);
    assert_eq!(taken, Ok(Outcome::Network(32)), "the answer to the last");
}
