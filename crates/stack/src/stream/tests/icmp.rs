//! Tests of ICMP errors about connections: those that hosts forge, and those of routers.

use super::{ACK, Segment, World};
use crate::failure::ConnectFailure;
use crate::packet::{IcmpError, IcmpProblem};
use core::time::Duration;
use smoltcp::socket::tcp::State;

/// Returns an error about the segment at an offset from this side's first byte.
fn error(world: &World, problem: IcmpProblem, at: i32) -> IcmpError {
    let mut sequence = world.ours;
    sequence.0 = sequence.0.wrapping_add(at);
    IcmpError { problem, sequence }
}

#[test]
fn only_an_error_about_the_syn_ends_an_attempt_to_connect() {
    for (problem, expected) in [
        (IcmpProblem::Network, Some(ConnectFailure::Network)),
        (IcmpProblem::Host, Some(ConnectFailure::Host)),
        (IcmpProblem::Refused, Some(ConnectFailure::Refused)),
        (IcmpProblem::HopLimit, Some(ConnectFailure::HopLimit)),
        (IcmpProblem::TooLong(1300), None),
    ] {
        let mut world = World::connecting();
        for wrong in [-2, 0, 1, i32::MIN, 70_000] {
            let forged = error(&world, problem, wrong);
            let failure = world.stream.handle_icmp_error(world.now, forged);
            assert_eq!(failure, None, "{problem:?} {wrong}");
        }
        let real = error(&world, problem, -1);
        let failure = world.stream.handle_icmp_error(world.now, real);
        assert_eq!(failure, expected, "{problem:?}");
    }
}

#[test]
fn an_open_connection_survives_errors() {
    let mut world = World::open();
    assert!(world.stream.socket().send_slice(&[7; 1000]).is_ok());
    assert_eq!(world.sent_lengths(), [1040]);
    for problem in [
        IcmpProblem::Host,
        IcmpProblem::Refused,
        IcmpProblem::Network,
    ] {
        let error = error(&world, problem, 0);
        assert_eq!(world.stream.handle_icmp_error(world.now, error), None);
    }
    assert_eq!(world.stream.state(), State::Established);
    assert_eq!(world.stream.socket().send_queue(), 1000);
}

#[test]
fn a_path_mtu_must_be_about_data_in_flight() {
    let mut world = World::open();
    assert!(world.stream.socket().send_slice(&[7; 2000]).is_ok());
    assert_eq!(world.sent_lengths(), [1420, 660]);
    for (at, expected) in [(-1, 1420), (2000, 1420), (1380, 1300)] {
        let error = error(&world, IcmpProblem::TooLong(1300), at);
        assert_eq!(world.stream.handle_icmp_error(world.now, error), None);
        assert_eq!(world.stream.mtu, expected, "{at}");
    }
    // The stack retransmits in shorter packets.
    world.now += Duration::from_secs(2);
    assert_eq!(world.sent_lengths().first(), Some(&1300));
    world.receive(&Segment::new(0, 2000, ACK));
    assert_eq!(world.stream.socket().send_queue(), 0);
}

#[test]
fn a_path_mtu_that_acknowledgements_contradict_needs_a_retransmission() {
    for is_lost in [false, true] {
        let mut world = World::open();
        assert!(world.stream.socket().send_slice(&[7; 1380]).is_ok());
        assert_eq!(world.sent_lengths(), [1420]);
        world.receive(&Segment::new(0, 1380, ACK));
        assert!(world.stream.socket().send_slice(&[7; 1380]).is_ok());
        assert_eq!(world.sent_lengths(), [1420]);
        let forged = error(&world, IcmpProblem::TooLong(0), 1380);
        assert_eq!(world.stream.handle_icmp_error(world.now, forged), None);
        assert_eq!(world.stream.mtu, 1420);
        if !is_lost {
            world.receive(&Segment::new(0, 2760, ACK));
        }
        world.now += Duration::from_secs(2);
        world.sent();
        let expected = if is_lost { 576 } else { 1420 };
        assert_eq!(world.stream.mtu, expected);
    }
}
