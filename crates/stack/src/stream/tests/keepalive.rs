//! Tests of TCP keepalive.

use super::{ACK, FIN, Segment, World};
use crate::keepalive::Keepalive;
use crate::packet::tcp;
use core::time::Duration;
use smoltcp::socket::tcp::State;

const IDLE: Duration = Duration::from_secs(600);
const INTERVAL: Duration = Duration::from_secs(20);

fn keepalive() -> Keepalive {
    Keepalive::new(IDLE).interval(INTERVAL).probes(3)
}

/// Advances to the next deadline, and returns the number of probes that are sent then. Panics if
/// something else is sent.
fn advance(world: &mut World) -> usize {
    let deadline = world.stream.deadline(world.now);
    world.now = deadline.expect("a deadline").max(world.now);
    let sent = world.sent();
    for packet in &sent {
        let (_, _, probe) = tcp(packet).unwrap();
        assert_eq!(probe.seq_number() + probe.segment_len(), world.ours);
        assert!(probe.ack() && probe.segment_len() == 1);
    }
    sent.len()
}

#[test]
fn an_idle_connection_is_not_probed_by_default() {
    let mut world = World::open();
    assert_eq!(world.stream.deadline(world.now), None);
    world.now += Duration::from_secs(100 * 24 * 3600);
    assert!(world.sent().is_empty());
    assert_eq!(world.stream.dead_at(), None);
}

#[test]
fn unanswered_probes_end_an_idle_connection() {
    let mut world = World::open();
    let start = world.now;
    world.stream.set_keepalive(Some(keepalive()));
    assert!(world.sent().is_empty());
    let mut times = Vec::new();
    while world.stream.dead_at().is_none_or(|at| world.now < at) {
        if advance(&mut world) > 0 {
            times.push(world.now.since(start));
        }
        if let Some(dead) = world.stream.dead_at() {
            world.now = dead;
        }
    }
    assert_eq!(times, [IDLE, IDLE + INTERVAL, IDLE + 2 * INTERVAL]);
    assert_eq!(world.now, start + IDLE + 3 * INTERVAL);
}

#[test]
fn an_answer_begins_the_idle_time_again() {
    let mut world = World::open();
    world.stream.set_keepalive(Some(keepalive()));
    for state in [State::Established, State::CloseWait] {
        for _ in 0..5 {
            let before = world.now;
            while advance(&mut world) == 0 {}
            assert_eq!(world.now, before + IDLE);
            world.now += INTERVAL / 2;
            // Acknowledges nothing that was not acknowledged.
            let ended = i32::from(state == State::CloseWait);
            world.receive(&Segment::new(ended, 0, ACK));
            assert_eq!(world.stream.dead_at(), None);
            assert!(world.sent().is_empty());
        }
        world.receive(&Segment::new(0, 0, ACK | FIN));
        world.sent();
        assert_eq!(world.stream.state(), State::CloseWait);
    }
}

#[test]
fn sleep_of_the_machine_does_not_end_a_connection() {
    let mut world = World::open();
    world.stream.set_keepalive(Some(keepalive()));
    world.now += 100 * IDLE;
    assert_eq!(world.sent().len(), 1);
    assert_eq!(world.stream.dead_at(), None);
}

#[test]
fn a_forged_segment_is_no_answer() {
    let mut world = World::open();
    world.stream.set_keepalive(Some(keepalive()));
    while world.stream.dead_at().is_none() {
        advance(&mut world);
        for acknowledged in [-1, 1, 70_000] {
            world.receive(&Segment::new(0, acknowledged, ACK));
        }
        let slots = world.outgoing.slots().len();
        world.outgoing.remove(slots);
    }
}

#[test]
fn keepalive_can_be_turned_off_while_probes_are_sent() {
    let mut world = World::open();
    world.stream.set_keepalive(Some(keepalive()));
    while advance(&mut world) == 0 {}
    world.stream.set_keepalive(None);
    for most in [1, 0, 0] {
        world.now += 100 * IDLE;
        assert!(world.sent().len() <= most);
        assert_eq!(world.stream.dead_at(), None);
    }
}
