//! Tests of connections that their user has closed.

use super::{ACK, FIN, Segment, World};
use crate::closing::Closing;
use crate::limits::{CLOSE_LIMIT, CLOSE_TIMEOUT, SKIP_TIME_WAIT};
use core::time::Duration;
use smoltcp::socket::tcp::State;
use taupe_protocol::time::Instant;

const DATA: usize = 1000;

/// Returns a connection with unacknowledged data, and its close.
fn closed() -> (World, Closing, Instant) {
    let mut world = World::open();
    assert!(world.stream.socket().send_slice(&[7; DATA]).is_ok());
    let closing = Closing::begin(world.now, &mut world.stream);
    world.sent();
    let began = world.now;
    (world, closing, began)
}

#[test]
fn slow_acknowledgements_do_not_keep_a_closed_connection() {
    for (connections, expected) in [(1, CLOSE_LIMIT), (SKIP_TIME_WAIT + 1, CLOSE_TIMEOUT)] {
        let (mut world, mut closing, began) = closed();
        let mut acknowledged = 0;
        let late = Duration::from_secs(1);
        while !closing.is_over(world.now, &mut world.stream, connections) {
            // Just before the other side would be too late.
            world.now = (world.now + CLOSE_TIMEOUT - late).min(began + expected);
            acknowledged += 1;
            world.receive(&Segment::new(0, acknowledged, ACK));
            world.sent();
        }
        assert_eq!(world.now, began + expected, "{connections} connections");
        assert!(world.stream.socket().send_queue() > DATA / 2);
    }
}

#[test]
fn a_closed_connection_waits_for_acknowledgements_and_for_the_other_end() {
    let (mut world, mut closing, began) = closed();
    assert_eq!(closing.deadline(), began + CLOSE_TIMEOUT);
    world.now += CLOSE_TIMEOUT - Duration::from_secs(1);
    world.receive(&Segment::new(0, 500, ACK));
    assert!(!closing.is_over(world.now, &mut world.stream, 1));
    assert_eq!(closing.deadline(), world.now + CLOSE_TIMEOUT);
    // The data and the end.
    world.receive(&Segment::new(0, DATA as i32 + 1, ACK));
    assert_eq!(world.stream.state(), State::FinWait2);
    assert!(!closing.is_over(world.now, &mut world.stream, 1));
    let acknowledged = world.now;
    // Segments without data are no progress.
    while world.now < acknowledged + CLOSE_TIMEOUT {
        assert!(!closing.is_over(world.now, &mut world.stream, 1));
        world.now += CLOSE_TIMEOUT / 4;
        world.receive(&Segment::new(0, DATA as i32 + 1, ACK));
    }
    assert!(closing.is_over(world.now, &mut world.stream, 1));

    let (mut world, mut closing, _) = closed();
    world.receive(&Segment::new(0, DATA as i32 + 1, ACK | FIN));
    assert_eq!(world.stream.state(), State::TimeWait);
    assert!(!closing.is_over(world.now, &mut world.stream, SKIP_TIME_WAIT));
    assert!(closing.is_over(world.now, &mut world.stream, SKIP_TIME_WAIT + 1));
}

#[test]
fn data_after_the_close_ends_the_connection() {
    let (mut world, mut closing, _) = closed();
    let mut late = Segment::new(0, 1, ACK);
    late.payload = vec![7];
    world.receive(&late);
    assert!(closing.is_over(world.now, &mut world.stream, 1));
}
